/* SPDX-License-Identifier: MIT */
#include "daemon/config/options.h"

#include <getopt.h>
#include <string.h>
#include <unistd.h>

#include <build-config.h>

#include "ipc/cleanup.h"

enum {
	OPTION_HELP = 1000,
	OPTION_VERSION,
	OPTION_CONFIG,
	OPTION_MODEL,
	N_OWN_OPTIONS = 4,
	OPTION_NAME_MAX = 32,
};

struct option_table {
	struct option options[CONFIG_N_KEYS + N_OWN_OPTIONS + 1];
	char names[CONFIG_N_KEYS][OPTION_NAME_MAX];
};

static void options_make_table(struct option_table *table)
{
	*table = (struct option_table){
		.options = {
			{ "help", no_argument, NULL, OPTION_HELP },
			{ "version", no_argument, NULL, OPTION_VERSION },
			{ "config", required_argument, NULL, OPTION_CONFIG },
			{ "model", required_argument, NULL, OPTION_MODEL },
		},
	};
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		char *name = table->names[i];

		snprintf(name, OPTION_NAME_MAX, "%s", config_keys[i].name);
		for (char *at = name; (at = strchr(at, '_')); at++)
			*at = '-';
		table->options[N_OWN_OPTIONS + i] =
			(struct option){ name, required_argument, NULL, i };
	}
}

static void options_print(FILE *out, const char *name, const char *argument, const char *help)
{
	int width = fprintf(out, "  --%s%s%s", name, argument ? " " : "", argument ? argument : "");

	fprintf(out, "%*s%s", width < 31 ? 31 - width : 1, "", help);
}

static void options_print_help(FILE *out, const struct option_table *table)
{
	fprintf(out, "Usage: mimeod [OPTION]... --model NAME=DIR...\n\n"
		     "Execute language models for the processes of this machine.\n\n");
	options_print(out, "config", "FILE", "configuration file (default: " OPTIONS_DEFAULT_CONFIG
					     ", if it exists)\n");
	options_print(out, "model", "NAME=DIR", "serve the model in DIR as NAME; repeatable\n");
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		char argument[64];

		snprintf(argument, sizeof(argument), "%s%s", key->per_model ? "[NAME=]" : "",
			key->argument);
		options_print(out, table->names[i], argument, key->help);
		fprintf(out, " (default: %s)\n", key->fallback ? key->fallback : key->nothing);
	}
	options_print(out, "help", NULL, "print this and exit\n");
	options_print(out, "version", NULL, "print the version and exit\n");
	fprintf(out, "\nSIZE is in bytes, or has a suffix K, M, G or T (powers of 1024). With "
		     "[NAME=] an "
		     "option\nmeans one model, without it all of them. See mimeod(8) and "
		     "mimeod.conf(5).\n");
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

static int options_set(struct config_settings *settings, const struct option *option,
	const char *text, struct config_error *error)
{
	const struct config_key *key = option->val == OPTION_MODEL ? NULL : &config_keys[option->val];
	char name[CONFIG_NAME_MAX + 1], where[OPTION_NAME_MAX + 2];
	const char *value = !key || key->per_model ? options_split(text, name) : NULL;

	if (!key && !value)
		return config_refuse(error, "--model: \"%.200s\" is not NAME=DIR", text);
	snprintf(where, sizeof(where), "--%s", option->name);
	return config_set(settings, value ? name : NULL, key ? key->name : "dir",
		value ? value : text, where, CONFIG_COMMAND_LINE, error);
}

/* Go through the command line: with settings NULL for --help, --version, --config and what is no option
 * at all, else for the settings. 0, OPTIONS_DONE or -errno. */
static int options_scan(int argc, char **argv, FILE *out, struct config_settings *settings,
	const char **config_file, struct config_error *error)
{
	struct option_table table;
	int choice, index = 0, rc;

	options_make_table(&table);
	optind = 0;
	opterr = 0;
	while ((choice = getopt_long(argc, argv, ":", table.options, &index)) != -1) {
		switch (choice) {
		case OPTION_HELP:
			options_print_help(out, &table);
			return OPTIONS_DONE;
		case OPTION_VERSION:
			fprintf(out, "mimeod %s\n", MIMEO_VERSION);
			return OPTIONS_DONE;
		case '?': /* getopt means the argument before optind */
			return config_refuse(error, "%.200s: unknown or misused option; see --help",
				argv[optind - 1]);
		case ':':
			return config_refuse(
				error, "%.200s: needs a value; see --help", argv[optind - 1]);
		case OPTION_CONFIG:
			*config_file = optarg;
			break;
		default:
			rc = settings ? options_set(settings, &table.options[index], optarg, error) : 0;
			if (rc < 0)
				return rc;
		}
	}
	if (optind < argc)
		return config_refuse(error, "%.200s: not an option; see --help", argv[optind]);
	return 0;
}

int options_parse(int argc, char **argv, const char *default_config, FILE *out, struct config *ret,
	struct config_error *error)
{
	CLEANUP(config_settings_deinit) struct config_settings settings = { 0 };
	const char *config_file =
		default_config && access(default_config, F_OK) == 0 ? default_config : NULL;

	int rc = options_scan(argc, argv, out, NULL, &config_file, error);
	if (rc != 0)
		return rc;
	if (config_file) {
		rc = config_parse_file(&settings, config_file, error);
		if (rc < 0)
			return rc;
	}
	rc = options_scan(argc, argv, out, &settings, &config_file, error);
	if (rc < 0)
		return rc;
	return config_resolve(&settings, ret, error);
}
