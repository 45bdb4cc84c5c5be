/* SPDX-License-Identifier: MIT */
#include "daemon/config/config.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(struct config_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int fail(struct config_error *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	return -EINVAL;
}

static int out_of_memory(struct config_error *error)
{
	snprintf(error->text, sizeof(error->text), "out of memory");
	return -ENOMEM;
}

static int find_key(const char *name)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (strcmp(config_keys[i].name, name) == 0)
			return i;
	}
	return -1;
}

static bool is_given(const struct config_setting *values, const char *key)
{
	return values[find_key(key)].value;
}

/* ---- what one place says ---- */

static void setting_deinit(struct config_setting *setting)
{
	free(setting->value);
	free(setting->where);
	*setting = (struct config_setting){ 0 };
}

void config_settings_deinit(struct config_settings *settings)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++)
		setting_deinit(&settings->values[i]);
	for (uint32_t m = 0; m < settings->n_models; m++) {
		struct config_model_settings *model = &settings->models[m];

		setting_deinit(&model->dir);
		for (int i = 0; i < CONFIG_N_KEYS; i++)
			setting_deinit(&model->values[i]);
		free(model->where);
	}
	*settings = (struct config_settings){ 0 };
}

static int setting_set(struct config_setting *setting, const char *value, const char *where,
	bool again, struct config_error *error)
{
	struct config_setting new;

	if (setting->value && !again)
		return fail(error, "%s: given twice", where);
	new = (struct config_setting){ strdup(value), strdup(where) };
	if (!new.value || !new.where) {
		setting_deinit(&new);
		return out_of_memory(error);
	}
	setting_deinit(setting);
	*setting = new;
	return 0;
}

static bool is_model_name(const char *name)
{
	size_t length =
		strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	return length > 0 && length < CONFIG_NAME_MAX && !name[length];
}

static struct config_model_settings *find_model(const struct config_settings *settings,
	const char *name)
{
	for (uint32_t i = 0; settings && i < settings->n_models; i++) {
		if (strcmp(settings->models[i].name, name) == 0)
			return (struct config_model_settings *)&settings->models[i];
	}
	return NULL;
}

static int need_model(struct config_settings *settings, const char *name, const char *where,
	struct config_model_settings **ret, struct config_error *error)
{
	struct config_model_settings *model = find_model(settings, name);

	if (!model) {
		if (!is_model_name(name))
			return fail(error,
				"%s: \"%.100s\" is not a model name: 1 to %d of A-Z a-z 0-9 . _ -",
				where, name, CONFIG_NAME_MAX - 1);
		if (settings->n_models == CONFIG_MODELS_MAX)
			return fail(error, "%s: more than %d models", where, CONFIG_MODELS_MAX);
		model = &settings->models[settings->n_models];
		model->where = strdup(where);
		if (!model->where)
			return out_of_memory(error);
		strcpy(model->name, name);
		settings->n_models++;
	}
	*ret = model;
	return 0;
}

int config_declare(struct config_settings *settings, const char *name, const char *where,
	struct config_error *error)
{
	struct config_model_settings *model;

	return need_model(settings, name, where, &model, error);
}

static int unknown_key(const char *where, const char *key, bool of_model,
	struct config_error *error)
{
	char known[800];
	size_t used = (size_t)snprintf(known, sizeof(known), "%s", of_model ? "dir, " : "");

	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (of_model && !config_keys[i].per_model)
			continue;
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s, ",
			config_keys[i].name);
	}
	known[used - 2] = '\0';
	return fail(error, "%.60s: unknown key \"%.40s\": known are %s", where, key, known);
}

int config_set(struct config_settings *settings, const char *model_name, const char *key,
	const char *value, const char *where, bool again, struct config_error *error)
{
	struct config_model_settings *model = NULL;
	struct config_setting *values = settings->values;
	struct config scratch;
	char accepted[160];
	int index = find_key(key), r;

	if (model_name) {
		r = need_model(settings, model_name, where, &model, error);
		if (r < 0)
			return r;
		values = model->values;
		if (strcmp(key, "dir") == 0) {
			if (!*value)
				return fail(error, "%s: \"\" is not a folder", where);
			if (model->dir.value && !again)
				return fail(error, "%s: model \"%s\" is given twice", where,
					model_name);
			return setting_set(&model->dir, value, where, again, error);
		}
	}
	if (index < 0 || (model && !config_keys[index].per_model))
		return unknown_key(where, key, model, error);
	if (!config_store(&config_keys[index], value, &scratch, NULL))
		return fail(error, "%s: \"%.100s\" is not %s", where, value,
			config_accepted(&config_keys[index], accepted, sizeof(accepted)));
	r = setting_set(&values[index], value, where, again, error);
	if (r == 0 && is_given(values, "kv_pages") && is_given(values, "kv_bytes"))
		return fail(error, "%s: kv_pages and kv_bytes exclude each other", where);
	return r;
}

/* ---- the result ---- */

void config_deinit(struct config *config)
{
	for (uint32_t i = 0; i < config->n_models; i++)
		free(config->models[i].dir);
	*config = (struct config){ 0 };
}

static bool speaks_of_kv(const struct config_setting *values)
{
	return is_given(values, "kv_pages") || is_given(values, "kv_bytes");
}

/* The value of a key, from the upper place that gives it. kv_pages and kv_bytes are one matter: who
 * gives one of them upstairs hides both below. */
static const char *value_of(const struct config_settings *const *places, int key)
{
	bool kv = strncmp(config_keys[key].name, "kv_", 3) == 0;

	for (int p = 0; p < 2; p++) {
		if (!places[p])
			continue;
		if (places[p]->values[key].value)
			return places[p]->values[key].value;
		if (kv && speaks_of_kv(places[p]->values))
			return NULL;
	}
	return config_keys[key].fallback;
}

static bool few_cpus(void)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) < 4;
}

static void resolve_globals(const struct config_settings *const *places, struct config *config)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const char *value = value_of(places, i);

		if (value == config_keys[i].fallback && config_keys[i].kind == CONFIG_SPIN &&
			few_cpus())
			value = "0";
		if (value)
			config_store(&config_keys[i], value, config, NULL);
	}
}

/* The model's own value in the upper place, else the upper place's for all, else the lower's. */
static void resolve_model_key(const struct config_settings *const *places, int key,
	struct config *config, struct config_model *model)
{
	const char *value = config_keys[key].fallback;

	for (int p = 1; p >= 0; p--) {
		const struct config_model_settings *own = find_model(places[p], model->name);

		if (places[p] && places[p]->values[key].value)
			value = places[p]->values[key].value;
		if (own && own->values[key].value)
			value = own->values[key].value;
	}
	if (value) /* else it stays empty */
		config_store(&config_keys[key], value, config, model);
}

/* True if the model shares in the kv_bytes for all. */
static bool resolve_model_kv(const struct config_settings *const *places, struct config *config,
	struct config_model *model)
{
	const struct config_key *pages = &config_keys[find_key("kv_pages")];
	const struct config_key *bytes = &config_keys[find_key("kv_bytes")];

	for (int p = 0; p < 2; p++) {
		const struct config_model_settings *own = find_model(places[p], model->name);

		if (own && speaks_of_kv(own->values)) {
			const char *value = own->values[pages - config_keys].value;

			if (value)
				config_store(pages, value, config, model);
			else
				config_store(bytes, own->values[bytes - config_keys].value, config,
					model);
			return false;
		}
		if (places[p] && speaks_of_kv(places[p]->values))
			break;
	}
	model->kv_pages = config->kv_pages;
	return config->kv_bytes > 0;
}

static int resolve_model(const struct config_settings *const *places, const char *name,
	const char *where, struct config *config, struct config_error *error)
{
	struct config_model *model = &config->models[config->n_models];
	const struct config_model_settings *own;

	if (config->n_models == CONFIG_MODELS_MAX)
		return fail(error, "%s: more than %d models", where, CONFIG_MODELS_MAX);
	for (int p = 1; p >= 0; p--) {
		own = find_model(places[p], name);
		if (!own || !own->dir.value)
			continue;
		free(model->dir);
		model->dir = strdup(own->dir.value);
		if (!model->dir)
			return out_of_memory(error);
	}
	if (!model->dir)
		return fail(error, "%s: model \"%s\" has no folder: give it one with dir = DIR in "
				   "[model %s], or with --model %s=DIR", where, name, name, name);
	strcpy(model->name, name);
	config->n_models++;
	resolve_model_key(places, find_key("graph_mode"), config, model);
	resolve_model_key(places, find_key("breakable"), config, model);
	resolve_model_key(places, find_key("attention"), config, model);
	resolve_model_key(places, find_key("mask"), config, model);
	resolve_model_key(places, find_key("draft"), config, model);
	resolve_model_key(places, find_key("draft_tokens"), config, model);
	return 0;
}

static int resolve_models(const struct config_settings *const *places, struct config *config,
	struct config_error *error)
{
	bool shares[CONFIG_MODELS_MAX];
	uint32_t n_shares = 0;

	for (int p = 1; p >= 0; p--) {
		for (uint32_t i = 0; places[p] && i < places[p]->n_models; i++) {
			const struct config_model_settings *own = &places[p]->models[i];
			int r;

			if (p == 0 && find_model(places[1], own->name))
				continue;
			r = resolve_model(places, own->name, own->where, config, error);
			if (r < 0)
				return r;
		}
	}
	if (config->n_models == 0)
		return fail(error, "no model: give one with --model NAME=DIR, or a section "
				   "[model NAME] with dir = DIR in the configuration file");
	for (uint32_t i = 0; i < config->n_models; i++) {
		shares[i] = resolve_model_kv(places, config, &config->models[i]);
		n_shares += shares[i];
	}
	if (n_shares > 0 && config->kv_bytes < n_shares)
		return fail(error, "kv_bytes: less than a byte for each of %u models", n_shares);
	for (uint32_t i = 0; i < config->n_models; i++) {
		if (shares[i])
			config->models[i].kv_bytes = config->kv_bytes / n_shares;
	}
	return 0;
}

/* What the keys say of each other. */
static int check_steps(const struct config *config, struct config_error *error)
{
	if (config->max_requests > config->max_batch_tokens)
		return fail(error,
			"max_requests %u exceeds max_batch_tokens %u: a step has a token for each "
			"request, so lower --max-requests or raise --max-batch-tokens",
			config->max_requests, config->max_batch_tokens);
	for (uint32_t i = 0; i < config->n_models; i++) {
		const struct config_model *model = &config->models[i];

		if (model->draft[0] && 1 + model->draft_tokens > config->max_batch_tokens)
			return fail(error,
				"model %s: draft_tokens %u exceed max_batch_tokens %u: a row that "
				"verifies takes 1 + draft_tokens = %u of a step, so lower "
				"--draft-tokens or raise --max-batch-tokens",
				model->name, model->draft_tokens, config->max_batch_tokens,
				1 + model->draft_tokens);
	}
	for (uint32_t i = 0; i < config->n_capture_sizes; i++) {
		if (config->capture_sizes[i] > config->max_batch_tokens)
			return fail(error,
				"capture_sizes: %u exceeds max_batch_tokens %u: no step is so wide",
				config->capture_sizes[i], config->max_batch_tokens);
	}
	return 0;
}

/* Does anybody say which draft the model has, be it none? */
static bool speaks_of_draft(const struct config_settings *const *places, const char *name)
{
	bool speaks = false;

	for (int p = 0; p < 2; p++) {
		const struct config_model_settings *own = find_model(places[p], name);

		speaks |= own && is_given(own->values, "draft");
		speaks |= places[p] && is_given(places[p]->values, "draft");
	}
	return speaks;
}

/* Tokens of a draft that there is not are a mistake: of a model, or of all where they are said for
 * all. Not so those of a draft that is switched off. */
static int check_drafts(const struct config_settings *const *places, int p,
	const struct config *config, struct config_error *error)
{
	static const char remedy[] = "name its folder with --draft, or draft in the configuration file";
	const struct config_settings *place = places[p];
	const int key = find_key("draft_tokens");
	bool any = false;

	if (!place)
		return 0;
	for (uint32_t i = 0; i < config->n_models; i++) {
		const struct config_model *model = &config->models[i];
		const struct config_model_settings *own = find_model(place, model->name);
		bool has = model->draft[0] || speaks_of_draft(places, model->name);

		any |= has;
		if (own && own->values[key].value && !has)
			return fail(error, "%s: model \"%s\" has no draft: %s",
				own->values[key].where, model->name, remedy);
	}
	if (any || !place->values[key].value)
		return 0;
	return fail(error, "%s: no model has a draft: %s", place->values[key].where, remedy);
}

int config_resolve(const struct config_settings *upper, const struct config_settings *lower,
	struct config *ret, struct config_error *error)
{
	const struct config_settings *const places[] = { upper, lower };
	struct config config = { 0 };
	int r;

	resolve_globals(places, &config);
	r = resolve_models(places, &config, error);
	if (r == 0)
		r = check_steps(&config, error);
	for (int p = 0; p < 2 && r == 0; p++)
		r = check_drafts(places, p, &config, error);
	if (r < 0) {
		/* A model that failed half-way may hold its folder. */
		if (config.n_models < CONFIG_MODELS_MAX)
			free(config.models[config.n_models].dir);
		config_deinit(&config);
		return r;
	}
	*ret = config;
	return 0;
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
