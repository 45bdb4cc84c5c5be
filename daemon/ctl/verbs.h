/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_VERBS_H
#define MIMEO_DAEMON_CTL_VERBS_H

/* The commands of mimeoctl: one table for parsing, help, suggestions and completion. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses, which scripts rely on: mimeoctl(1). */
enum { EXIT_DONE = 0, EXIT_ERROR = 1, EXIT_NOT_SERVING = 2, EXIT_USAGE = 3 };

/* What follows a command's words. */
enum verb_argument {
	VERB_NOTHING, VERB_SESSION, VERB_REQUEST, VERB_GRAPH, VERB_MODEL, VERB_LOAD, VERB_SETTING, VERB_WORDS
};

/* What a command does with its answer. */
enum verb_kind {
	VERB_LISTS,     /* prints its rows */
	VERB_SHOWS,     /* prints the row of the id, or of the model */
	VERB_ORDERS,    /* prints its text */
	VERB_FOLLOWS,   /* an order about graphs: waits for it */
	VERB_DRAINS,
	VERB_WATCHES,   /* asks again and again */
	VERB_TRACES,    /* prints a file */
	VERB_EXAMINES,  /* the machine: needs no daemon */
	VERB_COMPLETES, /* asks the daemon by itself, if at all */
};

#define VERB_TAKES_MODEL 1u /* --model */
#define VERB_TAKES_USER 2u  /* --user */
#define VERB_TAKES_TOP 4u   /* --batch, --count, --delay, --sort */

struct verb {
	const char *words;     /* "sessions kill" */
	const char *arguments; /* for --help: "ID" */
	const char *help;      /* NULL: not shown by --help */
	const char *op;        /* on the wire */
	enum verb_argument argument;
	enum verb_kind kind;
	unsigned flags;
	const char *setting; /* on the wire; or NULL */
};

#define VERBS_GRAPH_MAX 32 /* of a graph's name, with terminator */
#define VERBS_PATH_MAX 1024

/* What the words behind the options ask for. */
struct verbs_command {
	const struct verb *verb;
	uint64_t id;                     /* of a session or request */
	char graph[2 * VERBS_GRAPH_MAX]; /* a graph's name, "all", "idle" */
	char model[64];                  /* to load */
	char path[VERBS_PATH_MAX];       /* its directory or file; "": the configuration has it */
	char settings[2048];             /* a line each */
	char **words;                    /* what follows the verb's words */
	int n_words;
};

/* All of them, n of them. */
const struct verb *verbs_all(size_t *ret_n);
/* EXIT_DONE, or EXIT_USAGE after a line that says what is wrong. */
int verbs_parse(char **words, int n_words, struct verbs_command *ret);
void verbs_print(FILE *out);
/* The verb's word of that index, copied; false: it has fewer. */
bool verbs_word(const struct verb *verb, unsigned index, char *ret, size_t size);
/* Print "mimeoctl: ...: see mimeoctl --help"; EXIT_USAGE. */
int verbs_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
