/* SPDX-License-Identifier: MIT */
#include "daemon/config/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <build-config.h>

#include "daemon/config/command_line.h"
#include "ipc/cleanup.h"

enum { OPTION_CONFIG, OPTION_CHECK, OPTION_MODEL, N_OWN_OPTIONS, N_OPTIONS = N_OWN_OPTIONS + CONFIG_N_KEYS };

struct option_table {
	struct command_option options[N_OPTIONS];
	char names[CONFIG_N_KEYS][32], values[CONFIG_N_KEYS][32], helps[CONFIG_N_KEYS][256];
};

static void options_make_table(struct option_table *table)
{
	table->options[OPTION_CONFIG] = (struct command_option){"config", "FILE",
		"configuration file (default: " OPTIONS_DEFAULT_CONFIG "; if neither it nor its .d folder exists, and not "
		"for root: ~/.config/" OPTIONS_USER_CONFIG "); FILE.d/*.conf after it"};
	table->options[OPTION_CHECK] = (struct command_option){"check-config", NULL,
		"print the configuration with the origin of each value, or what is wrong, and exit"};
	table->options[OPTION_MODEL] = (struct command_option){"model", "NAME=DIR",
		"serve the model in DIR, or in a GGUF file, as NAME; repeatable"};
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		char *name = table->names[i];

		snprintf(name, sizeof(table->names[i]), "%s", key->name);
		for (char *at = name; (at = strchr(at, '_')); at++)
			*at = '-';
		snprintf(table->values[i], sizeof(table->values[i]), "%s%s", key->per_model ? "[NAME=]" : "",
			key->argument);
		snprintf(table->helps[i], sizeof(table->helps[i]), "%s (default: %s)", key->help,
			key->fallback ? key->fallback : key->nothing);
		table->options[N_OWN_OPTIONS + i] =
			(struct command_option){name, table->values[i], table->helps[i]};
	}
}

static void options_print_help(FILE *out, const struct option_table *table)
{
	fputs("Usage: mimeod [OPTION]... --model NAME=DIR...\n\n"
	      "Execute language models for the processes of this machine.\n\n", out);
	command_line_print_options(out, table->options, N_OPTIONS);
	fputs("\nSIZE is in bytes, or has a unit: G or GiB (2^30), GB (10^9). With [NAME=] an\n"
	      "option is for one model, without it for all. A variable of the environment is\n"
	      "for all: MIMEO_KV_PAGES is --kv-pages. See mimeod(8) and mimeod.conf(5).\n", out);
}

/* "NAME=VALUE": copies the name and returns the value; NULL if there is no '='. */
static const char *options_split(const char *text, char name[static CONFIG_NAME_MAX + 1])
{
	const char *equals = strchr(text, '=');

	if (!equals)
		return NULL;
	/* A name that is cut is still too long to be valid. */
	snprintf(name, CONFIG_NAME_MAX + 1, "%.*s", (int)(equals - text), text);
	return equals + 1;
}

static int options_set(struct config_settings *settings, const struct option_table *table, int option,
	const char *text, struct config_error *error)
{
	const struct config_key *key = option == OPTION_MODEL ? NULL : &config_keys[option - N_OWN_OPTIONS];
	char name[CONFIG_NAME_MAX + 1], where[34];
	const char *value = !key || key->per_model ? options_split(text, name) : NULL;

	if (!key && !value)
		return config_refuse(error, "--model: \"%.200s\" is not NAME=DIR", text);
	snprintf(where, sizeof(where), "--%s", table->options[option].name);
	return config_set(settings, value ? name : NULL, key ? key->name : "dir",
		value ? value : text, where, CONFIG_COMMAND_LINE, error);
}

/* What is no setting. */
struct options_own {
	const char *config_file; /* NULL: not given */
	bool check;
};

/* Go through the command line: with settings NULL for --help, --version and options that are no settings, else for
 * the settings and what is wrong. 0, OPTIONS_DONE or -ENOMEM. */
static int options_scan(int argc, char **argv, FILE *out, struct config_settings *settings,
	struct options_own *own, struct config_error *error)
{
	struct option_table table;
	struct command_line line = {.argc = argc, .argv = argv, .options = table.options, .n_options = N_OPTIONS};
	int option, rc;

	options_make_table(&table);
	while ((option = command_line_next(&line)) != COMMAND_END) {
		switch (option) {
		case COMMAND_HELP:
			options_print_help(out, &table);
			return OPTIONS_DONE;
		case COMMAND_VERSION:
			fprintf(out, "mimeod %s\n", MIMEO_VERSION);
			return OPTIONS_DONE;
		case COMMAND_WRONG:
			if (settings)
				config_refuse(error, "%s; see --help", line.error);
			break;
		case OPTION_CONFIG:
			own->config_file = line.value;
			break;
		case OPTION_CHECK:
			own->check = true;
			break;
		default:
			rc = settings ? options_set(settings, &table, option, line.value, error) : 0;
			if (rc == -ENOMEM)
				return rc;
		}
	}
	for (; settings && optind < argc; optind++)
		config_refuse(error, "%.200s: not an option; see --help", argv[optind]);
	return 0;
}

/* ---- the environment ---- */

#define VARIABLE_MAX 48

/* "MIMEO_KV_PAGES" of kv_pages. */
static const char *options_variable(const struct config_key *key, char ret[static VARIABLE_MAX])
{
	size_t length = (size_t)snprintf(ret, VARIABLE_MAX, "MIMEO_%s", key->name);

	assert(length < VARIABLE_MAX);
	for (char *at = ret; *at; at++)
		*at = (char)toupper((unsigned char)*at);
	return ret;
}

static int options_read_environment(struct config_settings *settings, struct config_error *error)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		char name[VARIABLE_MAX];
		const char *value = getenv(options_variable(&config_keys[i], name));

		if (value && *value && config_set(settings, NULL, config_keys[i].name, value, name,
					       CONFIG_ENVIRONMENT, error) == -ENOMEM)
			return -ENOMEM;
	}
	return 0;
}

void options_clear_environment(const char *except)
{
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		char name[VARIABLE_MAX];

		if (!except || strcmp(config_keys[i].name, except) != 0)
			unsetenv(options_variable(&config_keys[i], name));
	}
}

const char *options_find_config(const char *system, bool root, char ret[static CONFIG_FOLDER_MAX])
{
	const char *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	char fragments[CONFIG_FOLDER_MAX];
	int n;

	snprintf(fragments, sizeof(fragments), "%s.d", system);
	if (root || access(system, F_OK) == 0 || access(fragments, F_OK) == 0)
		return system;
	if (folder && *folder == '/')
		n = snprintf(ret, CONFIG_FOLDER_MAX, "%s/" OPTIONS_USER_CONFIG, folder);
	else if (home && *home == '/')
		n = snprintf(ret, CONFIG_FOLDER_MAX, "%s/.config/" OPTIONS_USER_CONFIG, home);
	else
		return system;
	return n < CONFIG_FOLDER_MAX ? ret : system;
}

int options_parse(int argc, char **argv, const char *default_config, FILE *out, struct config *ret,
	struct config_error *error)
{
	CLEANUP(config_settings_deinit) struct config_settings settings = { 0 };
	struct options_own own = {0};
	const char *file;

	*error = (struct config_error){0};
	int rc = options_scan(argc, argv, out, NULL, &own, error);
	if (rc != 0)
		return rc;
	file = own.config_file ? own.config_file : default_config;
	if (file) {
		rc = config_parse_files(&settings, file, own.config_file != NULL, error);
		if (rc == -ENOMEM)
			return rc;
	}
	rc = options_read_environment(&settings, error);
	if (rc < 0)
		return rc;
	rc = options_scan(argc, argv, out, &settings, &own, error);
	if (rc < 0)
		return rc;
	rc = config_resolve(&settings, ret, error);
	if (rc < 0)
		return rc;
	snprintf(ret->file, sizeof(ret->file), "%s", file ? file : "");
	if (!own.check)
		return 0;
	config_print(out, &settings, ret);
	return OPTIONS_CHECK;
}
