/* SPDX-License-Identifier: MIT */
#include "daemon/config/config.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int config_refuse(struct config_error *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	return -EINVAL;
}

static int config_out_of_memory(struct config_error *error)
{
	config_refuse(error, "out of memory");
	return -ENOMEM;
}

static int config_find_key(const char *name)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (strcmp(config_keys[i].name, name) == 0)
			return i;
	}
	return -1;
}

static const struct config_setting *config_setting(
	const struct config_setting *values, const char *name)
{
	int key = config_find_key(name);

	assert(key >= 0);
	return &values[key];
}

static bool config_is_kv(const struct config_key *key)
{
	return strcmp(key->name, "kv_pages") == 0 || strcmp(key->name, "kv_bytes") == 0;
}

/* ---- settings ---- */

static void config_setting_deinit(struct config_setting *setting)
{
	free(setting->value);
	free(setting->where);
	*setting = (struct config_setting){ 0 };
}

void config_settings_deinit(struct config_settings *settings)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++)
		config_setting_deinit(&settings->values[i]);
	for (uint32_t m = 0; m < settings->n_models; m++) {
		struct config_model_settings *model = &settings->models[m];

		config_setting_deinit(&model->dir);
		for (int i = 0; i < CONFIG_N_KEYS; i++)
			config_setting_deinit(&model->values[i]);
		free(model->where);
	}
	*settings = (struct config_settings){ 0 };
}

static int config_setting_set(struct config_setting *setting, const char *value, const char *where,
	enum config_place place, struct config_error *error)
{
	struct config_setting new = { strdup(value), strdup(where), place };

	if (!new.value || !new.where) {
		config_setting_deinit(&new);
		return config_out_of_memory(error);
	}
	assert(!setting->value || setting->place <= place);
	config_setting_deinit(setting);
	*setting = new;
	return 0;
}

static bool config_is_model_name(const char *name)
{
	size_t length =
		strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	return length > 0 && length < CONFIG_NAME_MAX && !name[length];
}

int config_declare(struct config_settings *settings, const char *name, const char *where,
	struct config_model_settings **ret, struct config_error *error)
{
	for (uint32_t i = 0; i < settings->n_models; i++) {
		*ret = &settings->models[i];
		if (strcmp((*ret)->name, name) == 0)
			return 0;
	}
	if (!config_is_model_name(name))
		return config_refuse(error,
			"%s: \"%.100s\" is not a model name: 1 to %d of A-Z a-z 0-9 . _ -", where,
			name, CONFIG_NAME_MAX - 1);
	if (settings->n_models == CONFIG_MODELS_MAX)
		return config_refuse(error, "%s: more than %d models", where, CONFIG_MODELS_MAX);
	*ret = &settings->models[settings->n_models];
	(*ret)->where = strdup(where);
	if (!(*ret)->where)
		return config_out_of_memory(error);
	strcpy((*ret)->name, name);
	settings->n_models++;
	return 0;
}

/* `where` names the key. */
static int config_unknown_key(const char *where, bool of_model, struct config_error *error)
{
	char known[800];
	size_t used = (size_t)snprintf(known, sizeof(known), "%s", of_model ? "dir, " : "");

	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (of_model && !config_keys[i].per_model)
			continue;
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s, ",
			config_keys[i].name);
		assert(used < sizeof(known));
	}
	known[used - 2] = '\0';
	return config_refuse(error, "%s: unknown key: known are %s", where, known);
}

static int config_set_dir(struct config_model_settings *model, const char *value, const char *where,
	enum config_place place, struct config_error *error)
{
	if (!*value)
		return config_refuse(error, "%s: \"\" is not a directory", where);
	if (model->dir.value && model->dir.place == place)
		return config_refuse(error, "%s: model \"%s\" is given twice", where, model->name);
	return config_setting_set(&model->dir, value, where, place, error);
}

/* Forget what the file said of the key; kv_pages and kv_bytes are one subject. */
static void config_override(struct config_setting *values, const struct config_key *key)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		bool same = &config_keys[i] == key ||
			(config_is_kv(key) && config_is_kv(&config_keys[i]));

		if (same && values[i].place == CONFIG_FILE)
			config_setting_deinit(&values[i]);
	}
}

int config_set(struct config_settings *settings, const char *model_name, const char *key_name,
	const char *value, const char *where, enum config_place place, struct config_error *error)
{
	struct config_model_settings *model = NULL;
	struct config_setting *values = settings->values;
	struct config scratch;
	char accepted[160];
	int index = config_find_key(key_name), rc;

	if (model_name) {
		rc = config_declare(settings, model_name, where, &model, error);
		if (rc < 0)
			return rc;
		values = model->values;
		if (strcmp(key_name, "dir") == 0)
			return config_set_dir(model, value, where, place, error);
	}
	if (index < 0 || (model && !config_keys[index].per_model))
		return config_unknown_key(where, model, error);
	const struct config_key *key = &config_keys[index];
	if (!config_store(key, value, &scratch, NULL))
		return config_refuse(error, "%s: \"%.100s\" is not %s", where, value,
			config_accepted(key, accepted, sizeof(accepted)));
	if (place == CONFIG_FILE && values[index].value)
		return config_refuse(error, "%s: given twice", where);
	if (place == CONFIG_COMMAND_LINE) {
		config_override(values, key);
		for (uint32_t i = 0; !model && i < settings->n_models; i++)
			config_override(settings->models[i].values, key);
	}
	rc = config_setting_set(&values[index], value, where, place, error);
	if (rc < 0)
		return rc;
	if (config_setting(values, "kv_pages")->value && config_setting(values, "kv_bytes")->value)
		return config_refuse(
			error, "%s: kv_pages and kv_bytes exclude each other", where);
	return 0;
}

/* ---- the result ---- */

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

	if (!own->dir.value)
		return config_refuse(error,
			"%s: model \"%s\" has no directory: give it one with dir = DIR in [model %s], or "
			"with --model %s=DIR",
			own->where, own->name, own->name, own->name);
	model->dir = strdup(own->dir.value);
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
static int config_share_kv(struct config *config, struct config_error *error)
{
	uint32_t n_shares = 0;

	for (uint32_t i = 0; i < config->n_models; i++) {
		struct config_model *model = &config->models[i];

		if (model->kv_pages == 0 && model->kv_bytes == 0) {
			model->kv_pages = config->kv_pages;
			n_shares += config->kv_bytes > 0;
		}
	}
	if (n_shares > 0 && config->kv_bytes < n_shares)
		return config_refuse(
			error, "kv_bytes: less than a byte for each of %u models", n_shares);
	for (uint32_t i = 0; i < config->n_models && n_shares > 0; i++) {
		if (config->models[i].kv_pages == 0 && config->models[i].kv_bytes == 0)
			config->models[i].kv_bytes = config->kv_bytes / n_shares;
	}
	return 0;
}

static int config_resolve_models(const struct config_settings *settings, struct config *config,
	struct config_error *error)
{
	for (uint32_t i = 0; i < settings->n_models; i++) {
		int rc = config_resolve_model(settings, &settings->models[i], config, error);

		if (rc < 0)
			return rc;
	}
	if (config->n_models == 0)
		return config_refuse(error,
			"no model: give one with --model NAME=DIR, or a section [model NAME] with "
			"dir = DIR in the configuration file");
	return config_share_kv(config, error);
}

/* Limits that concern several keys. */
static int config_check_steps(const struct config *config, struct config_error *error)
{
	if (!config->max_batch_tokens)
		return 0; /* chosen when the device is known */
	if (config->max_requests > config->max_batch_tokens)
		return config_refuse(error,
			"max_requests %u exceeds max_batch_tokens %u: a step has a token for each "
			"request, so lower --max-requests or raise --max-batch-tokens",
			config->max_requests, config->max_batch_tokens);
	for (uint32_t i = 0; i < config->n_models; i++) {
		const struct config_model *model = &config->models[i];

		if (model->draft[0] && 1 + model->draft_tokens > config->max_batch_tokens)
			return config_refuse(error,
				"model %s: draft_tokens %u exceed max_batch_tokens %u: a row that "
				"verifies takes 1 + draft_tokens = %u of a step, so lower "
				"--draft-tokens or raise --max-batch-tokens",
				model->name, model->draft_tokens, config->max_batch_tokens,
				1 + model->draft_tokens);
	}
	for (uint32_t i = 0; i < config->n_capture_sizes; i++) {
		if (config->capture_sizes[i] > config->max_batch_tokens)
			return config_refuse(error,
				"capture_sizes: %u exceeds max_batch_tokens %u, the size of the largest step",
				config->capture_sizes[i], config->max_batch_tokens);
	}
	return 0;
}

/* draft_tokens without a draft model are a mistake, unless the draft model is switched off. */
static int config_check_drafts(const struct config_settings *settings, const struct config *config,
	struct config_error *error)
{
	static const char remedy[] = "name its directory with --draft, or draft in the configuration file";
	const struct config_setting *all = config_setting(settings->values, "draft_tokens");
	bool any = false;

	assert(settings->n_models == config->n_models);
	for (uint32_t i = 0; i < config->n_models; i++) {
		const struct config_model_settings *own = &settings->models[i];
		const struct config_setting *tokens = config_setting(own->values, "draft_tokens");
		bool has = config_setting(own->values, "draft")->value ||
			config_setting(settings->values, "draft")->value;

		any |= has;
		if (tokens->value && !has)
			return config_refuse(error, "%s: model \"%s\" has no draft: %s",
				tokens->where, own->name, remedy);
	}
	if (any || !all->value)
		return 0;
	return config_refuse(error, "%s: no model has a draft: %s", all->where, remedy);
}

static int config_resolve_all(const struct config_settings *settings, struct config *config,
	struct config_error *error)
{
	config_resolve_globals(settings, config);
	int rc = config_resolve_models(settings, config, error);
	if (rc < 0)
		return rc;
	rc = config_check_steps(config, error);
	if (rc < 0)
		return rc;
	return config_check_drafts(settings, config, error);
}

int config_resolve(const struct config_settings *settings, struct config *ret,
	struct config_error *error)
{
	struct config config = { 0 };

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
