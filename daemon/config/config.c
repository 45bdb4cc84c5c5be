/* SPDX-License-Identifier: MIT */
#include "daemon/config/config.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/suggest.h"

int config_refuse(struct config_error *error, const char *format, ...)
{
	size_t used = strlen(error->text);
	va_list arguments;

	error->n++;
	if (sizeof(error->text) - used <= CONFIG_SENTENCE_MAX) {
		error->n_dropped++;
		return -EINVAL;
	}
	if (used > 0)
		error->text[used++] = '\n';
	va_start(arguments, format);
	vsnprintf(error->text + used, CONFIG_SENTENCE_MAX, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

int config_out_of_memory(struct config_error *error)
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

const struct config_setting *config_setting(const struct config_setting *values, const char *name)
{
	int key = config_find_key(name);

	assert(key >= 0);
	return &values[key];
}

bool config_is_kv(const struct config_key *key)
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

static int config_setting_set(struct config_settings *settings, struct config_setting *setting, const char *value,
	const char *where, enum config_place place, struct config_error *error)
{
	struct config_setting new = { strdup(value), strdup(where), place, settings->n_files };

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
static int config_unknown_key(const char *key, const char *where, bool of_model, struct config_error *error)
{
	const char *names[CONFIG_N_KEYS + 1] = {"dir"}, *better;
	size_t n = of_model;

	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (!of_model || config_keys[i].per_model)
			names[n++] = config_keys[i].name;
	}
	if (of_model && config_find_key(key) >= 0)
		return config_refuse(error, "%s: unknown key of a model: it belongs in [mimeod]", where);
	better = suggest(key, names, n);
	return better ? config_refuse(error, "%s: unknown key (did you mean %s?)", where, better)
		      : config_refuse(error, "%s: unknown key: see mimeod.conf(5)", where);
}

/* Given in the same file, or the same other place, as what is read now. */
static bool config_is_here(const struct config_settings *settings, const struct config_setting *setting,
	enum config_place place)
{
	return setting->value && setting->place == place &&
		(place != CONFIG_FILE || setting->file == settings->n_files);
}

const char *config_origin(const struct config_setting *setting, char ret[static CONFIG_ORIGIN_MAX])
{
	const char *where = setting->value ? setting->where : "default";
	const char *key = strrchr(where, ' ');

	/* "mimeod.conf:3: kv_bytes" */
	snprintf(ret, CONFIG_ORIGIN_MAX, "%.*s",
		setting->value && setting->place == CONFIG_FILE && key ? (int)(key - where - 1) : (int)strlen(where),
		where);
	return ret;
}

static int config_set_dir(struct config_settings *settings, struct config_model_settings *model, const char *value,
	const char *where, enum config_place place, struct config_error *error)
{
	char first[CONFIG_ORIGIN_MAX];

	model->dir_refused = true;
	if (!*value)
		return config_refuse(error, "%s: \"\" is not a directory", where);
	if (config_is_here(settings, &model->dir, place))
		return config_refuse(error, "%s: model \"%s\" is given twice, first by %s", where, model->name,
			config_origin(&model->dir, first));
	model->dir_refused = false;
	return config_setting_set(settings, &model->dir, value, where, place, error);
}

/* Forget what lower places said of the key; kv_pages and kv_bytes are one subject. */
static void config_override(struct config_setting *values, const struct config_key *key, enum config_place place)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		bool same = &config_keys[i] == key ||
			(config_is_kv(key) && config_is_kv(&config_keys[i]));

		if (same && values[i].place < place)
			config_setting_deinit(&values[i]);
	}
}

/* The other one of kv_pages and kv_bytes: an earlier file's gives way. */
static int config_exclude(const struct config_settings *settings, struct config_setting *values,
	const struct config_key *key, const char *where, enum config_place place, struct config_error *error)
{
	char first[CONFIG_ORIGIN_MAX];

	for (int i = 0; config_is_kv(key) && i < CONFIG_N_KEYS; i++) {
		if (&config_keys[i] == key || !config_is_kv(&config_keys[i]) || !values[i].value)
			continue;
		if (config_is_here(settings, &values[i], place))
			return config_refuse(error, "%s: kv_pages and kv_bytes exclude each other: %s is given by %s",
				where, config_keys[i].name, config_origin(&values[i], first));
		config_setting_deinit(&values[i]);
	}
	return 0;
}

static int config_set_value(struct config_settings *settings, struct config_model_settings *model, int index,
	const char *value, const char *where, enum config_place place, struct config_error *error)
{
	struct config_setting *values = model ? model->values : settings->values;
	const struct config_key *key = &config_keys[index];
	char accepted[CONFIG_ACCEPTED_MAX], first[CONFIG_ORIGIN_MAX];
	struct config scratch;

	if (!config_store(key, value, &scratch, NULL))
		return config_refuse(error, "%s: \"%.100s\" is not %s", where, value,
			config_accepted(key, accepted, sizeof(accepted)));
	if (place == CONFIG_FILE && config_is_here(settings, &values[index], place))
		return config_refuse(error, "%s: given twice, first by %s", where,
			config_origin(&values[index], first));
	if (place > CONFIG_FILE) {
		config_override(values, key, place);
		for (uint32_t i = 0; !model && i < settings->n_models; i++)
			config_override(settings->models[i].values, key, place);
	}
	int rc = config_exclude(settings, values, key, where, place, error);
	return rc < 0 ? rc : config_setting_set(settings, &values[index], value, where, place, error);
}

int config_set(struct config_settings *settings, const char *model_name, const char *key_name,
	const char *value, const char *where, enum config_place place, struct config_error *error)
{
	struct config_model_settings *model = NULL;
	int index = config_find_key(key_name);

	if (model_name) {
		int rc = config_declare(settings, model_name, where, &model, error);

		if (rc < 0)
			return rc;
		if (strcmp(key_name, "dir") == 0)
			return config_set_dir(settings, model, value, where, place, error);
	}
	if (index < 0 || (model && !config_keys[index].per_model))
		return config_unknown_key(key_name, where, model, error);
	return config_set_value(settings, model, index, value, where, place, error);
}
