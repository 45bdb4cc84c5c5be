/* SPDX-License-Identifier: MIT */
/* Defaults, and checks of settings that concern each other: one struct config of what was given. */
#include "daemon/config/config.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_QUOTE_MAX (CONFIG_ORIGIN_MAX + 128)

void config_deinit(struct config *config)
{
	for (uint32_t i = 0; i < config->n_models; i++)
		free(config->models[i].dir);
	*config = (struct config){ 0 };
}

static bool config_few_cpus(void)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) < 4;
}

static void config_resolve_globals(const struct config_settings *settings, struct config *config)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		const char *value = settings->values[i].value;

		if (!value)
			value = key->kind == CONFIG_SPIN && config_few_cpus() ? "0" : key->fallback;
		if (value)
			config_store(key, value, config, NULL);
	}
}

static int config_resolve_model(const struct config_settings *settings,
	const struct config_model_settings *own, struct config *config, struct config_error *error)
{
	struct config_model *model = &config->models[config->n_models];

	if (!own->dir.value && !own->dir_refused)
		config_refuse(error,
			"%s: model \"%s\" has no directory: give it one with dir = DIR in [model %s], or "
			"with --model %s=DIR",
			own->where, own->name, own->name, own->name);
	model->dir = strdup(own->dir.value ? own->dir.value : "");
	if (!model->dir)
		return config_out_of_memory(error);
	strcpy(model->name, own->name);
	config->n_models++;
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		const char *value = own->values[i].value;

		if (!value && !config_is_kv(key))
			value = settings->values[i].value ? settings->values[i].value : key->fallback;
		if (key->per_model && value)
			config_store(key, value, config, model);
	}
	return 0;
}

/* The kv_pages for all are each model's; the kv_bytes for all are shared by the models without a size of
 * their own. */
static void config_share_kv(const struct config_settings *settings, struct config *config, struct config_error *error)
{
	char origin[CONFIG_ORIGIN_MAX];
	uint32_t n_shares = 0;

	for (uint32_t i = 0; i < config->n_models; i++) {
		struct config_model *model = &config->models[i];

		if (model->kv_pages == 0 && model->kv_bytes == 0) {
			model->kv_pages = config->kv_pages;
			n_shares += config->kv_bytes > 0;
		}
	}
	if (n_shares > 0 && config->kv_bytes < n_shares)
		config_refuse(error, "%s: kv_bytes: less than a byte for each of %u models",
			config_origin(config_setting(settings->values, "kv_bytes"), origin), n_shares);
	for (uint32_t i = 0; i < config->n_models && n_shares > 0; i++) {
		if (config->models[i].kv_pages == 0 && config->models[i].kv_bytes == 0)
			config->models[i].kv_bytes = config->kv_bytes / n_shares;
	}
}

static int config_resolve_models(const struct config_settings *settings, struct config *config,
	struct config_error *error)
{
	/* A section or an option that was refused may have had one. */
	if (settings->n_models == 0 && error->n == 0)
		config_refuse(error,
			"no model: give one with --model NAME=DIR, or a section [model NAME] with "
			"dir = DIR in the configuration file");
	for (uint32_t i = 0; i < settings->n_models; i++) {
		int rc = config_resolve_model(settings, &settings->models[i], config, error);

		if (rc < 0)
			return rc;
	}
	config_share_kv(settings, config, error);
	return 0;
}

/* ---- settings that concern each other ---- */

/* "name 64 (mimeod.conf:3)" */
static const char *config_quote(const struct config_settings *settings, const struct config *config, const char *name,
	char ret[static CONFIG_QUOTE_MAX])
{
	const struct config_setting *setting = config_setting(settings->values, name);
	char value[64], origin[CONFIG_ORIGIN_MAX];

	snprintf(ret, CONFIG_QUOTE_MAX, "%s %s (%s)", name,
		config_show(&config_keys[setting - settings->values], config, NULL, value, sizeof(value)),
		config_origin(setting, origin));
	return ret;
}

static void config_check_steps(const struct config_settings *settings, const struct config *config,
	struct config_error *error)
{
	char quote[CONFIG_QUOTE_MAX], other[CONFIG_QUOTE_MAX];

	if (!config->max_batch_tokens)
		return; /* chosen when the device is known */
	config_quote(settings, config, "max_batch_tokens", other);
	if (config->max_requests > config->max_batch_tokens)
		config_refuse(error,
			"%s exceeds %s: a step has a token for each request, so lower max_requests or raise "
			"max_batch_tokens",
			config_quote(settings, config, "max_requests", quote), other);
	for (uint32_t i = 0; i < config->n_models; i++) {
		const struct config_model *model = &config->models[i];

		if (model->draft[0] && 1 + model->draft_tokens > config->max_batch_tokens)
			config_refuse(error,
				"model %s: draft_tokens %u exceed %s: a row that verifies takes 1 + draft_tokens = %u "
				"of a step, so lower draft_tokens or raise max_batch_tokens",
				model->name, model->draft_tokens, other, 1 + model->draft_tokens);
	}
	for (uint32_t i = 0; i < config->n_capture_sizes; i++) {
		if (config->capture_sizes[i] > config->max_batch_tokens)
			config_refuse(error, "%s: capture_sizes: %u exceeds %s, the size of the largest step",
				config_origin(config_setting(settings->values, "capture_sizes"), quote),
				config->capture_sizes[i], other);
	}
}

static uint64_t config_number(const struct config *config, const char *name, const struct config_settings *settings)
{
	const struct config_key *key = &config_keys[config_setting(settings->values, name) - settings->values];
	const char *place = (const char *)config + key->offset;

	return key->kind == CONFIG_SIZE ? *(const uint64_t *)place : *(const uint32_t *)place;
}

/* A client's limit above that of all clients is a mistake if both were given: no client could use it. */
static void config_check_limits(const struct config_settings *settings, const struct config *config,
	struct config_error *error)
{
	static const struct {
		const char *one, *all;
	} limits[] = {
		{"max_sessions_per_uid", "max_sessions"},
		{"max_arena_bytes", "max_shared_bytes"},
		{"max_client_buffer_bytes", "max_buffer_bytes"},
	};
	char quote[CONFIG_QUOTE_MAX], other[CONFIG_QUOTE_MAX];

	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		const char *one = limits[i].one, *all = limits[i].all;

		if (config_setting(settings->values, one)->value && config_setting(settings->values, all)->value &&
			config_number(config, one, settings) > config_number(config, all, settings))
			config_refuse(error, "%s exceeds %s, which is for all clients together",
				config_quote(settings, config, one, quote),
				config_quote(settings, config, all, other));
	}
}

/* draft_tokens without a draft model are a mistake, unless the draft model is switched off. */
static void config_check_drafts(const struct config_settings *settings, struct config_error *error)
{
	static const char remedy[] = "name its directory with --draft, or draft in the configuration file";
	const struct config_setting *all = config_setting(settings->values, "draft_tokens");
	bool any = false;

	for (uint32_t i = 0; i < settings->n_models; i++) {
		const struct config_model_settings *own = &settings->models[i];
		const struct config_setting *tokens = config_setting(own->values, "draft_tokens");
		bool has = config_setting(own->values, "draft")->value ||
			config_setting(settings->values, "draft")->value;

		any |= has;
		if (tokens->value && !has)
			config_refuse(error, "%s: model \"%s\" has no draft: %s", tokens->where, own->name, remedy);
	}
	if (!any && all->value && settings->n_models > 0)
		config_refuse(error, "%s: no model has a draft: %s", all->where, remedy);
}

static int config_resolve_all(const struct config_settings *settings, struct config *config,
	struct config_error *error)
{
	config_resolve_globals(settings, config);
	snprintf(config->weights_where, sizeof(config->weights_where), "%s",
		config->n_weights ? config_setting(settings->values, "weights")->where : "weights");
	int rc = config_resolve_models(settings, config, error);
	if (rc < 0)
		return rc;
	config_check_steps(settings, config, error);
	config_check_limits(settings, config, error);
	config_check_drafts(settings, error);
	return error->n > 0 ? -EINVAL : 0;
}

int config_resolve(const struct config_settings *settings, struct config *ret,
	struct config_error *error)
{
	struct config config = { .n_files = settings->n_files };

	int rc = config_resolve_all(settings, &config, error);
	if (rc < 0)
		config_deinit(&config);
	else
		*ret = config;
	return rc;
}

void config_describe(const struct config *config)
{
	char value[1024];

	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];

		log_debug("config: %s = %s", key->name,
			config_show(key, config, NULL, value, sizeof(value)));
	}
	for (uint32_t m = 0; m < config->n_models; m++) {
		const struct config_model *model = &config->models[m];

		log_debug("config: model %s: dir = %s", model->name, model->dir);
		for (int i = 0; i < CONFIG_N_KEYS; i++) {
			if (config_keys[i].per_model)
				log_debug("config: model %s: %s = %s", model->name,
					config_keys[i].name,
					config_show(&config_keys[i], config, model, value,
						sizeof(value)));
		}
	}
}
