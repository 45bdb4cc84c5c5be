/* SPDX-License-Identifier: MIT */
/* The effective configuration as a file, each value with its origin. Defaults are comments. */
#include "daemon/config/config.h"

#include <assert.h>
#include <string.h>

#define VALUE_COLUMNS 40
#define VALUE_MAX 4096 /* capture_sizes are the longest */
#define UNQUOTED_MAX 120 /* inih cuts lines of about 200 bytes, with the key */
#define PRINT_SPACES " \t\r\v\f" /* what the reader trims */

static const char *config_print_origin(const struct config_setting *setting, char ret[static CONFIG_ORIGIN_MAX + 16])
{
	static const char *const places[] = {
		[CONFIG_FILE] = "",
		[CONFIG_ENVIRONMENT] = "environment: ",
		[CONFIG_COMMAND_LINE] = "command line: ",
	};
	char origin[CONFIG_ORIGIN_MAX];

	snprintf(ret, CONFIG_ORIGIN_MAX + 16, "%s%s", setting->value ? places[setting->place] : "",
		config_origin(setting, origin));
	return ret;
}

/* Whether a file would lose a part of the value without quotes. */
static bool config_print_needs_quotes(const char *value)
{
	size_t length = strlen(value);

	if (length == 0)
		return false;
	if (length > UNQUOTED_MAX)
		return true;
	if (strchr("\"#;" PRINT_SPACES, value[0]) || strchr(PRINT_SPACES, value[length - 1]))
		return true;
	for (size_t i = 1; i < length; i++) {
		if (strchr("#;", value[i]) && strchr(" \t", value[i - 1]))
			return true;
	}
	return false;
}

/* The bytes written. */
static int config_print_value(FILE *out, const char *value)
{
	int n = 2;

	if (!config_print_needs_quotes(value))
		return fprintf(out, "%s", value);
	putc('"', out);
	for (; *value; value++)
		n += fprintf(out, *value == '"' ? "\"%c" : "%c", *value);
	putc('"', out);
	return n;
}

static void config_print_line(FILE *out, const char *mark, const char *key, const char *value, const char *origin)
{
	int used = fprintf(out, "%s%s = ", mark, key);

	used += config_print_value(out, value);
	fprintf(out, "%*s  # %s\n", used > 0 && used < VALUE_COLUMNS ? VALUE_COLUMNS - used : 0, "", origin);
}

static void config_print_globals(FILE *out, const struct config_settings *settings, const struct config *config)
{
	char value[VALUE_MAX], origin[CONFIG_ORIGIN_MAX + 16];

	fprintf(out, "[mimeod]\n");
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		const struct config_setting *setting = &settings->values[i];

		if (!setting->value && !key->fallback)
			fprintf(out, "# %s: default: %s\n", key->name, key->nothing);
		else
			config_print_line(out, setting->value ? "" : "# ", key->name,
				config_show(key, config, NULL, value, sizeof(value)),
				config_print_origin(setting, origin));
	}
}

/* Tokens of no draft are a mistake in a file. */
static bool config_print_applies(const struct config_key *key, const struct config_model *model)
{
	return key->per_model && (strcmp(key->name, "draft_tokens") != 0 || model->draft[0]);
}

/* The setting that decides a model's value. */
static const struct config_setting *config_print_setting(const struct config_settings *settings,
	const struct config_model_settings *own, int key)
{
	return own->values[key].value ? &own->values[key] : &settings->values[key];
}

static void config_print_model(FILE *out, const struct config_settings *settings,
	const struct config_model_settings *own, const struct config *config, const struct config_model *model)
{
	char value[VALUE_MAX], origin[CONFIG_ORIGIN_MAX + 16];

	fprintf(out, "\n[model %s]\n", model->name);
	config_print_line(out, "", "dir", model->dir, config_print_origin(&own->dir, origin));
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		const struct config_setting *setting = config_print_setting(settings, own, i);

		if (!setting->value || !config_print_applies(key, model))
			continue;
		config_show(key, config, model, value, sizeof(value));
		if (!config_is_kv(key) || strcmp(value, "0") != 0) /* the other one has its own value */
			config_print_line(out, "", key->name, value, config_print_origin(setting, origin));
	}
}

void config_print(FILE *out, const struct config_settings *settings, const struct config *config)
{
	assert(settings->n_models == config->n_models);
	config_print_globals(out, settings, config);
	for (uint32_t i = 0; i < config->n_models; i++)
		config_print_model(out, settings, &settings->models[i], config, &config->models[i]);
}
