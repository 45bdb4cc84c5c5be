/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/complete.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/command_line.h"
#include "daemon/ctl/names.h"
#include "daemon/ctl/reach.h"
#include "daemon/ctl/top_rows.h"
#include "daemon/ctl/verbs.h"
#include "ipc/cleanup.h"

#define COMPLETE_WORDS_MAX 8 /* of a command */

/* The command line so far. */
struct complete {
	const struct command_option *options;
	size_t n_options;
	const char *current;               /* the word to complete, or the value in it */
	char before[64];                   /* what of that word comes ahead of the value: "--model=" */
	const char *socket;
	const struct command_option *open; /* the option whose value the current word is; NULL */
	char *words[COMPLETE_WORDS_MAX];   /* of the command, ahead of the current word */
	int n_words;
	FILE *out;
};

static void complete_offer(const struct complete *complete, const char *candidate, const char *description)
{
	if (strncmp(candidate, complete->current, strlen(complete->current)) == 0)
		fprintf(complete->out, "%s%s\t%s\n", complete->before, candidate, description);
}

/* An option that has a value, "--model" or "--model=...". */
static const struct command_option *complete_find_option(const struct complete *complete, const char *word)
{
	const size_t length = strcspn(word, "=");

	for (size_t i = 0; i < complete->n_options; i++) {
		const struct command_option *option = &complete->options[i];

		if (option->value && strncmp(word, "--", 2) == 0 && strlen(option->name) + 2 == length &&
			strncmp(word + 2, option->name, length - 2) == 0)
			return option;
	}
	return NULL;
}

/* A word ahead of the current one. bash makes three words of "--model=NAME". */
static void complete_read_word(struct complete *complete, char *word)
{
	const struct command_option *open = complete->open;
	const char *value = open ? word : strchr(word, '=');

	if (strcmp(word, "=") == 0)
		return;
	complete->open = NULL;
	if (!open) {
		open = complete_find_option(complete, word);
		value = value ? value + 1 : NULL;
	}
	if (open && !value)
		complete->open = open;
	else if (open && strcmp(open->name, "socket") == 0)
		complete->socket = value;
	else if (!open && word[0] != '-' && complete->n_words < COMPLETE_WORDS_MAX)
		complete->words[complete->n_words++] = word;
}

static void complete_read(struct complete *complete, char **words, int n_words)
{
	const char *value;

	for (int i = 0; i + 1 < n_words; i++)
		complete_read_word(complete, words[i]);
	complete->current = n_words && strcmp(words[n_words - 1], "=") != 0 ? words[n_words - 1] : "";
	value = strchr(complete->current, '=');
	if (complete->open || !value)
		return;
	complete->open = complete_find_option(complete, complete->current);
	if (!complete->open)
		return;
	snprintf(complete->before, sizeof(complete->before), "%.*s", (int)(value + 1 - complete->current),
		complete->current);
	complete->current = value + 1;
}

/* ---- names of the daemon ---- */

static void complete_names(const struct complete *complete, enum names_of of)
{
	CLEANUP(names_deinit) struct names names = {0};
	char admin[SOCKET_PATH_MAX];
	CLEANUP(cleanup_close) int fd = reach_quietly(complete->socket, admin);

	if (fd < 0 || names_ask(fd, of, &names) < 0)
		return;
	for (size_t i = 0; i < names.n; i++)
		complete_offer(complete, names.items[i], names.descriptions[i]);
}

/* A graph's name has two words: the mode, each once, then the sizes that go with it. */
static void complete_graphs(const struct complete *complete, const struct verb *verb, const char *mode)
{
	CLEANUP(names_deinit) struct names names = {0};
	char admin[SOCKET_PATH_MAX], last[VERBS_GRAPH_MAX] = "";
	CLEANUP(cleanup_close) int fd = reach_quietly(complete->socket, admin);

	if (!mode) {
		complete_offer(complete, "all", "all graphs");
		if (strstr(verb->arguments, "idle"))
			complete_offer(complete, "idle", "graphs that were not replayed lately");
	}
	if (fd < 0 || names_ask(fd, NAMES_GRAPHS, &names) < 0)
		return;
	for (size_t i = 0; i < names.n; i++) {
		char *blank = strchr(names.items[i], ' ');

		if (!blank)
			continue;
		*blank = '\0';
		if (!mode && strcmp(last, names.items[i]) != 0)
			complete_offer(complete, names.items[i], "graphs of this mode");
		else if (mode && strcmp(mode, names.items[i]) == 0)
			complete_offer(complete, blank + 1, names.descriptions[i]);
		snprintf(last, sizeof(last), "%s", names.items[i]);
	}
}

/* ---- commands ---- */

/* How many of the verb's words the line has, if it has no other one; -1: it has. */
static int complete_matched(const struct complete *complete, const struct verb *verb)
{
	char word[32];
	int n = 0;

	while (n < complete->n_words && verbs_word(verb, (unsigned)n, word, sizeof(word))) {
		if (strcmp(complete->words[n], word) != 0)
			return -1;
		n++;
	}
	return n;
}

static void complete_settings(const struct complete *complete)
{
	static const char *const settings[] = {"log_level=error", "log_level=warn", "log_level=info", "log_level=debug",
		"request_log=yes", "request_log=no"};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		complete_offer(complete, settings[i], "");
}

static void complete_argument(const struct complete *complete, const struct verb *verb, int n)
{
	if (verb->argument == VERB_SESSION && n == 0)
		complete_names(complete, NAMES_SESSIONS);
	else if (verb->argument == VERB_REQUEST && n == 0)
		complete_names(complete, NAMES_REQUESTS);
	else if (verb->argument == VERB_SETTING && n == 0)
		complete_settings(complete);
	else if (verb->argument == VERB_MODEL && n == 0)
		complete_names(complete, NAMES_MODELS);
	else if (verb->argument == VERB_GRAPH && n <= 1)
		complete_graphs(complete, verb, n ? complete->words[complete->n_words - 1] : NULL);
}

static void complete_verbs(const struct complete *complete)
{
	char word[32], last[32] = "";
	size_t n_verbs;
	const struct verb *verbs = verbs_all(&n_verbs);

	for (size_t i = 0; i < n_verbs; i++) {
		const int n = complete_matched(complete, &verbs[i]);

		if (n < 0 || !verbs[i].op)
			continue;
		if (verbs_word(&verbs[i], (unsigned)n, word, sizeof(word))) {
			/* verbs with the same first word follow each other */
			if (n == complete->n_words && strcmp(word, last) != 0)
				complete_offer(complete, word, verbs[i].help ? verbs[i].help : "");
			strcpy(last, word);
		} else {
			complete_argument(complete, &verbs[i], complete->n_words - n);
		}
	}
}

static void complete_options(const struct complete *complete)
{
	char name[64];

	for (size_t i = 0; i < complete->n_options; i++) {
		snprintf(name, sizeof(name), "--%s", complete->options[i].name);
		complete_offer(complete, name, complete->options[i].help);
	}
	complete_offer(complete, "--help", "print commands and options");
	complete_offer(complete, "--version", "print the version");
}

static void complete_fields(const struct complete *complete)
{
	for (int field = 0; field < N_TOP_FIELDS; field++)
		complete_offer(complete, top_field_name((enum top_field)field), "");
}

void complete_print(char **words, int n_words, const struct command_option *options, size_t n_options, FILE *out)
{
	struct complete complete = {.options = options, .n_options = n_options, .out = out};

	complete_read(&complete, words, n_words);
	if (complete.open && strcmp(complete.open->name, "model") == 0)
		complete_names(&complete, NAMES_MODELS);
	else if (complete.open && strcmp(complete.open->name, "user") == 0)
		complete_names(&complete, NAMES_USERS);
	else if (complete.open && strcmp(complete.open->name, "sort") == 0)
		complete_fields(&complete);
	else if (!complete.open && complete.current[0] == '-')
		complete_options(&complete);
	else if (!complete.open)
		complete_verbs(&complete);
}
