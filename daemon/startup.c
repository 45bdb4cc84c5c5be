/* SPDX-License-Identifier: MIT */
#include "daemon/startup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "attention/attention.h"
#include "attention/kv_cache.h"
#include "daemon/budget.h"
#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/model/model.h"
#include "daemon/serve/serve.h"
#include "daemon/table_format.h"
#include "ipc/ring.h"
#include "ipc/socket.h"

#define PROGRESS_NS 2000000000ull  /* between lines in a log */
#define PROGRESS_TTY_NS 100000000ull

/* One model on its way from a folder to the engine. */
struct candidate {
	const struct config_model *options;
	struct model_config config;
	bool has_config;
	const struct attention_backend *attention;
	enum attention_support support;
	struct mode_resolution mode;
	uint32_t max_seq_len;
	struct budget_model *memory;
};

struct startup {
	const struct config *config;
	char socket[SOCKET_PATH_MAX], admin_socket[SOCKET_PATH_MAX];
	int lock_fd, admin_lock_fd;
	struct device *device;
	struct device_info info;
	struct candidate candidates[CONFIG_MODELS_MAX];
	struct budget_model memory[CONFIG_MODELS_MAX];
	struct engine_options engine_options;
	struct engine *engine;
};

static int refuse(struct startup_error *error, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int refuse(struct startup_error *error, int r, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	return r < 0 ? r : -EIO;
}

/* ---- the sockets' places ---- */

static int lock_one(const char *path, int *ret_fd, struct startup_error *error)
{
	int r = socket_lock(path, ret_fd);

	if (r == -EADDRINUSE)
		return refuse(error, r,
			"%s: another daemon serves there: end it, or choose another --socket",
			path);
	if (r < 0)
		return refuse(error, r, "%s: cannot make a socket there: %s", path, strerror(-r));
	return 0;
}

static int take_locks(struct startup *startup, struct startup_error *error)
{
	const char *path = startup->config->socket[0] ? startup->config->socket : NULL;

	int r = socket_path(startup->socket, path);
	if (r == 0)
		r = socket_admin_path(startup->admin_socket, startup->socket);
	if (r < 0)
		return refuse(error, r, "%s: too long for a socket: with -admin at most %d bytes",
			startup->socket[0] ? startup->socket : "$MIMEO_SOCKET or $XDG_RUNTIME_DIR",
			SOCKET_PATH_MAX - 1);
	r = lock_one(startup->socket, &startup->lock_fd, error);
	if (r == 0)
		r = lock_one(startup->admin_socket, &startup->admin_lock_fd, error);
	return r;
}

/* A session takes five descriptors; the soft limit is often a thousand. */
static void raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int open_device(struct startup *startup, struct startup_error *error)
{
	struct device_options options = {.spin_us = startup->config->spin_us};
	const char *name = startup->config->device;

	int r = device_open(name, &options, &startup->device);
	if (r == -ENODEV)
		return refuse(error, r, "device %s: there is none on this machine", name);
	if (r == -ENOTSUP)
		return refuse(error, r, "device %s: this build has no such device", name);
	if (r != 0)
		return refuse(error, r, "device %s: %s", name, device_strerror(r));
	r = startup->device->ops->info(startup->device, &startup->info);
	if (r != 0)
		return refuse(error, r, "device %s: %s", name, device_strerror(r));
	return 0;
}

/* ---- each model, before its weights ---- */

static int choose_attention(
	const struct startup *startup, struct candidate *candidate, struct startup_error *error)
{
	const struct config *config = startup->config;
	const struct model_config *model = &candidate->config;
	const struct attention_config attention = {
		.n_layers = model->n_layers,
		.n_heads = model->n_heads,
		.n_kv_heads = model->n_kv_heads,
		.head_dim = model->head_dim,
		.scale = model_attention_scale(model),
		.windows = model->windows,
		.page_tokens = config->page_tokens,
		.max_rows = config->max_requests,
		.max_tokens = config->max_batch_tokens,
		.max_pages =
			(candidate->max_seq_len + config->page_tokens - 1) / config->page_tokens,
		.max_seq_len = candidate->max_seq_len,
		.max_decode_query = 1,
		.activation_dtype = startup->info.activation_dtype,
		.kv_dtype = startup->info.kv_dtype,
	};
	char why[256] = "";

	int r = attention_choose(candidate->options->attention, &attention, &candidate->attention,
		&candidate->support, why, sizeof(why));
	if (r < 0)
		return refuse(error, r, "model %s: attention %s: %s", candidate->options->name,
			candidate->options->attention, why);
	log_debug("model %s: attention: %s", candidate->options->name, why);
	return 0;
}

static int resolve_mode(struct candidate *candidate, struct startup_error *error)
{
	const struct mode_request request = {
		.configured = candidate->options->graph_mode,
		.support = candidate->support,
		.backend = candidate->attention->name,
		.decode_query = 1,
		.piecewise_available = false,
	};
	const char *name = candidate->options->name;

	int r = mode_resolve(&request, &candidate->mode);
	if (r < 0)
		return refuse(error, r, "model %s: graph mode %s: %s", name,
			graph_mode_name(request.configured), candidate->mode.reason);
	if (candidate->mode.lowered)
		log_warn("model %s: graph mode %s becomes %s: %s", name,
			graph_mode_name(candidate->mode.configured),
			graph_mode_name(candidate->mode.resolved), candidate->mode.reason);
	return 0;
}

/* Bytes of activations: the carving that the engine will do, run dry. */
static uint64_t measure_pool(const struct startup *startup, const struct model_config *config)
{
	struct model_buffers buffers;
	struct arena counting = {0};

	model_buffers_carve(config, startup->config->max_batch_tokens,
		startup->config->max_requests, startup->info.activation_dtype, &counting, &buffers);
	return counting.used;
}

static int examine(
	struct startup *startup, struct candidate *candidate, struct startup_error *error)
{
	const struct config_model *options = candidate->options;
	uint32_t limit = startup->config->max_seq_len;
	struct model_error model_error = {.text = ""};

	int r = model_config_load(options->dir, &candidate->config, &model_error);
	if (r < 0)
		return refuse(error, r, "model %s: %s", options->name, model_error.text);
	candidate->has_config = true;
	candidate->max_seq_len = candidate->config.max_seq_len;
	if (limit > 0 && limit < candidate->max_seq_len)
		candidate->max_seq_len = limit;
	r = choose_attention(startup, candidate, error);
	if (r == 0)
		r = resolve_mode(candidate, error);
	if (r < 0)
		return r;
	r = model_measure(options->dir, &candidate->config, candidate->max_seq_len,
		&candidate->memory->weights_bytes, &model_error);
	if (r < 0)
		return refuse(error, r, "model %s: %s", options->name, model_error.text);

	const struct kv_config kv = {
		.n_layers = candidate->config.n_layers,
		.n_kv_heads = candidate->config.n_kv_heads,
		.head_dim = candidate->config.head_dim,
		.page_tokens = startup->config->page_tokens,
		.dtype = startup->info.kv_dtype,
	};
	candidate->memory->page_bytes = kv_page_bytes(&kv);
	candidate->memory->pool_bytes = measure_pool(startup, &candidate->config);
	return 0;
}

/* ---- the memory budget ---- */

static int plan_memory(struct startup *startup, struct startup_error *error)
{
	const struct config *config = startup->config;
	const struct budget budget = {
		.memory = config->memory,
		.free_bytes = startup->info.free_bytes,
		.host = strcmp(startup->info.kind, "cpu") == 0,
	};

	for (uint32_t i = 0; i < config->n_models; i++) {
		struct budget_model *memory = &startup->memory[i];

		memory->name = config->models[i].name;
		memory->kv_pages = config->models[i].kv_pages;
		memory->kv_bytes = config->models[i].kv_bytes;
	}
	return budget_plan(
		&budget, startup->memory, config->n_models, error->text, sizeof(error->text));
}

/* ---- weights ---- */

struct progress {
	const char *name;
	uint64_t last_ns;
	bool terminal;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void on_progress(void *userdata, uint64_t done, uint64_t total)
{
	struct progress *progress = userdata;
	char done_text[TABLE_FORMAT_MAX], total_text[TABLE_FORMAT_MAX];
	uint64_t now = now_ns();

	if (now - progress->last_ns < (progress->terminal ? PROGRESS_TTY_NS : PROGRESS_NS))
		return;
	progress->last_ns = now;
	table_format_bytes(done_text, (double)done);
	table_format_bytes(total_text, (double)total);
	if (progress->terminal)
		fprintf(stderr, "\rmodel %s: %s of %s\033[K", progress->name, done_text,
			total_text);
	else
		log_info("model %s: read %s of %s", progress->name, done_text, total_text);
}

static int load(struct startup *startup, uint32_t index, struct startup_error *error)
{
	struct candidate *candidate = &startup->candidates[index];
	const char *name = candidate->options->name;
	struct progress progress = {
		.name = name,
		.last_ns = now_ns(),
		.terminal = isatty(STDERR_FILENO) && log_enabled(LOG_LEVEL_INFO),
	};
	struct model_error model_error = {.text = ""};
	struct model *model;
	char bytes[TABLE_FORMAT_MAX], seconds[TABLE_FORMAT_MAX];

	int r = model_load(startup->device, candidate->options->dir, &candidate->config,
		candidate->max_seq_len, on_progress, &progress, &model, &model_error);
	if (progress.terminal)
		fputs("\r\033[K", stderr);
	if (r != 0)
		return refuse(error, r, "model %s: %s", name, model_error.text);
	log_info("model %s: %s, %s of weights in %s (%s), attention %s, graph mode %s", name,
		candidate->config.architecture, table_format_bytes(bytes, (double)model->bytes),
		table_format_seconds(seconds, model->load_seconds), model->reader,
		candidate->attention->name, graph_mode_name(candidate->mode.resolved));

	struct engine_model_options *options = &startup->engine_options.models[index];
	*options = (struct engine_model_options){
		.model = model,
		.attention = candidate->attention,
		.support = candidate->support,
		.mode = candidate->mode,
		.max_seq_len = candidate->max_seq_len,
		.kv_pages = candidate->memory->kv_pages,
		.kv_bytes = candidate->memory->kv_bytes,
	};
	snprintf(options->name, sizeof(options->name), "%s", name);
	startup->engine_options.n_models = index + 1;
	return 0;
}

/* ---- the engine ---- */

static int make_engine(struct startup *startup, struct startup_error *error)
{
	const struct config *config = startup->config;
	struct engine_options *options = &startup->engine_options;
	struct model_error model_error = {.text = ""};

	options->device = startup->device;
	options->max_requests = config->max_requests;
	options->max_batch_tokens = config->max_batch_tokens;
	options->page_tokens = config->page_tokens;
	options->max_sequences = config->max_sequences;
	options->capture_sizes = config->n_capture_sizes > 0 ? config->capture_sizes : NULL;
	options->n_capture_sizes = config->n_capture_sizes;
	options->spin_us = config->spin_us;
	options->loop = config->loop[0] ? config->loop : NULL;

	int r = engine_new(options, &startup->engine, &model_error);
	/* the models went with it, whatever came of it */
	options->n_models = 0;
	if (r != 0)
		return refuse(error, r, "engine: %s", model_error.text);
	r = engine_start(startup->engine);
	if (r < 0)
		return refuse(error, r, "engine: its thread does not start: %s", strerror(-r));
	return 0;
}

/* ---- life ---- */

int startup_new(const struct config *config, struct startup **ret, struct startup_error *error)
{
	struct startup *startup = calloc(1, sizeof(*startup));
	if (!startup)
		return refuse(error, -ENOMEM, "out of memory");

	startup->config = config;
	startup->lock_fd = startup->admin_lock_fd = -1;
	raise_fd_limit();
	int r = take_locks(startup, error);
	if (r == 0)
		r = open_device(startup, error);
	for (uint32_t i = 0; i < config->n_models && r == 0; i++) {
		startup->candidates[i].options = &config->models[i];
		startup->candidates[i].memory = &startup->memory[i];
		r = examine(startup, &startup->candidates[i], error);
	}
	if (r == 0)
		r = plan_memory(startup, error);
	for (uint32_t i = 0; i < config->n_models && r == 0; i++)
		r = load(startup, i, error);
	if (r == 0)
		r = make_engine(startup, error);
	if (r < 0) {
		startup_free(startup);
		return r;
	}
	*ret = startup;
	return 0;
}

int startup_serve(struct startup *startup, bool *ret_abandoned)
{
	const struct config *config = startup->config;
	const struct serve_options options = {
		.engine = startup->engine,
		.socket = startup->socket,
		.device = startup->info.name,
		.loop = config->loop[0] ? config->loop : NULL,
		.max_sessions = config->max_sessions,
		.max_sessions_per_uid = config->max_sessions_per_uid,
		.max_entries = RING_ENTRIES_MAX,
		.max_arena_bytes = config->max_arena_bytes,
		.max_sequences = config->max_sequences,
		.max_requests = config->max_requests * config->n_models,
		.drain_timeout_s = config->drain_timeout_s,
	};
	struct serve *serve;

	*ret_abandoned = false;
	int r = serve_new(&options, &serve);
	if (r < 0) {
		log_error("cannot serve: %s", strerror(-r));
		return MIMEOD_EXIT_ERROR;
	}
	r = serve_run(serve);
	serve_free(serve);
	if (r < 0) {
		log_error("cannot serve on %s: %s", startup->socket, strerror(-r));
		*ret_abandoned = true;
		return MIMEOD_EXIT_ERROR;
	}
	*ret_abandoned = r & SERVE_ABANDONED;
	if (r & SERVE_DEVICE_LOST)
		return MIMEOD_EXIT_DEVICE_LOST;
	return *ret_abandoned ? MIMEOD_EXIT_ERROR : MIMEOD_EXIT_DONE;
}

void startup_free(struct startup *startup)
{
	if (!startup)
		return;
	engine_free(startup->engine);
	for (uint32_t i = 0; i < startup->engine_options.n_models; i++)
		model_free(startup->engine_options.models[i].model);
	for (uint32_t i = 0; i < startup->config->n_models; i++) {
		if (startup->candidates[i].has_config)
			model_config_deinit(&startup->candidates[i].config);
	}
	if (startup->device)
		startup->device->ops->free(startup->device);
	if (startup->admin_lock_fd >= 0)
		close(startup->admin_lock_fd);
	if (startup->lock_fd >= 0)
		close(startup->lock_fd);
	free(startup);
}
