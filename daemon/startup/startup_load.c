/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/options.h"
#include "daemon/startup/budget.h"
#include "daemon/startup/progress.h"
#include "daemon/startup/startup_draft.h"
#include "daemon/startup/startup_model.h"
#include "ipc/cleanup.h"

#define LOAD_ARGUMENTS_MAX (2 * CONFIG_N_KEYS)

/* From startup_load_begin to startup_load_run. */
struct load_job {
	struct config config;             /* as a start would read it now */
	const struct config_model *model; /* in it */
	uint64_t used_bytes;              /* of the device, by the models served */
};

static void load_job_free(struct load_job *job)
{
	if (!job)
		return;
	config_deinit(&job->config);
	free(job);
}

DEFINE_CLEANUP(load_job, struct load_job, load_job_free)

/* ---- what is asked for: on the loop thread ---- */

/* mimeod's arguments, and behind them those of the order: "--model", "NAME=DIR", "--kv-pages", "NAME=100" ... */
struct load_arguments {
	char **argv; /* [argc], NULL at the end */
	int argc, n_own;
};

static void load_arguments_deinit(struct load_arguments *arguments)
{
	for (int i = arguments->n_own; i < arguments->argc; i++)
		free(arguments->argv[i]);
	free(arguments->argv);
}

static int load_add_argument(struct load_arguments *arguments, const char *option, int option_length, const char *name,
	const char *value, int value_length)
{
	char *made = NULL;

	if (asprintf(&made, "--%.*s", option_length, option) < 0)
		return -ENOMEM;
	for (char *at = made; (at = strchr(at, '_')); at++)
		*at = '-';
	arguments->argv[arguments->argc++] = made;
	if (asprintf(&made, "%s=%.*s", name, value_length, value) < 0)
		return -ENOMEM;
	arguments->argv[arguments->argc++] = made;
	return 0;
}

static bool load_is_key(const char *name, size_t length)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (config_keys[i].per_model && strlen(config_keys[i].name) == length &&
			strncmp(config_keys[i].name, name, length) == 0)
			return true;
	}
	return false;
}

/* "kv_pages=100", a line each. */
static int load_add_settings(struct load_arguments *arguments, const char *name, const char *settings, char *text,
	size_t size)
{
	while (*settings) {
		const size_t length = strcspn(settings, "\n"), key = strcspn(settings, "=\n");

		if (key == length || !load_is_key(settings, key)) {
			snprintf(text, size, "\"%.*s\" is no setting of a model: see [model NAME] in mimeod.conf(5)",
				(int)(length < 100 ? length : 100), settings);
			return -EINVAL;
		}
		if (arguments->argc - arguments->n_own > LOAD_ARGUMENTS_MAX) {
			snprintf(text, size, "too many settings");
			return -EINVAL;
		}
		int rc = load_add_argument(arguments, settings, (int)key, name, settings + key + 1,
			(int)(length - key - 1));
		if (rc < 0)
			return rc;
		settings += length + (settings[length] == '\n');
	}
	return 0;
}

static int load_make_arguments(const struct startup_loader *loader, const char *name, const char *path,
	const char *settings, struct load_arguments *ret, char *text, size_t size)
{
	ret->argv = calloc((size_t)loader->argc + LOAD_ARGUMENTS_MAX + 6, sizeof(*ret->argv));
	if (!ret->argv)
		return -ENOMEM;
	memcpy(ret->argv, loader->argv, (size_t)loader->argc * sizeof(*ret->argv));
	ret->argc = ret->n_own = loader->argc;
	int rc = path ? load_add_argument(ret, "model", 5, name, path, (int)strlen(path)) : 0;
	return rc < 0 ? rc : load_add_settings(ret, name, settings, text, size);
}

static uint64_t load_used_bytes(const struct engine *engine)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < engine_n_models(engine); i++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, i, &facts);
		bytes += facts.weights_bytes + facts.kv_bytes + facts.pool_bytes;
	}
	return bytes;
}

static int load_read_config(const struct startup_loader *loader, const char *name, const char *path,
	const char *settings, struct load_job *job, char *text, size_t size)
{
	CLEANUP(load_arguments_deinit) struct load_arguments arguments = {0};
	struct config_error error;

	int rc = load_make_arguments(loader, name, path, settings, &arguments, text, size);
	if (rc < 0)
		return rc;
	rc = options_parse(arguments.argc, arguments.argv, loader->default_config, stderr, &job->config, &error);
	if (rc != 0) {
		snprintf(text, size, "%.*s", (int)strcspn(error.text, "\n"), error.text);
		return rc < 0 ? rc : -EINVAL;
	}
	for (uint32_t i = 0; i < job->config.n_models && !job->model; i++) {
		if (strcmp(job->config.models[i].name, name) == 0)
			job->model = &job->config.models[i];
	}
	if (job->model)
		return 0;
	snprintf(text, size, "the configuration has no model %s: name its directory, %s=DIR", name, name);
	return -ENOENT;
}

int startup_load_begin(void *userdata, const char *name, const char *path, const char *settings, void **ret_job,
	char *text, size_t size)
{
	const struct startup_loader *loader = userdata;
	CLEANUP(cleanup_load_job) struct load_job *job = calloc(1, sizeof(*job));

	snprintf(text, size, "out of host memory");
	if (!job)
		return -ENOMEM;
	if (!loader->argv) {
		snprintf(text, size, "there is no configuration to read");
		return -ENOTSUP;
	}
	int rc = load_read_config(loader, name, path, settings, job, text, size);
	if (rc < 0)
		return rc;
	job->used_bytes = load_used_bytes(loader->engine);
	*ret_job = STEAL(job);
	return 0;
}

/* ---- the work: on the loader's thread ---- */

static int load_plan_memory(const struct startup_loader *loader, const struct load_job *job,
	const struct device_info *info, struct budget_model *memory, struct startup_error *error)
{
	const uint64_t limit = loader->config->memory;
	const struct budget budget = {
		/* 1: nothing is left; 0 would be no limit */
		.memory = !limit ? 0 : limit > job->used_bytes ? limit - job->used_bytes : 1,
		.free_bytes = info->free_bytes,
		.host = strcmp(info->kind, "cpu") == 0,
	};

	memory->name = job->model->name;
	memory->kv_pages = job->model->kv_pages;
	memory->kv_bytes = job->model->kv_bytes;
	return budget_plan(&budget, memory, 1, error->text, sizeof(error->text));
}

/* All that can be refused before weights are read. */
static int load_examine(const struct startup_loader *loader, const struct load_job *job, struct startup_model *model,
	struct startup_error *error)
{
	struct device_info info;

	int rc = loader->device->ops->info(loader->device, &info);
	if (rc != 0)
		return startup_refuse(error, rc, "device: %s", device_strerror(rc));
	rc = startup_model_examine(model, loader->config, &info, error);
	if (rc < 0)
		return rc;
	rc = startup_draft_examine(model, loader->config, loader->device, &info, error);
	if (rc < 0)
		return rc;
	rc = startup_model_measure(model, &info, loader->engine_options, error);
	if (rc < 0)
		return rc;
	rc = load_plan_memory(loader, job, &info, model->memory, error);
	if (rc < 0)
		return rc;
	return startup_model_limit(model, loader->config, error);
}

/* What operators see until something has more to say. */
static void load_begin_stage(const struct startup_model *model, const char *stage)
{
	char text[PROGRESS_TEXT_MAX];
	struct progress progress;

	snprintf(text, sizeof(text), "model %s: %s", model->options->name, stage);
	progress_begin(&progress, text);
}

static int load_make(const struct startup_loader *loader, const struct startup_model *model, struct runner **ret,
	struct startup_error *error)
{
	struct engine_model_options options = {0};
	struct model_error model_error = {.text = ""};

	int rc = startup_model_load(model, loader->device, &options, error);
	if (rc == 0)
		rc = startup_draft_load(model, &options, error);
	if (rc < 0) {
		engine_model_options_deinit(&options);
		return rc;
	}
	load_begin_stage(model, "warming up and capturing its graphs");
	rc = engine_model_new(loader->engine, &options, ret, &model_error);
	return rc ? startup_refuse(error, rc, "%s", model_error.text) : 0;
}

int startup_load_run(void *userdata, void *taken, struct runner **ret, char *text, size_t size)
{
	const struct startup_loader *loader = userdata;
	CLEANUP(cleanup_load_job) struct load_job *job = taken;
	struct budget_model memory = {0};
	struct startup_model model = {.options = job->model, .memory = &memory};
	struct startup_error error = {.text = ""};

	load_begin_stage(&model, "examining it");
	loader->device->ops->lift_lock(loader->device, true);
	int rc = load_examine(loader, job, &model, &error);
	if (rc == 0)
		rc = load_make(loader, &model, ret, &error);
	loader->device->ops->lift_lock(loader->device, false);
	startup_model_deinit(&model);
	snprintf(text, size, "%s", error.text);
	return rc;
}
