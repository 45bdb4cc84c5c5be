/* SPDX-License-Identifier: MIT */
#include "daemon/config/options.h"

#include <errno.h>
#include <getopt.h>
#include <string.h>
#include <unistd.h>

#include <build-config.h>

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

struct command_line {
	struct config_settings settings;
	const char *config_file;
};

static void make_table(struct option_table *table)
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

static void print_option(FILE *out, const char *name, const char *argument, const char *help)
{
	int width = fprintf(out, "  --%s%s%s", name, argument ? " " : "", argument ? argument : "");

	fprintf(out, "%*s%s", width < 31 ? 31 - width : 1, "", help);
}

static void print_help(FILE *out, const struct option_table *table)
{
	fprintf(out, "Usage: mimeod [OPTION]... --model NAME=DIR...\n\n"
		     "Execute language models for the processes of this machine.\n\n");
	print_option(out, "config", "FILE", "configuration file (default: " OPTIONS_DEFAULT_CONFIG
					    ", if it exists)\n");
	print_option(out, "model", "NAME=DIR", "serve the model in DIR as NAME; repeatable\n");
	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		const struct config_key *key = &config_keys[i];
		char argument[64];

		snprintf(argument, sizeof(argument), "%s%s", key->per_model ? "[NAME=]" : "",
			key->argument);
		print_option(out, table->names[i], argument, key->help);
		fprintf(out, " (default: %s)\n", key->fallback ? key->fallback : key->nothing);
	}
	print_option(out, "help", NULL, "print this and exit\n");
	print_option(out, "version", NULL, "print the version and exit\n");
	fprintf(out, "\nSIZE is in bytes, or has a suffix K, M, G or T (powers of 1024). With "
		     "[NAME=] an "
		     "option\nmeans one model, without it all of them. See mimeod(8) and "
		     "mimeod.conf(5).\n");
}

/* "NAME=VALUE": the name is copied, and what is behind it returned; NULL if there is no '='. */
static const char *split_name(const char *text, char name[static CONFIG_NAME_MAX + 1])
{
	const char *equals = strchr(text, '=');
	size_t length;

	if (!equals)
		return NULL;
	length = (size_t)(equals - text);
	if (length > CONFIG_NAME_MAX)
		length = CONFIG_NAME_MAX; /* too long to be valid, and stays so */
	memcpy(name, text, length);
	name[length] = '\0';
	return equals + 1;
}

static int take_model(struct command_line *line, const char *text, struct config_error *error)
{
	char name[CONFIG_NAME_MAX + 1];
	const char *dir = split_name(text, name);

	if (!dir) {
		snprintf(error->text, sizeof(error->text), "--model: \"%.200s\" is not NAME=DIR",
			text);
		return -EINVAL;
	}
	return config_set(&line->settings, name, "dir", dir, "--model", false, error);
}

static int take_key(struct command_line *line, int index, const char *option, const char *text,
	struct config_error *error)
{
	const struct config_key *key = &config_keys[index];
	char name[CONFIG_NAME_MAX + 1], where[OPTION_NAME_MAX + 2];
	const char *value = key->per_model ? split_name(text, name) : NULL;

	snprintf(where, sizeof(where), "--%s", option);
	return config_set(&line->settings, value ? name : NULL, key->name, value ? value : text,
		where, true, error);
}

static int refuse(int choice, char **argv, struct config_error *error)
{
	/* What getopt complains of is the argument before optind. */
	snprintf(error->text, sizeof(error->text),
		choice == ':' ? "%.200s: needs a value; see --help"
			      : "%.200s: unknown or misused option; see --help",
		argv[optind - 1]);
	return -EINVAL;
}

static int parse_line(int argc, char **argv, FILE *out, struct command_line *line,
	struct config_error *error)
{
	struct option_table table;
	int choice, index = 0, r = 0;

	make_table(&table);
	optind = 0;
	opterr = 0;
	while (r == 0 && (choice = getopt_long(argc, argv, ":", table.options, &index)) != -1) {
		if (choice == OPTION_HELP) {
			print_help(out, &table);
			return OPTIONS_DONE;
		}
		if (choice == OPTION_VERSION) {
			fprintf(out, "mimeod %s\n", MIMEO_VERSION);
			return OPTIONS_DONE;
		}
		if (choice == '?' || choice == ':')
			return refuse(choice, argv, error);
		if (choice == OPTION_CONFIG)
			line->config_file = optarg;
		else if (choice == OPTION_MODEL)
			r = take_model(line, optarg, error);
		else
			r = take_key(line, choice, table.options[index].name, optarg, error);
	}
	if (r == 0 && optind < argc) {
		snprintf(error->text, sizeof(error->text), "%.200s: not an option; see --help",
			argv[optind]);
		return -EINVAL;
	}
	return r;
}

int options_parse(int argc, char **argv, const char *default_config, FILE *out, struct config *ret,
	struct config_error *error)
{
	struct command_line line = { 0 };
	struct config_settings file = { 0 };
	int r;

	r = parse_line(argc, argv, out, &line, error);
	if (r != 0)
		goto done;
	if (!line.config_file && default_config && access(default_config, F_OK) == 0)
		line.config_file = default_config;
	if (line.config_file) {
		r = config_parse_file(&file, line.config_file, error);
		if (r < 0)
			goto done;
	}
	r = config_resolve(&line.settings, &file, ret, error);
done:
	config_settings_deinit(&file);
	config_settings_deinit(&line.settings);
	return r;
}
