/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "build-config.h"
#include "daemon/config/command_line.h"
#include "daemon/config/digits.h"
#include "daemon/config/suggest.h"
#include "daemon/ctl/ask.h"
#include "daemon/ctl/complete.h"
#include "daemon/ctl/doctor.h"
#include "daemon/ctl/listing.h"
#include "daemon/ctl/names.h"
#include "daemon/ctl/order.h"
#include "daemon/ctl/record.h"
#include "daemon/ctl/reach.h"
#include "daemon/ctl/top.h"
#include "daemon/ctl/users.h"
#include "daemon/ctl/verbs.h"
#include "ipc/cleanup.h"
#include "ipc/socket.h"

#define PROGRESS_MS 500

struct main_settings {
	const char *socket; /* NULL: the default */
	enum table_form form;
	struct listing_filter filter;
	struct verbs_command command;
	struct ask ask;
	struct top_options top;
	bool has_top; /* one of its options was given */
	bool done; /* nothing is left to do */
};

enum {
	OPTION_MODEL,
	OPTION_USER,
	OPTION_SOCKET,
	OPTION_JSON,
	OPTION_WIDE,
	OPTION_BATCH,
	OPTION_COUNT,
	OPTION_DELAY,
	OPTION_SORT,
	N_OPTIONS,
};

static const struct command_option main_options[N_OPTIONS] = {
	[OPTION_MODEL] = {"model", "NAME",
		"graphs, pages, requests, orders about graphs and pages: of that model only"},
	[OPTION_USER] = {"user", "NAME", "sessions, requests, pages, limits: of that user only, by name or number"},
	[OPTION_SOCKET] = {"socket", "PATH",
		"the daemon's socket for clients, or the operators' socket beside it, named with -admin (default: "
		"$MIMEO_SOCKET, else $XDG_RUNTIME_DIR/mimeo/mimeod.sock, else /run/mimeo/mimeod.sock)"},
	[OPTION_JSON] = {"json", NULL, "print JSON: raw numbers, bytes and seconds"},
	[OPTION_WIDE] = {"wide", NULL, "print all columns, as without a terminal"},
	[OPTION_BATCH] = {"batch", NULL, "top: print one picture behind the other, as without a terminal"},
	[OPTION_COUNT] = {"count", "N", "top: end after so many pictures; also -n N"},
	[OPTION_DELAY] = {"delay", "SECONDS", "top: from one picture to the next (default: 1); also -d SECONDS"},
	[OPTION_SORT] = {"sort", "COLUMN", "top: the column by its key, tokens_s if it is not given"},
};

static int main_print_help(void)
{
	fputs("Usage: mimeoctl [--socket PATH] [--json | --wide] COMMAND\n\nShow and control mimeod.\n\n", stdout);
	verbs_print(stdout);
	fputc('\n', stdout);
	command_line_print_options(stdout, main_options, N_OPTIONS);
	return fflush(stdout) == EOF ? EXIT_ERROR : EXIT_DONE;
}

/* ---- options ---- */

/* The command's request, once its words and the options are known. */
static int main_make_ask(struct main_settings *options)
{
	const struct verbs_command *command = &options->command;
	const struct verb *verb = command->verb;

	if (options->filter.model && !(verb->flags & VERB_TAKES_MODEL))
		return verbs_refuse("--model goes with graphs, pages and requests");
	if (options->filter.has_uid && !(verb->flags & VERB_TAKES_USER))
		return verbs_refuse("--user goes with sessions, requests, pages and limits");
	if (options->has_top && !(verb->flags & VERB_TAKES_TOP))
		return verbs_refuse("--batch, --count, --delay and --sort go with top");
	options->ask = (struct ask){
		.op = verb->op,
		.model = verb->argument == VERB_LOAD ? command->model
			: verb->argument == VERB_MODEL && verb->kind == VERB_ORDERS ? command->words[0]
			: options->filter.model,
		.path = command->path[0] ? command->path : NULL,
		.settings = command->settings[0] ? command->settings : NULL,
		.patient = verb->argument == VERB_LOAD || (verb->argument == VERB_MODEL && verb->kind == VERB_ORDERS),
		.graph = verb->argument == VERB_GRAPH ? command->graph : NULL,
		.setting = verb->argument == VERB_SETTING ? command->words[0] : verb->setting,
		.session = command->id,
		.has_session = verb->argument == VERB_SESSION && verb->kind == VERB_ORDERS,
		.request = command->id,
		.has_request = verb->argument == VERB_REQUEST && verb->kind == VERB_ORDERS,
	};
	return EXIT_DONE;
}

static int main_print(const char *text)
{
	return fputs(text, stdout) == EOF || fflush(stdout) == EOF ? EXIT_ERROR : EXIT_DONE;
}

/* An option of top. */
static int main_parse_top(int option, const char *value, struct main_settings *ret)
{
	const char *at = value;
	char *end;

	ret->has_top = true;
	switch (option) {
	case OPTION_COUNT:
		if (digits_parse(&at, UINT64_MAX, &ret->top.n_pictures) < 0 || *at || ret->top.n_pictures == 0)
			return verbs_refuse("--count is %s, and must be 1 or more", value);
		break;
	case OPTION_DELAY:
		ret->top.delay_s = strtod(value, &end);
		if (end == value || *end || !(ret->top.delay_s >= 0.1 && ret->top.delay_s <= 3600))
			return verbs_refuse("--delay is %s, and must be 0.1 to 3600 seconds", value);
		break;
	case OPTION_SORT:
		ret->top.order = top_field_find(value);
		if (ret->top.order == N_TOP_FIELDS)
			return verbs_refuse("--sort is %s, and must be a key of top in mimeoctl(1)", value);
		break;
	default:
		ret->top.batch = true;
	}
	return EXIT_DONE;
}

/* Those that are short everywhere else. */
static void main_expand_short_options(int argc, char **argv)
{
	static char count[] = "--count", delay[] = "--delay", help[] = "--help";

	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
		if (strcmp(argv[i], "-n") == 0)
			argv[i] = count;
		else if (strcmp(argv[i], "-d") == 0)
			argv[i] = delay;
		else if (strcmp(argv[i], "-h") == 0)
			argv[i] = help;
	}
}

/* An exit status. */
static int main_parse_options(int argc, char **argv, struct main_settings *ret)
{
	struct command_line line = {.argc = argc, .argv = argv, .options = main_options, .n_options = N_OPTIONS};
	int option, status;

	while ((option = command_line_next(&line)) != COMMAND_END) {
		switch (option) {
		case COMMAND_HELP:
			ret->done = true;
			return main_print_help();
		case COMMAND_VERSION:
			ret->done = true;
			return main_print("mimeoctl " MIMEO_VERSION "\n");
		case OPTION_SOCKET:
			ret->socket = line.value;
			break;
		case OPTION_MODEL:
			ret->filter.model = line.value;
			break;
		case OPTION_USER:
			ret->filter.has_uid = true;
			if (!users_find(line.value, &ret->filter.uid))
				return verbs_refuse("no user is called %s", line.value);
			break;
		case OPTION_JSON:
			ret->form = TABLE_AS_JSON;
			break;
		case OPTION_WIDE:
			if (ret->form != TABLE_AS_JSON)
				ret->form = TABLE_AS_WIDE_TEXT;
			break;
		case OPTION_BATCH:
		case OPTION_COUNT:
		case OPTION_DELAY:
		case OPTION_SORT:
			status = main_parse_top(option, line.value, ret);
			if (status != EXIT_DONE)
				return status;
			break;
		default:
			return verbs_refuse("%s", line.error);
		}
	}
	status = verbs_parse(argv + optind, argc - optind, &ret->command);
	return status == EXIT_DONE ? main_make_ask(ret) : status;
}

/* ---- asking the daemon ---- */

static bool main_is_readable(int fd, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, timeout_ms) > 0;
}

/* On a terminal, how far the daemon is with an order whose reply comes at its end: by another connection, because this
 * one takes no second request. */
static void main_watch_order(int fd, const char *socket)
{
	char admin[SOCKET_PATH_MAX], text[256];
	CLEANUP(cleanup_close) int other = reach_quietly(socket, admin);
	CLEANUP(cleanup_answer) struct answer *answer = NULL;

	while (other >= 0 && !main_is_readable(fd, PROGRESS_MS)) {
		answer_free(STEAL(answer));
		if (ask_once(other, &(struct ask){.op = "status"}, &answer) < 0)
			return;
		printf("\r%s\033[K", answer_text(answer, 0, "progress", text, sizeof(text)));
		fflush(stdout);
	}
	fputs("\r\033[K", stdout);
}

static int main_send(int fd, const struct main_settings *options, struct answer **ret)
{
	int rc = ask_send(fd, &options->ask);

	/* A daemon that refuses the connection closes it before it reads: its reply has arrived. */
	if (rc < 0 && rc != -EPIPE)
		return rc;
	if (rc == 0 && options->ask.patient && isatty(STDOUT_FILENO))
		main_watch_order(fd, options->socket);
	if (rc == 0 && options->ask.patient)
		main_is_readable(fd, -1);
	return ask_receive(fd, ret);
}

/* The reply, or NULL after one line. */
static struct answer *main_ask(int fd, const struct main_settings *options)
{
	const enum verb_kind kind = options->command.verb->kind;
	struct answer *answer;

	int rc = main_send(fd, options, &answer);
	if (rc == 0)
		return answer;
	if (rc == -ETIMEDOUT) {
		fprintf(stderr, "mimeoctl: the daemon did not answer within %u s%s\n",
			ASK_TIMEOUT_MS / 1000, kind != VERB_LISTS && kind != VERB_SHOWS
				? ": the order may still take effect when the daemon goes on" : "");
		return NULL;
	}
	fprintf(stderr, "mimeoctl: %s\n",
		rc == -ECONNRESET || rc == -EPIPE ? "the daemon closed the connection"
		: rc == -EPROTO ? "the daemon's answer is not what this version expects"
		: strerror(-rc));
	return NULL;
}

/* ---- commands ---- */

static int main_listed(const struct main_settings *options, const struct answer *answer)
{
	char state[16];

	if (strcmp(options->ask.op, "status") != 0)
		return EXIT_DONE;
	answer_text(answer, 0, "state", state, sizeof(state));
	return strcmp(state, "serving") == 0 ? EXIT_DONE : EXIT_NOT_SERVING;
}

/* A reply without rows. */
static int main_print_text(const char *text, enum table_form form)
{
	static const struct table_column column = {"text", "text", TABLE_TEXT};
	CLEANUP(cleanup_table) struct table *table = NULL;
	int rc;

	if (form != TABLE_AS_JSON)
		return listing_print_text(text, stdout, form);
	rc = table_new(&table, &column, 1, TABLE_RECORD);
	if (rc < 0)
		return rc;
	table_row(table);
	table_set_text(table, "text", text);
	return table_print(table, stdout, form);
}

DEFINE_CLEANUP(json, json_t, json_decref)

/* Prints the lines of a reload as JSON, grouped by their prefix. That nothing is different has none. */
static int main_print_reload(const char *text)
{
	static const char *const kinds[][2] = {{"applied: ", "applied"}, {"needs a restart: ", "needs_restart"}};
	CLEANUP(cleanup_json) json_t *result = json_pack("{s:[], s:[]}", kinds[0][1], kinds[1][1]);
	size_t length;

	if (!result)
		return -ENOMEM;
	for (; *text; text += length + (text[length] == '\n')) {
		length = strcspn(text, "\n");
		for (size_t i = 0; i < 2; i++) {
			const size_t skip = strlen(kinds[i][0]);

			if (strncmp(text, kinds[i][0], skip) == 0 &&
				json_array_append_new(json_object_get(result, kinds[i][1]),
					json_stringn(text + skip, length - skip)) < 0)
				return -EILSEQ; /* a path that is not UTF-8 */
		}
	}
	return json_dumpf(result, stdout, JSON_INDENT(2)) < 0 || putchar('\n') == EOF ? -EIO : 0;
}

/* The line about a model, "NAME: graph mode ..."; its length is 0 if there is none. */
static const char *main_line_of_model(const char *text, const char *model, size_t *ret_length)
{
	size_t length = strlen(model);

	while (text && (strncmp(text, model, length) != 0 || text[length] != ':')) {
		text = strchr(text, '\n');
		text += text != NULL;
	}
	*ret_length = text ? strcspn(text, "\n") : 0;
	return text;
}

/* The answer's text, and then its rows. -ENOENT: there is no such model. */
static int main_print_listing(const struct listing *listing, const struct answer *answer,
	const struct listing_filter *filter, enum table_form form)
{
	const char *model = filter->model;
	const char *text = answer->text;
	char line[512];
	size_t length;

	if (model && text[0]) {
		const char *at = main_line_of_model(text, model, &length);

		if (!at)
			return -ENOENT;
		snprintf(line, sizeof(line), "%.*s", (int)length, at);
		text = line;
	}
	if (answer->text[0] && form != TABLE_AS_JSON) {
		int rc = main_print_text(text, form);

		if (rc < 0)
			return rc;
	}
	return listing_print(listing, answer, filter, stdout, form);
}

static int main_list(const struct main_settings *options, const struct answer *answer)
{
	const struct verbs_command *command = &options->command;
	const struct listing *listing = listing_find(options->ask.op);
	int rc;

	if (strcmp(options->ask.op, "reload") == 0 && options->form == TABLE_AS_JSON)
		rc = main_print_reload(answer->text);
	else if (!listing)
		rc = main_print_text(answer->text, options->form);
	else if (command->verb->argument == VERB_MODEL && command->verb->kind == VERB_SHOWS)
		rc = listing_print_model(answer, command->words[0], stdout, options->form);
	else if (command->verb->kind == VERB_SHOWS)
		rc = listing_print_one(listing, answer, command->id, stdout, options->form);
	else if (strcmp(options->ask.op, "metrics") == 0 && options->form != TABLE_AS_JSON)
		rc = table_write(stdout, answer->text, strlen(answer->text));
	else
		rc = main_print_listing(listing, answer, &options->filter, options->form);
	if (rc == 0)
		return main_listed(options, answer);
	const char *model = command->verb->argument == VERB_MODEL ? command->words[0] : options->filter.model;
	if (rc == -ENOENT && command->verb->kind == VERB_SHOWS && command->verb->argument != VERB_MODEL)
		fprintf(stderr, "mimeoctl: no %.*s %" PRIu64 " is there: see mimeoctl %s\n",
			(int)strlen(options->ask.op) - 1, options->ask.op, command->id, options->ask.op);
	else if (rc == -ENOENT)
		fprintf(stderr, "mimeoctl: no model is called %s: see mimeoctl models\n", model);
	else
		fprintf(stderr, "mimeoctl: cannot write: %s\n", strerror(-rc));
	return EXIT_ERROR;
}

/* What was probably meant, where a model or a graph is not there. */
static void main_suggest_name(int fd, enum names_of of, const char *name)
{
	CLEANUP(names_deinit) struct names names = {0};

	if (!name || names_ask(fd, of, &names) < 0)
		return;
	const char *better = suggest(name, (const char *const *)names.items, names.n);
	if (better && strcmp(better, name) != 0)
		fprintf(stderr, "mimeoctl: did you mean %s?\n", better);
}

static void main_show_progress(const struct answer *answer)
{
	uint64_t n_requests =
		answer_count(answer, 0, "running", 0) + answer_count(answer, 0, "waiting", 0);
	uint64_t n_sessions = answer_count(answer, 0, "sessions", 0);

	printf("\rdraining: %" PRIu64 " request%s in flight, %" PRIu64 " session%s \033[K",
		n_requests, n_requests == 1 ? "" : "s", n_sessions, n_sessions == 1 ? "" : "s");
	fflush(stdout);
}

/* The result of the drain, a reply without rows; meanwhile the status shows its progress. 0 or -errno. */
static int main_await_result(int fd, struct answer **ret)
{
	bool terminal = isatty(STDOUT_FILENO);

	for (;;) {
		struct answer *answer;
		int rc = main_is_readable(fd, PROGRESS_MS)
			? ask_receive(fd, &answer)
			: ask_once(fd, &(struct ask){.op = "status"}, &answer);

		if (rc < 0)
			return rc;
		if (answer->n_rows == 0) {
			*ret = answer;
			return 0;
		}
		if (terminal)
			main_show_progress(answer);
		answer_free(answer);
	}
}

/* Until the connection ends; whatever else comes on it is ignored. */
static void main_await_hang_up(int fd)
{
	char bytes[256];
	ssize_t n;

	do {
		n = recv(fd, bytes, sizeof(bytes), 0);
	} while (n > 0 || (n < 0 && errno == EINTR));
}

/* Wait for the result, and then for the end of the daemon's process: only then are its sockets free for
 * another. Where there is no pidfd, the hang-up has to suffice. */
static int main_await_end(int fd, int pidfd, struct answer **ret)
{
	int rc = main_await_result(fd, ret);

	if (rc == 0) {
		main_await_hang_up(fd);
		while (pidfd >= 0 && !main_is_readable(pidfd, -1))
			;
	}
	if (isatty(STDOUT_FILENO))
		printf("\r\033[K");
	return rc;
}

/* The daemon's process, or -1: a socket that a service manager made has the manager as its peer. Process ids would not
 * tell: those of a daemon in another PID namespace are others here. */
static int main_open_daemon(int fd, bool passed)
{
	struct socket_peer peer;

	return passed || socket_peer(fd, &peer) < 0 ? -1 : peer.pidfd;
}

static int main_drain(const struct main_settings *options, int fd, const struct answer *answer)
{
	CLEANUP(cleanup_answer) struct answer *result = NULL;
	bool json = options->form == TABLE_AS_JSON;

	CLEANUP(cleanup_close) int pidfd = main_open_daemon(fd, answer_count(answer, 0, "passed", 0) > 0);
	if (!json)
		puts(answer->text);
	fflush(stdout);
	int rc = main_await_end(fd, pidfd, &result);
	if (rc == -ECONNRESET)
		fprintf(stderr, "mimeoctl: the daemon exited without the drain's result: see its log\n");
	else if (rc < 0)
		fprintf(stderr, "mimeoctl: the daemon drains and no longer answers: %s\n",
			strerror(-rc));
	else if (result->status < 0)
		fprintf(stderr, "mimeoctl: the daemon has exited: %s (%s)\n", result->text,
			mimeo_status_name(result->status));
	else
		return main_print(json ? "{\"drained\": true}\n" : "drained: the daemon has exited\n");
	fflush(stdout);
	return EXIT_ERROR;
}

/* Wait until an order about graphs is carried out, and list all graphs. */
static int main_follow_order(struct main_settings *options, int fd)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;
	bool capture = strcmp(options->ask.op, "capture") == 0;
	int rc = order_await(fd, &answer), status = EXIT_ERROR;

	if (rc < 0)
		fprintf(stderr, "mimeoctl: %s\n",
			rc == -ETIMEDOUT ? "not done within a minute; the daemon goes on"
			: rc == -EPIPE || rc == -ECONNRESET ? "the daemon exited meanwhile"
			: strerror(-rc));
	options->ask.op = "graphs";
	if (answer)
		status = main_list(options, answer);
	if (answer && capture && order_failed(answer)) {
		fprintf(stderr, "mimeoctl: graphs that are failed could not be captured: see the "
			"daemon's log\n");
		status = EXIT_ERROR;
	}
	return rc < 0 ? EXIT_ERROR : status;
}

static int main_run(struct main_settings *options)
{
	CLEANUP(cleanup_close) int fd = reach_daemon(options->socket);
	if (fd < 0)
		return EXIT_ERROR;
	if (options->command.verb->kind == VERB_WATCHES) {
		options->top.form = options->form;
		return top_run(fd, &options->top);
	}
	CLEANUP(cleanup_answer) struct answer *answer = main_ask(fd, options);
	if (!answer)
		return EXIT_ERROR;
	if (answer->status < 0) {
		fprintf(stderr, "mimeoctl: %s (%s)\n", answer->text,
			mimeo_status_name(answer->status));
		if (options->command.verb->argument != VERB_LOAD)
			main_suggest_name(fd, NAMES_MODELS, options->ask.model);
		main_suggest_name(fd, NAMES_GRAPHS, options->ask.graph);
		return EXIT_ERROR;
	}
	switch (options->command.verb->kind) {
	case VERB_DRAINS:
		return main_drain(options, fd, answer);
	case VERB_FOLLOWS:
		return main_follow_order(options, fd);
	case VERB_TRACES:
		return record_print(fd, answer, stdout);
	default:
		break;
	}
	int status = main_list(options, answer);
	if (status == EXIT_ERROR)
		main_suggest_name(fd, NAMES_MODELS,
			options->command.verb->argument == VERB_MODEL ? options->command.words[0] : options->ask.model);
	return status;
}

int main(int argc, char **argv)
{
	struct main_settings options = {
		.form = isatty(STDOUT_FILENO) ? TABLE_AS_TEXT : TABLE_AS_WIDE_TEXT,
		.top = TOP_OPTIONS_INIT,
	};

	main_expand_short_options(argc, argv);
	int status = main_parse_options(argc, argv, &options);
	if (status != EXIT_DONE || options.done)
		return status;
	if (options.command.verb->kind == VERB_EXAMINES)
		return doctor_run(options.socket, options.form);
	if (options.command.verb->kind != VERB_COMPLETES)
		return main_run(&options);
	complete_print(options.command.words, options.command.n_words, main_options, N_OPTIONS, stdout);
	return main_print("");
}
