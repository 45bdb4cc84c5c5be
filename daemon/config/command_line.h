/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_COMMAND_LINE_H
#define MIMEO_DAEMON_COMMAND_LINE_H

/*
 * The command line of a program, from one table of its options. All options are long, and may come before or after
 * other arguments; --help and --version need no row. Abbreviations are refused: a new option could make one
 * ambiguous. Not thread-safe (getopt).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define COMMAND_OPTIONS_MAX 64
#define COMMAND_ERROR_MAX 192

struct command_option {
	const char *name;  /* without the hyphens */
	const char *value; /* what --help calls its value; NULL: the option is a flag */
	const char *help;
};

struct command_line {
	int argc;
	char **argv;
	const struct command_option *options; /* [n_options], at most COMMAND_OPTIONS_MAX */
	size_t n_options;
	/* set by command_line_next */
	const char *value; /* of the option; NULL for a flag */
	char error[COMMAND_ERROR_MAX]; /* with COMMAND_WRONG: what is wrong */
	bool started;
};

enum command_result {
	COMMAND_END = -1, /* the other arguments begin at argv[optind] */
	COMMAND_HELP = -2,
	COMMAND_VERSION = -3,
	COMMAND_WRONG = -4,
};

/* The index of the next option, or an enum command_result. */
int command_line_next(struct command_line *line);

/* For --help, in at most 80 columns: all options, --help and --version included. */
void command_line_print_options(FILE *out, const struct command_option *options, size_t n);
/* The same for one name; each line of the text starts in the column `column`. */
void command_line_print(FILE *out, const char *name, size_t column, const char *text);

#endif
