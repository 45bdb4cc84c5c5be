/* SPDX-License-Identifier: MIT */
#include "daemon/config/command_line.h"

#include <assert.h>
#include <getopt.h>
#include <string.h>

#define LINE_MAX_COLUMNS 80
#define TEXT_COLUMN 24
#define FIRST_VAL 256 /* above every character, which getopt reports for a short option */

/* getopt_long reports unknown, ambiguous and misused options alike. */
static void command_line_explain(struct command_line *line)
{
	const char *argument = line->argv[optind - 1];
	int n_matches = 0;

	if (optopt > 0 && optopt < FIRST_VAL) {
		snprintf(line->error, sizeof(line->error), "-%c: unknown option", optopt);
		return;
	}
	for (size_t i = 0; i < line->n_options && strlen(argument) > 2; i++)
		n_matches += strncmp(line->options[i].name, argument + 2, strcspn(argument, "=") - 2) == 0;
	snprintf(line->error, sizeof(line->error), "%.80s: %s", argument,
		optopt ? "takes no value" : n_matches > 1 ? "ambiguous option" : "unknown option");
}

int command_line_next(struct command_line *line)
{
	const int n = (int)line->n_options;
	struct option table[COMMAND_OPTIONS_MAX + 3] = {{0}};

	assert(n <= COMMAND_OPTIONS_MAX);
	for (int i = 0; i < n; i++)
		table[i] = (struct option){line->options[i].name,
			line->options[i].value ? required_argument : no_argument, NULL, FIRST_VAL + i};
	table[n] = (struct option){"help", no_argument, NULL, FIRST_VAL + n};
	table[n + 1] = (struct option){"version", no_argument, NULL, FIRST_VAL + n + 1};
	if (!line->started)
		optind = 0;
	line->started = true;
	opterr = 0;
	int option = getopt_long(line->argc, line->argv, ":", table, NULL);
	line->value = optarg;
	if (option >= FIRST_VAL)
		return option < FIRST_VAL + n ? option - FIRST_VAL
			: option == FIRST_VAL + n ? COMMAND_HELP : COMMAND_VERSION;
	if (option == -1)
		return COMMAND_END;
	if (option == ':')
		snprintf(line->error, sizeof(line->error), "%.80s: needs a value", line->argv[optind - 1]);
	else
		command_line_explain(line);
	return COMMAND_WRONG;
}

void command_line_print(FILE *out, const char *name, size_t column, const char *text)
{
	size_t at = (size_t)fprintf(out, "  %s", name);

	while (*text) {
		size_t length = strlen(text), most = LINE_MAX_COLUMNS - column;

		if (length > most) {
			length = most;
			while (length > 0 && text[length] != ' ')
				length--;
			if (length == 0)
				length = strcspn(text, " ");
		}
		if (at >= column) {
			fputc('\n', out);
			at = 0;
		}
		fprintf(out, "%*s%.*s\n", (int)(column - at), "", (int)length, text);
		text += length + (text[length] == ' ');
		at = 0;
	}
}

void command_line_print_options(FILE *out, const struct command_option *options, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char name[64];

		snprintf(name, sizeof(name), "--%s%s%s", options[i].name, options[i].value ? " " : "",
			options[i].value ? options[i].value : "");
		command_line_print(out, name, TEXT_COLUMN, options[i].help);
	}
	command_line_print(out, "--help", TEXT_COLUMN, "print this and exit");
	command_line_print(out, "--version", TEXT_COLUMN, "print the version and exit");
}
