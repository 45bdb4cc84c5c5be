/* SPDX-License-Identifier: MIT */
#include "daemon/config/command_line.h"

#include <assert.h>
#include <getopt.h>
#include <string.h>

#include "daemon/config/suggest.h"

#define LINE_MAX_COLUMNS 80
#define COMMAND_NAME_MAX 64 /* of an unknown option, as far as it is shown */
#define TEXT_COLUMN 24
#define FIRST_VAL 256 /* above every character, which getopt reports for a short option */

/* The word of the option that getopt_long has just read. */
static const char *command_line_word(const struct command_line *line)
{
	const char *last = line->argv[optind - 1];

	return optarg == last && optind > 1 ? line->argv[optind - 2] : last;
}

/* Whether "--NAME" or "--NAME=VALUE" has a name of the table: getopt_long takes the beginning of one, too. */
static bool command_line_is_whole(const char *word, const struct option *table)
{
	const size_t length = strcspn(word, "=");

	for (size_t i = 0; table[i].name; i++) {
		if (length == 2 + strlen(table[i].name) && strncmp(word + 2, table[i].name, length - 2) == 0)
			return true;
	}
	return false;
}

static int command_line_refuse_unknown(struct command_line *line, const char *word, const struct option *table)
{
	const char *names[COMMAND_OPTIONS_MAX + 2], *better;
	char name[COMMAND_NAME_MAX];
	size_t n = 0;

	for (; table[n].name; n++)
		names[n] = table[n].name;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
	better = suggest(name, names, n);
	snprintf(line->error, sizeof(line->error), "--%s: unknown option%s%s%s", name,
		better ? " (did you mean --" : "", better ? better : "", better ? "?)" : "");
	return COMMAND_WRONG;
}

static int command_line_take(struct command_line *line, int option, const struct option *table)
{
	const int n = (int)line->n_options;
	const char *word = command_line_word(line);

	if (option == '?' && optopt > 0 && optopt < FIRST_VAL) {
		snprintf(line->error, sizeof(line->error), "-%c: unknown option", optopt);
		return COMMAND_WRONG;
	}
	if (!command_line_is_whole(word, table))
		return command_line_refuse_unknown(line, word, table);
	line->value = optarg;
	if (option >= FIRST_VAL)
		return option < FIRST_VAL + n ? option - FIRST_VAL
			: option == FIRST_VAL + n ? COMMAND_HELP : COMMAND_VERSION;
	snprintf(line->error, sizeof(line->error), "%.80s: %s", word,
		option == ':' ? "needs a value" : "takes no value");
	return COMMAND_WRONG;
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
	line->value = NULL;
	if (!line->started)
		optind = 0;
	line->started = true;
	opterr = 0;
	int option = getopt_long(line->argc, line->argv, ":", table, NULL);
	return option == -1 ? COMMAND_END : command_line_take(line, option, table);
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
