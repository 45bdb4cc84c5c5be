/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/startup/activation.h"
#include "daemon/startup/interrupt.h"
#include "daemon/startup/loading.h"
#include "daemon/output/log.h"
#include "daemon/output/table_format.h"
#include "daemon/startup/progress.h"
#include "daemon/serve/serve.h"
#include "daemon/startup/startup_draft.h"
#include "daemon/startup/startup_load.h"
#include "daemon/startup/startup_model.h"
#include "daemon/startup/startup_monitor.h"
#include "daemon/startup/startup_reload.h"
#include "daemon/startup/startup_users.h"
#include "ipc/cleanup.h"
#include "ipc/clock.h"
#include "ipc/ring.h"
#include "ipc/socket.h"

_Static_assert(PROGRESS_TEXT_MAX == SERVE_PROGRESS_MAX, "operators see all of it");
_Static_assert(CONFIG_SESSIONS_MAX == ENGINE_SESSIONS_MAX, "the engine takes as many sessions");
_Static_assert(CONFIG_WEIGHT_MAX == ENGINE_WEIGHT_MAX, "as large weights");
_Static_assert(CONFIG_MODELS_MAX == ENGINE_MODELS_MAX, "the engine takes as many models");

struct startup {
	struct config own; /* a shallow copy, with what the device decides */
	const struct config *config;
	char socket[SOCKET_PATH_MAX], admin_socket[SOCKET_PATH_MAX];
	int lock_fd, admin_lock_fd;
	struct serve_listener clients, operators; /* passed to the daemon; loading takes them over */
	struct device *device;
	struct device_info info;
	struct startup_model models[CONFIG_MODELS_MAX];
	struct budget_model memory[CONFIG_MODELS_MAX];
	struct engine_options engine_options;
	struct engine *engine;
	struct builder *builder;
	struct loading *loading;
	struct weights weights;
	struct serve_options monitor; /* of these what startup_monitor sets */
	struct reload reload;
	uint64_t since_ns; /* of its start, by clock_ns */
	struct startup_loader loader;
};

DEFINE_CLEANUP(startup, struct startup, startup_free)

/* ---- sockets ---- */

/* The lock file that another user's daemon left cannot be opened. */
static bool startup_refuse_foreign_lock(const char *path, struct startup_error *error)
{
	char name[SOCKET_PATH_MAX + sizeof(SOCKET_LOCK_SUFFIX)];
	struct stat st;

	snprintf(name, sizeof(name), "%s%s", path, SOCKET_LOCK_SUFFIX);
	if (lstat(name, &st) < 0 || st.st_uid == geteuid())
		return false;
	startup_refuse(error, -EACCES,
		"%s: the lock file belongs to user %u: remove it if no daemon of that user runs, "
		"or choose another --socket",
		name, (unsigned)st.st_uid);
	return true;
}

static int startup_lock_socket(const char *path, bool passed, int *ret_fd, struct startup_error *error)
{
	int rc = passed ? socket_lock_passed(path, ret_fd) : socket_lock(path, ret_fd);

	if ((rc == -EACCES || rc == -EPERM) && startup_refuse_foreign_lock(path, error))
		return rc;
	if (rc == -ENOENT)
		return startup_refuse(error, rc,
			"%s: its directory does not exist: create it, or choose another --socket", path);
	if (rc == -EADDRINUSE) {
		pid_t pid = socket_lock_owner(path);
		char owner[32] = "";

		if (pid > 0)
			snprintf(owner, sizeof(owner), " (pid %d)", (int)pid);
		return startup_refuse(error, rc,
			"%s: another daemon%s uses this socket: stop it, or choose another --socket",
			path, owner);
	}
	if (rc < 0)
		return startup_refuse(
			error, rc, "%s: cannot create the socket: %s", path, strerror(-rc));
	return 0;
}

static int startup_lock_sockets(struct startup *startup, struct startup_error *error)
{
	const char *path = startup->config->socket[0] ? startup->config->socket : NULL;

	int rc = socket_path(startup->socket, path);
	if (!rc)
		rc = socket_admin_path(startup->admin_socket, startup->socket);
	if (rc < 0)
		return startup_refuse(error, rc,
			"%s: too long for a socket: at most %d bytes with -admin",
			startup->socket[0] ? startup->socket : "$MIMEO_SOCKET or $XDG_RUNTIME_DIR",
			SOCKET_PATH_MAX - 1);
	rc = socket_folder_make(startup->socket);
	if (rc < 0)
		return startup_refuse(error, rc, "%s: its directory cannot be created: %s",
			startup->socket, strerror(-rc));
	rc = activation_take(startup->socket, startup->admin_socket, &startup->clients, &startup->operators, error);
	if (rc < 0)
		return rc;
	rc = startup_lock_socket(startup->socket, startup->clients.fd >= 0, &startup->lock_fd, error);
	if (rc < 0)
		return rc;
	return startup_lock_socket(startup->admin_socket, startup->operators.fd >= 0, &startup->admin_lock_fd, error);
}

/* A session needs five descriptors; the soft limit is often 1024. */
static void startup_raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int startup_open_device(struct startup *startup, struct startup_error *error)
{
	struct device_options options = {.spin_us = startup->config->spin_us};
	const char *name = startup->config->device;

	int rc = device_open(name, &options, &startup->device);
	if (rc == -ENODEV)
		return startup_refuse(error, rc, "device %s: this machine has no such device", name);
	if (rc == -ENOTSUP)
		return startup_refuse(error, rc,
			"device %s: this build has no CUDA device: build with meson setup "
			"-Dcuda=enabled, or use --device cpu",
			name);
	if (rc != 0)
		return startup_refuse(error, rc, "device %s: %s", name, device_strerror(rc));
	rc = startup->device->ops->info(startup->device, &startup->info);
	if (rc != 0)
		return startup_refuse(error, rc, "device %s: %s", name, device_strerror(rc));
	if (startup->info.advice)
		log_warn("device %s: %s", startup->info.name, startup->info.advice);
	return 0;
}

/* ---- the models ---- */

static int startup_plan_memory(struct startup *startup, struct startup_error *error)
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

static int startup_examine_model(
	struct startup *startup, struct startup_model *model, struct startup_error *error)
{
	int rc = startup_model_examine(model, startup->config, &startup->info, error);
	if (rc < 0)
		return rc;
	rc = startup_draft_examine(model, startup->config, startup->device, &startup->info, error);
	if (rc < 0)
		return rc;
	return startup_model_measure(model, &startup->info, &startup->engine_options, error);
}

/* Examine all models and plan their memory before the weights of the first one are read. */
static int startup_load_models(struct startup *startup, struct startup_error *error)
{
	const struct config *config = startup->config;
	struct engine_options *engine = &startup->engine_options;
	int rc;

	assert(config->n_models > 0 && config->n_models <= CONFIG_MODELS_MAX);
	for (uint32_t i = 0; i < config->n_models; i++) {
		startup->models[i].options = &config->models[i];
		startup->models[i].memory = &startup->memory[i];
		rc = startup_examine_model(startup, &startup->models[i], error);
		if (rc < 0)
			return rc;
	}
	rc = startup_plan_memory(startup, error);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < config->n_models; i++) {
		assert(startup->memory[i].kv_pages > 0);
		rc = startup_model_limit(&startup->models[i], config, error);
		if (rc < 0)
			return rc;
	}
	for (uint32_t i = 0; i < config->n_models; i++) {
		rc = startup_model_load(
			&startup->models[i], startup->device, &engine->models[i], error);
		if (rc < 0)
			return rc;
		engine->n_models = i + 1; /* startup_free releases it */
		rc = startup_draft_load(&startup->models[i], &engine->models[i], error);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- the engine ---- */

static void startup_on_progress(void *userdata, const struct engine_progress *engine)
{
	char text[256];

	if (!progress_due(userdata))
		return;
	snprintf(text, sizeof(text), "model %s: %s %u of %u %s", engine->model,
		engine->capture ? "captured" : "warmed up", engine->done, engine->total,
		engine->capture ? "graphs" : "shapes");
	progress_show(userdata, text);
}

static void startup_set_engine_options(struct startup *startup)
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
	options->prefix_sharing = strcmp(config->prefix_sharing, "none") == 0 ? ENGINE_PREFIX_NONE
		: strcmp(config->prefix_sharing, "all") == 0 ? ENGINE_PREFIX_ALL : ENGINE_PREFIX_USER;
	options->token_us = config->token_us;
	options->spin_us = config->spin_us;
	options->loop = config->loop[0] ? config->loop : NULL;
}

/* Whether a graph of any model was captured. */
static bool startup_captured(const struct startup *startup)
{
	struct engine_model_facts facts;
	bool captured = false;

	for (uint32_t i = 0; i < engine_n_models(startup->engine); i++) {
		engine_model_facts(startup->engine, i, &facts);
		captured |= facts.n_ready > 0;
	}
	return captured;
}

static int startup_make_engine(struct startup *startup, struct startup_error *error)
{
	struct engine_options *options = &startup->engine_options;
	char seconds[TABLE_FORMAT_MAX];
	struct progress progress;
	struct model_error model_error = {.text = ""};

	const uint64_t since_ns = clock_ns();
	progress_begin(&progress, "warming up");
	options->progress = startup_on_progress;
	options->progress_userdata = &progress;
	int rc = engine_new(options, &startup->engine, &model_error);
	progress_end(&progress);
	/* engine_new takes the models, on failure too. */
	options->n_models = 0;
	if (rc != 0)
		return startup_refuse(error, rc, "engine: %s", model_error.text);
	log_info("%s took %s", startup_captured(startup) ? "warm-up and capture" : "warm-up",
		table_format_seconds(seconds, (double)(clock_ns() - since_ns) * 1e-9));
	rc = builder_new(startup->device, &engine_stats(startup->engine)->n_in_lane,
		&startup->builder);
	if (rc < 0)
		return startup_refuse(
			error, rc, "the builder's thread does not start: %s", strerror(-rc));
	rc = engine_start(startup->engine, startup->builder);
	if (rc < 0)
		return startup_refuse(
			error, rc, "the engine's thread does not start: %s", strerror(-rc));
	return 0;
}

/* From now on clients can wait, and operators see what is loaded. */
static int startup_bind(struct startup *startup, struct startup_error *error)
{
	const struct loading_options options = {
		.socket = startup->socket,
		.admin_socket = startup->admin_socket,
		.device = startup->info.name,
		.n_models = startup->config->n_models,
		.since_ns = startup->since_ns,
		.clients = startup->clients,
		.operators = startup->operators,
	};

	int rc = loading_new(&options, &startup->loading);
	return rc < 0 ? startup_refuse(error, rc, "%s: cannot listen: %s", startup->socket, strerror(-rc))
		      : 0;
}

/* 256 slots and 2048 tokens take some 200 MB of activations and inputs; a draft model's logits half a gigabyte. */
static void startup_choose_steps(struct startup *startup)
{
	const bool large = strcmp(startup->info.kind, "cuda") == 0 &&
		startup->info.total_bytes >= 32ull << 30;
	const uint32_t slots = large ? 256 : 64, tokens = large ? 2048 : 512;
	struct config *own = &startup->own;

	if (!own->max_batch_tokens)
		own->max_batch_tokens = tokens > own->max_requests ? tokens : own->max_requests;
	if (!own->max_requests)
		own->max_requests = slots < own->max_batch_tokens ? slots : own->max_batch_tokens;
}

static int startup_run(struct startup *startup, struct startup_error *error)
{
	int rc = startup_find_users(startup->config, &startup->weights, error);
	if (rc < 0)
		return rc;
	rc = startup_lock_sockets(startup, error);
	if (rc < 0)
		return rc;
	rc = startup_monitor(startup->config, startup->socket, &startup->monitor, error);
	if (rc < 0)
		return rc;
	rc = startup_open_device(startup, error);
	if (rc < 0)
		return rc;
	startup_choose_steps(startup);
	rc = startup_bind(startup, error);
	if (rc < 0)
		return rc;
	startup_set_engine_options(startup);
	rc = startup_load_models(startup, error);
	if (rc < 0)
		return rc;
	return startup_make_engine(startup, error);
}

int startup_new(const struct config *config, struct startup **ret, struct startup_error *error)
{
	CLEANUP(cleanup_startup) struct startup *startup = calloc(1, sizeof(*startup));

	if (!startup)
		return startup_refuse(error, -ENOMEM, "out of memory");
	startup->since_ns = clock_ns();
	startup->own = *config;
	startup->config = &startup->own;
	startup->reload.in_force = *config;
	startup->lock_fd = startup->admin_lock_fd = -1;
	startup_raise_fd_limit();
	int rc = startup_run(startup, error);
	if (rc < 0)
		return rc;
	startup->reload.engine = startup->engine;
	startup->loader.config = startup->config;
	startup->loader.engine = startup->engine;
	startup->loader.device = startup->device;
	startup->loader.engine_options = &startup->engine_options;
	*ret = STEAL(startup);
	return 0;
}

void startup_allow_reload(struct startup *startup, int argc, char **argv, const char *default_config)
{
	startup->reload.argc = argc;
	startup->reload.argv = argv;
	startup->reload.default_config = default_config;
	startup->loader.argc = argc;
	startup->loader.argv = argv;
	startup->loader.default_config = default_config;
}

int startup_serve(struct startup *startup, bool *ret_abandoned)
{
	const struct config *config = startup->config;
	struct serve_options options = {
		.engine = startup->engine,
		.builder = startup->builder,
		.started_ms = (int64_t)(startup->since_ns / 1000000),
		.device_kind = startup->info.kind,
		.reload = startup->reload.argv ? startup_reload : NULL,
		.reload_userdata = &startup->reload,
		.loader = {startup_load_begin, startup_load_run, progress_text, &startup->loader},
		.socket = startup->socket,
		.device = startup->info.name,
		.monitored = startup->monitor.monitored,
		.monitor_gid = startup->monitor.monitor_gid,
		.metrics_fd = startup->monitor.metrics_fd,
		.buffer_granularity = startup->info.export_granularity,
		.loop = config->loop[0] ? config->loop : NULL,
		.max_entries = RING_ENTRIES_MAX,
		.max_sequences = config->max_sequences,
	};
	struct serve_listener clients, operators;
	struct serve *serve;

	assert(startup->engine && startup->builder && startup->lock_fd >= 0);
	*ret_abandoned = false;
	startup_set_limits(config, &startup->weights, &options);
	memcpy(options.device_uuid, startup->info.uuid, sizeof(options.device_uuid));
	loading_end(startup->loading, &clients, &operators);
	options.clients = &clients;
	options.operators = &operators;
	startup->monitor.metrics_fd = 0;
	int rc = serve_new(&options, &serve);
	interrupt_disarm();
	if (rc < 0) {
		log_error("cannot serve: %s", strerror(-rc));
		return MIMEOD_EXIT_ERROR;
	}
	rc = serve_run(serve);
	serve_free(serve);
	if (rc < 0) {
		log_error("cannot serve on %s: %s", startup->socket, strerror(-rc));
		*ret_abandoned = true;
		return MIMEOD_EXIT_ERROR;
	}
	*ret_abandoned = rc & (SERVE_ABANDONED | SERVE_LOADING);
	rc &= ~SERVE_LOADING;
	if (rc & SERVE_DEVICE_LOST)
		return MIMEOD_EXIT_DEVICE_LOST;
	if (rc & SERVE_CUT_OFF)
		return MIMEOD_EXIT_CUT_OFF;
	return rc == SERVE_DRAINED ? MIMEOD_EXIT_DONE : MIMEOD_EXIT_ERROR;
}

void startup_free(struct startup *startup)
{
	if (!startup)
		return;
	loading_free(startup->loading);
	if (startup->monitor.metrics_fd)
		close(startup->monitor.metrics_fd);
	/* Stopped first: then it posts nothing more to the builder, and its last step has completed. */
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
