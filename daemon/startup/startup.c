/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/startup/interrupt.h"
#include "daemon/output/log.h"
#include "daemon/startup/progress.h"
#include "daemon/serve/serve.h"
#include "daemon/startup/startup_model.h"
#include "ipc/ring.h"
#include "ipc/socket.h"

_Static_assert(CONFIG_SESSIONS_MAX == ENGINE_SESSIONS_MAX, "the engine has a place for each session");
_Static_assert(CONFIG_MODELS_MAX == ENGINE_MODELS_MAX, "the engine has a place for each model");

struct startup {
	const struct config *config;
	char socket[SOCKET_PATH_MAX], admin_socket[SOCKET_PATH_MAX];
	int lock_fd, admin_lock_fd;
	struct device *device;
	struct device_info info;
	struct startup_model models[CONFIG_MODELS_MAX];
	struct budget_model memory[CONFIG_MODELS_MAX];
	struct engine_options engine_options;
	struct engine *engine;
	struct builder *builder;
};

/* ---- the sockets' places ---- */

/* A lock file that another user's daemon left behind cannot be opened. */
static bool refuse_strangers_lock(const char *path, struct startup_error *error)
{
	char name[SOCKET_PATH_MAX + sizeof(SOCKET_LOCK_SUFFIX)];
	struct stat st;

	snprintf(name, sizeof(name), "%s%s", path, SOCKET_LOCK_SUFFIX);
	if (lstat(name, &st) < 0 || st.st_uid == geteuid())
		return false;
	startup_refuse(error, -EACCES,
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
		return startup_refuse(error, r,
			"%s: its folder does not exist: make it, or choose another --socket", path);
	if (r == -EADDRINUSE)
		return startup_refuse(error, r,
			"%s: another daemon serves there: end it, or choose another --socket",
			path);
	if (r < 0)
		return startup_refuse(
			error, r, "%s: cannot make a socket there: %s", path, strerror(-r));
	return 0;
}

static int take_locks(struct startup *startup, struct startup_error *error)
{
	const char *path = startup->config->socket[0] ? startup->config->socket : NULL;

	int r = socket_path(startup->socket, path);
	if (r == 0)
		r = socket_admin_path(startup->admin_socket, startup->socket);
	if (r < 0)
		return startup_refuse(error, r,
			"%s: too long for a socket: with -admin at most %d bytes",
			startup->socket[0] ? startup->socket : "$MIMEO_SOCKET or $XDG_RUNTIME_DIR",
			SOCKET_PATH_MAX - 1);
	r = socket_folder_make(startup->socket);
	if (r < 0)
		return startup_refuse(error, r, "%s: its folder cannot be made: %s",
			startup->socket, strerror(-r));
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
		return startup_refuse(error, r, "device %s: there is none on this machine", name);
	if (r == -ENOTSUP)
		return startup_refuse(error, r,
			"device %s: this build has no CUDA device: use a build that has it, which "
			"meson setup -Dcuda=enabled makes where the version can, or --device cpu",
			name);
	if (r != 0)
		return startup_refuse(error, r, "device %s: %s", name, device_strerror(r));
	r = startup->device->ops->info(startup->device, &startup->info);
	if (r != 0)
		return startup_refuse(error, r, "device %s: %s", name, device_strerror(r));
	return 0;
}

/* ---- the models ---- */

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

/* Of all of them what is cheap, then their weights. */
static int take_models(struct startup *startup, struct startup_error *error)
{
	const struct config *config = startup->config;
	struct engine_options *engine = &startup->engine_options;
	int r = 0;

	for (uint32_t i = 0; i < config->n_models && r == 0; i++) {
		startup->models[i].options = &config->models[i];
		startup->models[i].memory = &startup->memory[i];
		r = startup_model_examine(
			&startup->models[i], config, &startup->info, engine, error);
	}
	if (r == 0)
		r = plan_memory(startup, error);
	for (uint32_t i = 0; i < config->n_models && r == 0; i++)
		startup_model_cut(&startup->models[i], config->page_tokens);
	for (uint32_t i = 0; i < config->n_models && r == 0; i++) {
		r = startup_model_load(
			&startup->models[i], startup->device, &engine->models[i], error);
		if (r == 0)
			engine->n_models = i + 1;
	}
	return r;
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
	options->lazy_capture = strcmp(config->capture, "lazy") == 0;
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
		return startup_refuse(error, r, "engine: %s", model_error.text);
	r = builder_new(startup->device, &engine_stats(startup->engine)->n_in_lane,
		&startup->builder);
	if (r < 0)
		return startup_refuse(
			error, r, "builder: its thread does not start: %s", strerror(-r));
	r = engine_start(startup->engine, startup->builder);
	if (r < 0)
		return startup_refuse(
			error, r, "engine: its thread does not start: %s", strerror(-r));
	return 0;
}

/* ---- life ---- */

int startup_new(const struct config *config, struct startup **ret, struct startup_error *error)
{
	struct startup *startup = calloc(1, sizeof(*startup));
	if (!startup)
		return startup_refuse(error, -ENOMEM, "out of memory");

	startup->config = config;
	startup->lock_fd = startup->admin_lock_fd = -1;
	raise_fd_limit();
	int r = take_locks(startup, error);
	if (r == 0)
		r = open_device(startup, error);
	if (r == 0)
		set_engine_options(startup);
	if (r == 0)
		r = take_models(startup, error);
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
	/* The engine hands over no more, and has no session: its last step is read. */
	engine_stop(startup->engine);
	builder_free(startup->builder);
	engine_free(startup->engine);
	for (uint32_t i = 0; i < startup->engine_options.n_models; i++)
		engine_model_options_deinit(&startup->engine_options.models[i]);
	for (uint32_t i = 0; i < startup->config->n_models; i++)
		startup_model_deinit(&startup->models[i]);
	if (startup->device)
		startup->device->ops->free(startup->device);
	socket_unlock(startup->admin_socket, startup->admin_lock_fd);
	socket_unlock(startup->socket, startup->lock_fd);
	free(startup);
}
