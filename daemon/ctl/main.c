/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "build-config.h"
#include "daemon/config/command_line.h"
#include "daemon/config/digits.h"
#include "daemon/ctl/ask.h"
#include "daemon/ctl/listing.h"
#include "daemon/ctl/order.h"
#include "ipc/cleanup.h"
#include "ipc/socket.h"

enum { EXIT_DONE = 0, EXIT_ERROR = 1, EXIT_NOT_SERVING = 2, EXIT_USAGE = 3 };

#define CONNECT_TIMEOUT_MS 5000u
#define PROGRESS_MS 500
#define GRAPH_NAME_MAX 32 /* with terminator */

struct main_settings {
	const char *socket; /* NULL: the default */
	enum table_form form;
	struct ask ask;
	char graph[2 * GRAPH_NAME_MAX];
	uint64_t show; /* the id of the one row to show */
	bool shows;
};

enum { OPTION_MODEL, OPTION_SOCKET, OPTION_JSON, OPTION_WIDE, N_OPTIONS };

static const struct command_option main_options[N_OPTIONS] = {
	[OPTION_MODEL] = {"model", "NAME", "graphs, pages, requests, and orders about graphs and pages: of that model only"},
	[OPTION_SOCKET] = {"socket", "PATH",
		"the daemon's socket for clients, or the operators' socket beside it, named with -admin (default: "
		"$MIMEO_SOCKET, else $XDG_RUNTIME_DIR/mimeo/mimeod.sock, else /run/mimeo/mimeod.sock)"},
	[OPTION_JSON] = {"json", NULL, "print JSON: raw numbers, bytes and seconds"},
	[OPTION_WIDE] = {"wide", NULL, "print all columns, as without a terminal"},
};

static int main_print_help(void)
{
	static const char *const commands[][2] = {
		{"status", "state and counters; exits 0 if serving, 1 if unreachable, 2 if not serving (the state "
			"says why: it loads, drains or failed)"},
		{"sessions", "clients that are attached"},
		{"sessions show ID", "one session with all its figures"},
		{"requests [list]", "requests that wait, run or were preempted"},
		{"requests show ID", "one request with all its figures"},
		{"requests cancel ID", "end a request as its client's cancel does"},
		{"pages", "KV cache pages by model, user and session, and the prefix cache"},
		{"pages drop", "empty the prefix cache of pages that no sequence uses"},
		{"limits", "what each user has of what is limited"},
		{"models", "models, their attention, graph mode, KV cache and draft models"},
		{"graphs", "captured graphs and their replays, and steps without a graph"},
		{"metrics", "all counters in Prometheus' text format"},
		{"reload", "read the configuration again: applies what can change while it serves, and "
			"names what needs a restart"},
		{"drain", "refuse new requests, finish those in flight, exit; waits for it"},
		{"sessions kill ID", "end a session"},
		{"graphs capture GRAPH | all", "capture graphs that are not captured, named as listed"},
		{"graphs drop GRAPH | all | idle", "drop graphs; idle: those not replayed for 10 to 20 s"},
	};

	fputs("Usage: mimeoctl [--socket PATH] [--json | --wide] COMMAND\n\nShow and control mimeod.\n\n", stdout);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		command_line_print(stdout, commands[i][0], 24, commands[i][1]);
	fputc('\n', stdout);
	command_line_print_options(stdout, main_options, N_OPTIONS);
	return fflush(stdout) == EOF ? EXIT_ERROR : EXIT_DONE;
}

/* ---- options ---- */

__attribute__((format(printf, 1, 2))) static int main_usage(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("mimeoctl: ", stderr);
	vfprintf(stderr, format, arguments);
	fputs(": see mimeoctl --help\n", stderr);
	va_end(arguments);
	return EXIT_USAGE;
}

/* "capture", "drop", and a graph: its name has a space, "FULL 8x1", and may be one word or two. */
static int main_parse_order(char **words, int n_words, struct main_settings *ret)
{
	bool drop = strcmp(words[0], "drop") == 0;

	if (!drop && strcmp(words[0], "capture") != 0)
		return main_usage("one word too many: %s", words[0]);
	if (n_words < 2 || n_words > 3)
		return main_usage("graphs %s needs a graph name%s", words[0],
			drop ? ", 'all' or 'idle'" : " or 'all'");
	int n = snprintf(ret->graph, sizeof(ret->graph), n_words == 2 ? "%s" : "%s %s", words[1],
		n_words == 2 ? "" : words[2]);
	if (n >= GRAPH_NAME_MAX)
		return main_usage("no graph has so long a name: %s", words[1]);
	ret->ask.op = words[0];
	ret->ask.graph = ret->graph;
	return EXIT_DONE;
}

/* Commands about one session or request. */
static const struct main_id_command {
	const char *noun, *verb, *op;
} main_id_commands[] = {
	{"sessions", "kill", "kill"},
	{"sessions", "show", "sessions"},
	{"requests", "show", "requests"},
	{"requests", "cancel", "cancel"},
};

static const struct main_id_command *main_find_id_command(char **words)
{
	for (size_t i = 0; i < sizeof(main_id_commands) / sizeof(main_id_commands[0]); i++) {
		const struct main_id_command *command = &main_id_commands[i];

		if (strcmp(words[0], command->noun) == 0 && strcmp(words[1], command->verb) == 0)
			return command;
	}
	return NULL;
}

static int main_parse_id(const struct main_id_command *command, char **words, int n_words, struct main_settings *ret)
{
	const int length = (int)strlen(command->noun) - 1; /* without the s */
	const char *at = n_words == 1 ? words[0] : "";
	uint64_t id;

	if (n_words != 1)
		return main_usage("%s %s needs one %.*s number", command->noun, command->verb, length, command->noun);
	if (digits_parse(&at, UINT64_MAX, &id) < 0 || *at)
		return main_usage("not a %.*s number: %s", length, command->noun, words[0]);
	ret->ask.op = command->op;
	ret->shows = strcmp(command->verb, "show") == 0;
	ret->show = ret->ask.session = ret->ask.request = id;
	ret->ask.has_session = strcmp(command->verb, "kill") == 0;
	ret->ask.has_request = strcmp(command->verb, "cancel") == 0;
	return EXIT_DONE;
}

static bool main_takes_model(const char *noun)
{
	return strcmp(noun, "graphs") == 0 || strcmp(noun, "pages") == 0 || strcmp(noun, "requests") == 0;
}

/* The words behind the options. */
static int main_parse_command(char **words, int n_words, struct main_settings *ret)
{
	static const char *const commands[] = {
		"status", "sessions", "requests", "pages", "limits", "models", "graphs", "metrics", "drain", "reload"};

	if (n_words == 0)
		return main_usage("a command is missing");
	if (n_words >= 2 && strcmp(words[0], "graphs") == 0)
		return main_parse_order(words + 1, n_words - 1, ret);
	if (ret->ask.model && !main_takes_model(words[0]))
		return main_usage("--model goes with graphs, pages and requests");
	if (n_words == 2 && strcmp(words[0], "pages") == 0 && strcmp(words[1], "drop") == 0) {
		ret->ask.op = "drop_pages";
		return EXIT_DONE;
	}
	const struct main_id_command *by_id = n_words >= 2 ? main_find_id_command(words) : NULL;
	if (by_id)
		return main_parse_id(by_id, words + 2, n_words - 2, ret);
	if (n_words == 2 && strcmp(words[0], "requests") == 0 && strcmp(words[1], "list") == 0)
		n_words--;
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(words[0], commands[i]) != 0)
			continue;
		if (n_words > 1)
			return main_usage("one word too many: %s", words[1]);
		ret->ask.op = commands[i];
		return EXIT_DONE;
	}
	return main_usage("unknown command: %s", words[0]);
}

static int main_print(const char *text)
{
	return fputs(text, stdout) == EOF || fflush(stdout) == EOF ? EXIT_ERROR : EXIT_DONE;
}

/* An exit status; with EXIT_DONE and without ask.op there is nothing left to do. */
static int main_parse_options(int argc, char **argv, struct main_settings *ret)
{
	struct command_line line = {.argc = argc, .argv = argv, .options = main_options, .n_options = N_OPTIONS};
	int option;

	while ((option = command_line_next(&line)) != COMMAND_END) {
		switch (option) {
		case COMMAND_HELP:
			return main_print_help();
		case COMMAND_VERSION:
			return main_print("mimeoctl " MIMEO_VERSION "\n");
		case OPTION_SOCKET:
			ret->socket = line.value;
			break;
		case OPTION_MODEL:
			ret->ask.model = line.value;
			break;
		case OPTION_JSON:
			ret->form = TABLE_AS_JSON;
			break;
		case OPTION_WIDE:
			if (ret->form != TABLE_AS_JSON)
				ret->form = TABLE_AS_WIDE_TEXT;
			break;
		default:
			return main_usage("%s", line.error);
		}
	}
	return main_parse_command(argv + optind, argc - optind, ret);
}

/* ---- reaching the daemon ---- */

/* Is it the path of an operators' socket, "x-admin.sock" or "x-admin"? */
static bool main_names_admin(const char *path)
{
	static const char *const tails[] = {"-admin.sock", "-admin"};
	size_t length = strlen(path);

	for (int i = 0; i < 2; i++) {
		size_t tail = strlen(tails[i]);

		if (length > tail && strcmp(path + length - tail, tails[i]) == 0)
			return true;
	}
	return false;
}

static int main_find_sockets(const struct main_settings *options, char client[SOCKET_PATH_MAX],
	char admin[SOCKET_PATH_MAX])
{
	int rc = socket_path(client, options->socket);

	if (rc < 0)
		return rc;
	return client[0] ? socket_admin_path(admin, client) : -EINVAL;
}

/* The connection, or -errno after one line that says what to do. */
static int main_connect(const struct main_settings *options)
{
	char client[SOCKET_PATH_MAX], admin[SOCKET_PATH_MAX];

	int rc = main_find_sockets(options, client, admin);
	if (rc < 0) {
		fprintf(stderr,
			"mimeoctl: the socket's path must be 1 to %d bytes with -admin, this one has "
			"%zu\n",
			SOCKET_PATH_MAX - 1, socket_path_bytes(options->socket));
		return rc;
	}
	int fd = socket_connect(admin, CONNECT_TIMEOUT_MS);
	if (fd == -ENOENT && main_names_admin(client)) {
		strcpy(admin, client);
		fd = socket_connect(admin, CONNECT_TIMEOUT_MS);
	}
	if (fd == -EACCES)
		fprintf(stderr,
			"mimeoctl: %s: permission denied: be root or the user that mimeod runs "
			"as\n",
			admin);
	else if (fd < 0)
		fprintf(stderr,
			"mimeoctl: no daemon answers on %s (%s): start mimeod, or name its socket "
			"with --socket\n",
			admin, strerror(-fd));
	return fd;
}

static bool main_is_order(const struct ask *ask)
{
	static const char *const orders[] = {"drain", "reload", "kill", "cancel", "capture", "drop", "drop_pages"};

	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		if (strcmp(ask->op, orders[i]) == 0)
			return true;
	}
	return false;
}

/* The reply, or NULL after one line. */
static struct answer *main_ask(int fd, const struct ask *ask)
{
	struct answer *answer;

	int rc = ask_once(fd, ask, &answer);
	if (rc == 0)
		return answer;
	if (rc == -ETIMEDOUT) {
		fprintf(stderr, "mimeoctl: the daemon did not answer within %u s%s\n",
			ASK_TIMEOUT_MS / 1000, main_is_order(ask)
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
	const char *model, enum table_form form)
{
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
	return listing_print(listing, answer, model, stdout, form);
}

static int main_list(const struct main_settings *options, const struct answer *answer)
{
	const struct listing *listing = listing_find(options->ask.op);
	int rc;

	if (!listing)
		rc = main_print_text(answer->text, options->form);
	else if (options->shows)
		rc = listing_print_one(listing, answer, options->show, stdout, options->form);
	else if (strcmp(options->ask.op, "metrics") == 0 && options->form != TABLE_AS_JSON)
		rc = table_write(stdout, answer->text, strlen(answer->text));
	else
		rc = main_print_listing(listing, answer, options->ask.model, options->form);
	if (rc == 0)
		return main_listed(options, answer);
	if (rc == -ENOENT && options->shows)
		fprintf(stderr, "mimeoctl: no %.*s %" PRIu64 " is there: see mimeoctl %s\n",
			(int)strlen(options->ask.op) - 1, options->ask.op, options->show, options->ask.op);
	else if (rc == -ENOENT)
		fprintf(stderr, "mimeoctl: no model is called %s: see mimeoctl models\n",
			options->ask.model);
	else
		fprintf(stderr, "mimeoctl: cannot write: %s\n", strerror(-rc));
	return EXIT_ERROR;
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

static bool main_is_readable(int fd, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, timeout_ms) > 0;
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

/* The daemon's process, or -1: a socket that a service manager made has the manager as its peer. 0: the daemon is of a
 * version that takes no such sockets. */
static int main_open_daemon(int fd, uint64_t pid)
{
	struct socket_peer peer = {.pidfd = -1};

	if (socket_peer(fd, &peer) < 0)
		return -1;
	if (pid == 0 || (uint64_t)peer.pid == pid)
		return peer.pidfd;
	cleanup_close(&peer.pidfd);
	return -1;
}

static int main_drain(const struct main_settings *options, int fd, const struct answer *answer)
{
	CLEANUP(cleanup_answer) struct answer *result = NULL;
	bool json = options->form == TABLE_AS_JSON;

	CLEANUP(cleanup_close) int pidfd = main_open_daemon(fd, answer_count(answer, 0, "pid", 0));
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
	CLEANUP(cleanup_close) int fd = main_connect(options);
	if (fd < 0)
		return EXIT_ERROR;
	CLEANUP(cleanup_answer) struct answer *answer = main_ask(fd, &options->ask);
	if (!answer)
		return EXIT_ERROR;
	if (answer->status < 0) {
		fprintf(stderr, "mimeoctl: %s (%s)\n", answer->text,
			mimeo_status_name(answer->status));
		return EXIT_ERROR;
	}
	if (strcmp(options->ask.op, "drain") == 0)
		return main_drain(options, fd, answer);
	return options->ask.graph ? main_follow_order(options, fd) : main_list(options, answer);
}

int main(int argc, char **argv)
{
	struct main_settings options = {
		.form = isatty(STDOUT_FILENO) ? TABLE_AS_TEXT : TABLE_AS_WIDE_TEXT,
	};

	int status = main_parse_options(argc, argv, &options);
	return options.ask.op && status == EXIT_DONE ? main_run(&options) : status;
}
