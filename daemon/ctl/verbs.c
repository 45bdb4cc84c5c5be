/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/verbs.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/command_line.h"
#include "daemon/config/digits.h"
#include "daemon/config/suggest.h"

#define VERBS_COLUMN 24
#define VERBS_WORD_MAX 32

static const struct verb verbs[] = {
	{"status", "",
		"state and counters; exits 0 if serving, 1 if unreachable, 2 if not serving (the state says why: it "
		"loads, drains or failed)", "status"},
	{"sessions", "", "clients that are attached", "sessions", .flags = VERB_TAKES_USER},
	{"sessions show", "ID", "one session with all its figures", "sessions", VERB_SESSION, VERB_SHOWS},
	{"sessions kill", "ID", "end a session", "kill", VERB_SESSION, VERB_ORDERS},
	{"requests", "", "requests that wait, run or were preempted", "requests",
		.flags = VERB_TAKES_MODEL | VERB_TAKES_USER},
	{"requests list", "", NULL, "requests", .flags = VERB_TAKES_MODEL | VERB_TAKES_USER},
	{"requests show", "ID", "one request with all its figures", "requests", VERB_REQUEST, VERB_SHOWS},
	{"requests cancel", "ID", "end a request as its client's cancel does", "cancel", VERB_REQUEST, VERB_ORDERS},
	{"pages", "", "KV cache pages by model, user and session, and the prefix cache", "pages",
		.flags = VERB_TAKES_MODEL | VERB_TAKES_USER},
	{"pages drop", "", "empty the prefix cache of pages that no sequence uses", "drop_pages", VERB_NOTHING,
		VERB_ORDERS, VERB_TAKES_MODEL},
	{"limits", "", "what each user has of what is limited", "limits", .flags = VERB_TAKES_USER},
	{"models", "", "models, their attention, graph mode, KV cache and draft models", "models"},
	{"models show", "NAME", "one model: where it comes from, its sizes, memory, KV cache, graphs and limits",
		"models", VERB_MODEL, VERB_SHOWS},
	{"models load", "NAME[=DIR] [KEY=VALUE]...",
		"load a model while the daemon serves, of the configuration or of a directory or GGUF file", "load",
		VERB_LOAD, VERB_ORDERS},
	{"models unload", "NAME", "stop serving a model and free its memory", "unload", VERB_MODEL, VERB_ORDERS},
	{"graphs", "", "captured graphs and their replays, and steps without a graph", "graphs",
		.flags = VERB_TAKES_MODEL},
	{"graphs capture", "GRAPH | all", "capture graphs that are not captured, named as listed", "capture",
		VERB_GRAPH, VERB_FOLLOWS, VERB_TAKES_MODEL},
	{"graphs drop", "GRAPH | all | idle", "drop graphs; idle: those not replayed for 10 to 20 s", "drop",
		VERB_GRAPH, VERB_FOLLOWS, VERB_TAKES_MODEL},
	{"top", "", "live view of rates, latencies, queues and pages; keys sort, filter, kill and cancel", "top",
		VERB_NOTHING, VERB_WATCHES, VERB_TAKES_TOP},
	{"metrics", "", "all counters in Prometheus' text format", "metrics"},
	{"set", "NAME=VALUE", "change log_level or request_log until a reload", "set", VERB_SETTING, VERB_ORDERS},
	{"trace start", "", "begin to record steps, rows, requests and the engine's waits", "trace", VERB_NOTHING,
		VERB_ORDERS, .setting = "start"},
	{"trace stop", "", "end that, and print the last 131072 events as JSON for Perfetto", "trace", VERB_NOTHING,
		VERB_TRACES, .setting = "stop"},
	{"reload", "", "read the configuration again: applies what can change while it serves, and names what needs a "
		"restart", "reload", VERB_NOTHING, VERB_ORDERS},
	{"drain", "", "refuse new requests, finish those in flight, exit; waits for it", "drain", VERB_NOTHING,
		VERB_DRAINS},
	{"doctor", "",
		"what of this machine costs speed or features, and what to do; needs no daemon; exits 0 if nothing does, "
		"1 if something does, 2 if it could not print", "doctor", VERB_NOTHING, VERB_EXAMINES},
	{"complete", "-- WORD...", NULL, NULL, VERB_WORDS, VERB_COMPLETES},
};

const struct verb *verbs_all(size_t *ret_n)
{
	*ret_n = sizeof(verbs) / sizeof(verbs[0]);
	return verbs;
}

int verbs_refuse(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("mimeoctl: ", stderr);
	vfprintf(stderr, format, arguments);
	fputs(": see mimeoctl --help\n", stderr);
	va_end(arguments);
	return EXIT_USAGE;
}

void verbs_print(FILE *out)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		char name[64];

		snprintf(name, sizeof(name), "%s%s%s", verbs[i].words, verbs[i].arguments[0] ? " " : "",
			verbs[i].arguments);
		if (verbs[i].help)
			command_line_print(out, name, VERBS_COLUMN, verbs[i].help);
	}
}

bool verbs_word(const struct verb *verb, unsigned index, char *ret, size_t size)
{
	const char *at = verb->words;

	for (; index > 0 && *at; index--) {
		at += strcspn(at, " ");
		at += *at == ' ';
	}
	assert(size > strcspn(at, " "));
	snprintf(ret, size, "%.*s", (int)strcspn(at, " "), at);
	return *at != '\0';
}

/* ---- finding one ---- */

/* How many words the verb has, if all of them are the first ones; else 0. */
static int verbs_match(const struct verb *verb, char **words, int n_words)
{
	char word[VERBS_WORD_MAX];
	int n = 0;

	while (verbs_word(verb, (unsigned)n, word, sizeof(word))) {
		if (n == n_words || strcmp(words[n], word) != 0)
			return 0;
		n++;
	}
	return n;
}

/* The verb with the most words; *ret_n: how many. NULL: none. */
static const struct verb *verbs_find(char **words, int n_words, int *ret_n)
{
	const struct verb *found = NULL;

	*ret_n = 0;
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		int n = verbs_match(&verbs[i], words, n_words);

		if (n <= *ret_n)
			continue;
		*ret_n = n;
		found = &verbs[i];
	}
	return found;
}

/* Is it the first word of a verb? */
static bool verbs_begin(const char *first)
{
	char word[VERBS_WORD_MAX];

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		verbs_word(&verbs[i], 0, word, sizeof(word));
		if (strcmp(word, first) == 0)
			return true;
	}
	return false;
}

/* Words that would have been right at that place, behind words[0] if index is 1. */
static const char *verbs_suggest(char **words, int index)
{
	static char candidates[sizeof(verbs) / sizeof(verbs[0])][VERBS_WORD_MAX];
	const char *names[sizeof(verbs) / sizeof(verbs[0])];
	size_t n = 0;

	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		char first[VERBS_WORD_MAX];

		verbs_word(&verbs[i], 0, first, sizeof(first));
		if (!verbs[i].op || (index == 1 && strcmp(first, words[0]) != 0) ||
			!verbs_word(&verbs[i], (unsigned)index, candidates[n], sizeof(candidates[n])))
			continue;
		names[n] = candidates[n];
		n++;
	}
	return suggest(words[index], names, n);
}

static int verbs_refuse_word(const char *what, char **words, int index)
{
	const char *better = verbs_suggest(words, index);

	if (better)
		return verbs_refuse("%s: %s (did you mean %s?)", what, words[index], better);
	return verbs_refuse("%s: %s", what, words[index]);
}

/* ---- arguments ---- */

static int verbs_parse_id(struct verbs_command *command)
{
	const char *what = command->verb->argument == VERB_SESSION ? "session" : "request";

	if (command->n_words != 1)
		return verbs_refuse("%s needs one %s number", command->verb->words, what);
	const char *at = command->words[0];
	if (digits_parse(&at, UINT64_MAX, &command->id) < 0 || *at)
		return verbs_refuse("not a %s number: %s", what, command->words[0]);
	return EXIT_DONE;
}

/* A graph's name has a space, "FULL 8x1", and may be one word or two. */
static int verbs_parse_graph(struct verbs_command *command)
{
	char **words = command->words;

	if (command->n_words < 1 || command->n_words > 2)
		return verbs_refuse("%s needs a graph name%s", command->verb->words,
			strstr(command->verb->arguments, "idle") ? ", 'all' or 'idle'" : " or 'all'");
	int n = snprintf(command->graph, sizeof(command->graph), command->n_words == 1 ? "%s" : "%s %s", words[0],
		command->n_words == 1 ? "" : words[1]);
	return n < VERBS_GRAPH_MAX ? EXIT_DONE : verbs_refuse("no graph has so long a name: %s", words[0]);
}

/* Relative paths are of mimeoctl's directory, not the daemon's. */
static int verbs_take_path(const char *path, struct verbs_command *command)
{
	char folder[VERBS_PATH_MAX] = "";

	if (!path[0])
		return verbs_refuse("%s: the directory is missing: %s", command->verb->words, command->words[0]);
	if (path[0] != '/' && !getcwd(folder, sizeof(folder)))
		return verbs_refuse("%s: this directory has no path", command->verb->words);
	int n = snprintf(command->path, sizeof(command->path), "%s%s%s", folder, folder[0] ? "/" : "", path);
	return n < VERBS_PATH_MAX ? EXIT_DONE : verbs_refuse("%s: too long: %s", command->verb->words, path);
}

static int verbs_parse_load(struct verbs_command *command)
{
	char **words = command->words;
	size_t used = 0;

	if (command->n_words < 1)
		return verbs_refuse("%s needs a name or NAME=DIR", command->verb->words);
	const size_t length = strcspn(words[0], "=");
	if (length == 0 || length >= sizeof(command->model))
		return verbs_refuse("%s: no model can have this name: %s", command->verb->words, words[0]);
	snprintf(command->model, sizeof(command->model), "%.*s", (int)length, words[0]);
	if (words[0][length]) {
		int status = verbs_take_path(words[0] + length + 1, command);

		if (status != EXIT_DONE)
			return status;
	}
	for (int i = 1; i < command->n_words; i++) {
		if (!strchr(words[i], '=') || strchr(words[i], '\n'))
			return verbs_refuse("%s: not KEY=VALUE: %s", command->verb->words, words[i]);
		used += (size_t)snprintf(command->settings + used, sizeof(command->settings) - used, "%s\n", words[i]);
		if (used >= sizeof(command->settings))
			return verbs_refuse("%s: the settings are too long", command->verb->words);
	}
	return EXIT_DONE;
}

int verbs_parse(char **words, int n_words, struct verbs_command *ret)
{
	int n;

	if (n_words == 0)
		return verbs_refuse("a command is missing");
	ret->verb = verbs_find(words, n_words, &n);
	if (!ret->verb && !verbs_begin(words[0]))
		return verbs_refuse_word("unknown command", words, 0);
	if (!ret->verb)
		return n_words > 1 ? verbs_refuse_word("unknown command", words, 1)
				   : verbs_refuse("%s needs a second word", words[0]);
	ret->words = words + n;
	ret->n_words = n_words - n;
	switch (ret->verb->argument) {
	case VERB_SESSION:
	case VERB_REQUEST:
		return verbs_parse_id(ret);
	case VERB_GRAPH:
		return verbs_parse_graph(ret);
	case VERB_SETTING:
		return ret->n_words == 1 && strchr(ret->words[0], '=')
			? EXIT_DONE : verbs_refuse("set needs one NAME=VALUE");
	case VERB_LOAD:
		return verbs_parse_load(ret);
	case VERB_MODEL:
		return ret->n_words == 1 ? EXIT_DONE
					 : verbs_refuse("%s needs one model's name", ret->verb->words);
	case VERB_WORDS:
		return EXIT_DONE;
	case VERB_NOTHING:
		break;
	}
	return ret->n_words ? verbs_refuse_word("one word too many", words, n) : EXIT_DONE;
}
