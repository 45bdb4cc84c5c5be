/* SPDX-License-Identifier: MIT */
#include "daemon/startup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attention/attention.h"
#include "attention/kv_cache.h"
#include "daemon/budget.h"
#include "daemon/engine/engine.h"
#include "daemon/interrupt.h"
#include "daemon/log.h"
#include "daemon/model/model.h"
#include "daemon/progress.h"
#include "daemon/serve/serve.h"
#include "daemon/table_format.h"
#include "ipc/ring.h"
#include "ipc/socket.h"

_Static_assert(CONFIG_SESSIONS_MAX == ENGINE_SESSIONS_MAX, "the engine has a place for each session");
_Static_assert(CONFIG_MODELS_MAX == ENGINE_MODELS_MAX, "the engine has a place for each model");

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
	struct builder *builder;
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

/* A lock file that another user's daemon left behind cannot be opened. */
static bool refuse_strangers_lock(const char *path, struct startup_error *error)
{
	char name[SOCKET_PATH_MAX + sizeof(SOCKET_LOCK_SUFFIX)];
	struct stat st;

	snprintf(name, sizeof(name), "%s%s", path, SOCKET_LOCK_SUFFIX);
	if (lstat(name, &st) < 0 || st.st_uid == geteuid())
		return false;
	refuse(error, -EACCES,
		"%s: the lock file belongs to user %u: remove it if no daemon of theirs serves "
		"there, or choose another --socket",
		name, (unsigned)st.st_uid);
	return true;
}

static int lock_one(const char *path, int *ret_fd, struct startup_error *error)
{
	int r = socket_lock(path, ret_fd);

	if ((r == -EACCES || r == -EPERM) && refuse_strangers_lock(path, error))
		return r;
	if (r == -ENOENT)
		return refuse(error, r,
			"%s: its folder does not exist: make it, or choose another --socket", path);
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
	r = socket_folder_make(startup->socket);
	if (r < 0)
		return refuse(error, r, "%s: its folder cannot be made: %s", startup->socket,
			strerror(-r));
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
		return refuse(error, r,
			"device %s: this build has no CUDA device: use a build that has it, which "
			"meson setup -Dcuda=enabled makes where the version can, or --device cpu",
			name);
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
	struct attention_config attention = model_attention(&candidate->config, &startup->info);
	char why[256] = "";

	attention.page_tokens = config->page_tokens;
	attention.max_rows = config->max_requests;
	attention.max_tokens = config->max_batch_tokens;
	attention.max_pages =
		(candidate->max_seq_len + config->page_tokens - 1) / config->page_tokens;
	attention.max_seq_len = candidate->max_seq_len;
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

static bool on_host(const struct startup *startup)
{
	return strcmp(startup->info.kind, "cpu") == 0;
}

/* What the engine will allocate beside weights and pages; on the host the pinned part as well. */
static int measure(const struct startup *startup, struct candidate *candidate,
	struct startup_error *error)
{
	struct engine_needs needs;

	int r = engine_measure(&startup->engine_options, &candidate->config,
		candidate->max_seq_len, startup->info.activation_dtype, &needs);
	if (r < 0)
		return refuse(error, r,
			"model %s: its inputs exceed any memory: lower --max-seq-len or "
			"--max-requests",
			candidate->options->name);
	candidate->memory->pool_bytes = needs.pool_bytes + needs.inputs_bytes +
		(on_host(startup) ? needs.pinned_bytes : 0);
	return 0;
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
	if (limit > candidate->max_seq_len)
		log_warn("model %s: max_seq_len %u is more than the model allows: %u is used",
			options->name, limit, candidate->max_seq_len);
	else if (limit > 0)
		candidate->max_seq_len = limit;
	r = choose_attention(startup, candidate, error);
	if (r == 0)
		r = resolve_mode(candidate, error);
	if (r < 0)
		return r;
	r = model_measure(options->dir, &candidate->config, candidate->max_seq_len,
		startup->info.activation_dtype, &candidate->memory->weights_bytes, &model_error);
	if (r < 0)
		return refuse(error, r, "model %s: %s", options->name, model_error.text);

	const struct kv_config kv =
		model_kv(&candidate->config, &startup->info, startup->config->page_tokens);
	candidate->memory->page_bytes = kv_page_bytes(&kv);
	return measure(startup, candidate, error);
}

/* ---- the memory budget ---- */

static int plan_memory(struct startup *startup, struct startup_error *error)
{
	const struct config *config = startup->config;
	const struct budget budget = {
		.memory = config->memory,
		.free_bytes = startup->info.free_bytes,
		.host = on_host(startup),
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

/* A sequence cannot be longer than all pages together, and clients are told so. */
static void limit_length(const struct startup *startup, struct candidate *candidate)
{
	uint64_t most = (uint64_t)candidate->memory->kv_pages * startup->config->page_tokens;

	if (most >= candidate->max_seq_len)
		return;
	log_warn("model %s: its KV cache of %u pages fits sequences of %u tokens at most, not %u: "
		 "see --kv-pages, --kv-bytes and --max-seq-len",
		candidate->options->name, candidate->memory->kv_pages, (uint32_t)most,
		candidate->max_seq_len);
	candidate->max_seq_len = (uint32_t)most;
}

/* ---- weights ---- */

struct loading {
	const char *name;
	struct progress progress;
};

static void on_load(void *userdata, uint64_t done, uint64_t total)
{
	struct loading *loading = userdata;
	char done_text[TABLE_FORMAT_MAX], total_text[TABLE_FORMAT_MAX], text[256];

	if (!progress_due(&loading->progress))
		return;
	snprintf(text, sizeof(text), "model %s: read %s of %s", loading->name,
		table_format_bytes(done_text, (double)done),
		table_format_bytes(total_text, (double)total));
	progress_show(&loading->progress, text);
}

static int load(struct startup *startup, uint32_t index, struct startup_error *error)
{
	struct candidate *candidate = &startup->candidates[index];
	const char *name = candidate->options->name;
	struct loading loading = {.name = name};
	struct model_error model_error = {.text = ""};
	struct model *model;
	char bytes[TABLE_FORMAT_MAX], seconds[TABLE_FORMAT_MAX];

	progress_begin(&loading.progress);
	int r = model_load(startup->device, candidate->options->dir, &candidate->config,
		candidate->max_seq_len, on_load, &loading, &model, &model_error);
	progress_end(&loading.progress);
	if (r != 0)
		return refuse(error, r, "model %s: %s", name, model_error.text);
	log_info("model %s: %s, %s of weights in %s (%s, %.2f GB/s), attention %s, graph mode %s",
		name, candidate->config.architecture,
		table_format_bytes(bytes, (double)model->bytes),
		table_format_seconds(seconds, model->load_seconds), model->reader,
		(double)model->file_bytes * 1e-9 / model->load_seconds,
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

static void on_engine(void *userdata, const struct engine_progress *engine)
{
	char text[256];

	if (!progress_due(userdata))
		return;
	snprintf(text, sizeof(text), "model %s: %s %u of %u %s", engine->model,
		engine->capture ? "captured" : "warmed up", engine->done, engine->total,
		engine->capture ? "graphs" : "shapes");
	progress_show(userdata, text);
}

static void set_engine_options(struct startup *startup)
{
	const struct config *config = startup->config;
	struct engine_options *options = &startup->engine_options;

	options->device = startup->device;
	options->max_requests = config->max_requests;
	options->max_batch_tokens = config->max_batch_tokens;
	options->page_tokens = config->page_tokens;
	options->max_sequences = config->max_sequences;
	options->capture_sizes = config->n_capture_sizes > 0 ? config->capture_sizes : NULL;
	options->n_capture_sizes = config->n_capture_sizes;
	options->spin_us = config->spin_us;
	options->loop = config->loop[0] ? config->loop : NULL;
}

static int make_engine(struct startup *startup, struct startup_error *error)
{
	struct engine_options *options = &startup->engine_options;
	struct progress progress;
	struct model_error model_error = {.text = ""};

	progress_begin(&progress);
	options->progress = on_engine;
	options->progress_userdata = &progress;
	int r = engine_new(options, &startup->engine, &model_error);
	progress_end(&progress);
	/* the models went with it, whatever came of it */
	options->n_models = 0;
	if (r != 0)
		return refuse(error, r, "engine: %s", model_error.text);
	r = builder_new(startup->device, &engine_stats(startup->engine)->n_in_lane,
		&startup->builder);
	if (r < 0)
		return refuse(error, r, "builder: its thread does not start: %s", strerror(-r));
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
	if (r == 0)
		set_engine_options(startup);
	for (uint32_t i = 0; i < config->n_models && r == 0; i++) {
		startup->candidates[i].options = &config->models[i];
		startup->candidates[i].memory = &startup->memory[i];
		r = examine(startup, &startup->candidates[i], error);
	}
	if (r == 0)
		r = plan_memory(startup, error);
	for (uint32_t i = 0; i < config->n_models && r == 0; i++)
		limit_length(startup, &startup->candidates[i]);
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

static enum serve_client_ipc client_ipc(const char *text)
{
	if (strcmp(text, "same-uid") == 0)
		return SERVE_CLIENT_IPC_SAME_UID;
	return strcmp(text, "yes") == 0 ? SERVE_CLIENT_IPC_YES : SERVE_CLIENT_IPC_NO;
}

int startup_serve(struct startup *startup, bool *ret_abandoned)
{
	const struct config *config = startup->config;
	struct serve_options options = {
		.engine = startup->engine,
		.builder = startup->builder,
		.device_kind = startup->info.kind,
		.max_client_buffers = config->max_client_buffers,
		.max_client_buffer_bytes = config->max_client_buffer_bytes,
		.max_buffer_bytes = config->max_buffer_bytes,
		.allow_client_ipc = client_ipc(config->allow_client_ipc),
		.socket = startup->socket,
		.device = startup->info.name,
		.buffer_granularity = startup->info.export_granularity,
		.loop = config->loop[0] ? config->loop : NULL,
		.max_sessions = config->max_sessions,
		.max_sessions_per_uid = config->max_sessions_per_uid,
		.max_entries = RING_ENTRIES_MAX,
		.max_arena_bytes = config->max_arena_bytes,
		.max_shared_bytes = config->max_shared_bytes,
		.max_sequences = config->max_sequences,
		.max_requests = config->max_requests * config->n_models,
		.drain_timeout_s = config->drain_timeout_s,
	};
	struct serve *serve;

	*ret_abandoned = false;
	memcpy(options.device_uuid, startup->info.uuid, sizeof(options.device_uuid));
	int r = serve_new(&options, &serve);
	interrupt_disarm();
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
	return r == SERVE_DRAINED ? MIMEOD_EXIT_DONE : MIMEOD_EXIT_ERROR;
}

void startup_free(struct startup *startup)
{
	if (!startup)
		return;
	/* The engine's last step is read: it has no session any more. */
	builder_free(startup->builder);
	engine_free(startup->engine);
	for (uint32_t i = 0; i < startup->engine_options.n_models; i++)
		model_free(startup->engine_options.models[i].model);
	for (uint32_t i = 0; i < startup->config->n_models; i++) {
		if (startup->candidates[i].has_config)
			model_config_deinit(&startup->candidates[i].config);
	}
	if (startup->device)
		startup->device->ops->free(startup->device);
	socket_unlock(startup->admin_socket, startup->admin_lock_fd);
	socket_unlock(startup->socket, startup->lock_fd);
	free(startup);
}
