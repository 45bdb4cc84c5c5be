/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "build-config.h"
#include "daemon/ctl/ask.h"
#include "daemon/ctl/listing.h"
#include "daemon/ctl/order.h"
#include "ipc/socket.h"

enum { EXIT_DONE = 0, EXIT_ERROR = 1, EXIT_NOT_SERVING = 2, EXIT_USAGE = 3 };

#define CONNECT_TIMEOUT_MS 5000u
#define PROGRESS_MS 500
#define GRAPH_NAME_MAX 32 /* with its end */

struct options {
	const char *socket; /* NULL: the default */
	enum table_form form;
	struct ask ask;
	char graph[2 * GRAPH_NAME_MAX];
};

static const char help[] =
	"Usage: mimeoctl [--socket PATH] [--json | --wide] COMMAND\n"
	"Look at and operate mimeod.\n\n"
	"  status            state and counters; exits 0 if serving, 1 if unreachable,\n"
	"                    2 if not serving\n"
	"  sessions          clients that are attached\n"
	"  models            models, their attention, graph mode, KV cache and drafts\n"
	"  graphs            captured graphs and their replays, and what ran without one\n"
	"  metrics           all counters in Prometheus' text format\n"
	"  drain             take no new work, finish what runs, end; waits for it\n"
	"  sessions kill ID  end a session\n"
	"  graphs capture GRAPH | all\n"
	"                    capture graphs that are not there, as they are listed\n"
	"  graphs drop GRAPH | all | idle\n"
	"                    drop graphs; idle: what no step has replayed for 10 to 20 s\n\n"
	"  --model NAME      graphs, graphs capture, drop: of that model only\n"
	"  --socket PATH     the clients' socket of the daemon (default: $MIMEO_SOCKET, else\n"
	"                    $XDG_RUNTIME_DIR/mimeo/mimeod.sock, else /run/mimeo/mimeod.sock)\n"
	"  --json            print JSON: raw numbers, bytes and seconds\n"
	"  --wide            print all columns, as it is done where no terminal is\n"
	"  --help            print this and exit\n"
	"  --version         print the version and exit\n";

/* ---- options ---- */

static int usage(const char *what, const char *argument)
{
	fprintf(stderr, "mimeoctl: %s%s%s: see mimeoctl --help\n", what, argument ? ": " : "",
		argument ? argument : "");
	return EXIT_USAGE;
}

static int parse_id(const char *text, uint64_t *ret)
{
	char *end;

	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || *text < '0' || *text > '9')
		return -EINVAL;
	*ret = value;
	return 0;
}

/* "drop FULL 8x1": a graph's name has a space, and may come as one word or two. */
static int parse_order(char **words, int n_words, struct options *ret)
{
	if (strcmp(words[0], "capture") != 0 && strcmp(words[0], "drop") != 0)
		return usage("one word too many", words[0]);
	if (n_words < 2 || n_words > 3)
		return usage("which graph? One of mimeoctl graphs, or all, behind", words[0]);
	int n = snprintf(ret->graph, sizeof(ret->graph), n_words == 2 ? "%s" : "%s %s", words[1],
		n_words == 2 ? "" : words[2]);
	if (n >= GRAPH_NAME_MAX)
		return usage("no graph has so long a name", words[1]);
	ret->ask.op = words[0];
	ret->ask.graph = ret->graph;
	return -1;
}

/* The words behind the options. -1: go on, else an exit status. */
static int parse_command(char **words, int n_words, struct options *ret)
{
	static const char *const commands[] = {
		"status", "sessions", "models", "graphs", "metrics", "drain"};

	if (n_words == 0)
		return usage("a command is missing", NULL);
	if (n_words >= 2 && strcmp(words[0], "graphs") == 0)
		return parse_order(words + 1, n_words - 1, ret);
	if (ret->ask.model && strcmp(words[0], "graphs") != 0)
		return usage("--model goes with graphs, graphs capture and graphs drop", NULL);
	if (n_words >= 2 && strcmp(words[0], "sessions") == 0 && strcmp(words[1], "kill") == 0) {
		if (n_words != 3)
			return usage("sessions kill takes one session number", NULL);
		if (parse_id(words[2], &ret->ask.session) < 0)
			return usage("not a session number", words[2]);
		ret->ask.op = "kill";
		ret->ask.has_session = true;
		return -1;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(words[0], commands[i]) != 0)
			continue;
		if (n_words > 1)
			return usage("one word too many", words[1]);
		ret->ask.op = commands[i];
		return -1;
	}
	return usage("unknown command", words[0]);
}

static int parse_options(int argc, char **argv, struct options *ret)
{
	static const struct option table[] = {
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'},
		{"socket", required_argument, NULL, 's'},
		{"json", no_argument, NULL, 'j'},
		{"wide", no_argument, NULL, 'w'},
		{"model", required_argument, NULL, 'm'},
		{0},
	};
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
		switch (option) {
		case 'h':
			return fputs(help, stdout) == EOF || fflush(stdout) == EOF ? EXIT_ERROR
										  : EXIT_DONE;
		case 'v':
			return puts("mimeoctl " MIMEO_VERSION) == EOF || fflush(stdout) == EOF
				? EXIT_ERROR
				: EXIT_DONE;
		case 's':
			ret->socket = optarg;
			break;
		case 'm':
			ret->ask.model = optarg;
			break;
		case 'j':
			ret->form = TABLE_AS_JSON;
			break;
		case 'w':
			if (ret->form != TABLE_AS_JSON)
				ret->form = TABLE_AS_WIDE_TEXT;
			break;
		default:
			return usage("unknown option, or one without its value", argv[optind - 1]);
		}
	}
	return parse_command(argv + optind, argc - optind, ret);
}

/* ---- reaching the daemon ---- */

/* The connection, or -errno after one line that says what to do. */
static int reach(const struct options *options)
{
	char client[SOCKET_PATH_MAX], admin[SOCKET_PATH_MAX];

	int r = socket_path(client, options->socket);
	if (r == 0)
		r = socket_admin_path(admin, client);
	if (r < 0) {
		fprintf(stderr, "mimeoctl: the socket's path is too long: at most %d bytes\n",
			SOCKET_PATH_MAX - 1);
		return r;
	}
	int fd = socket_connect(admin, CONNECT_TIMEOUT_MS);
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

/* The reply, or NULL after one line. */
static struct answer *ask(int fd, const struct ask *ask)
{
	struct answer *answer;

	/* a daemon that turns us away closes before it reads: its reply is there all the same */
	int sent = ask_send(fd, ask);
	int r = sent == 0 || sent == -EPIPE ? ask_receive(fd, &answer) : sent;
	if (r == 0)
		return answer;
	if (r == -ECONNRESET || r == -EPIPE)
		fprintf(stderr, "mimeoctl: the daemon closed the connection\n");
	else if (r == -EPROTO)
		fprintf(stderr, "mimeoctl: the daemon's answer is not what this version expects\n");
	else
		fprintf(stderr, "mimeoctl: %s\n", strerror(-r));
	return NULL;
}

/* ---- commands ---- */

static int exit_status(const struct options *options, const struct answer *answer)
{
	char state[16];

	if (strcmp(options->ask.op, "status") != 0)
		return EXIT_DONE;
	answer_text(answer, 0, "state", state, sizeof(state));
	return strcmp(state, "serving") == 0 ? EXIT_DONE : EXIT_NOT_SERVING;
}

/* A reply that has no rows. */
static int print_text(const char *text, enum table_form form)
{
	static const struct table_column column = {"text", "text", TABLE_TEXT};
	struct table *table;

	if (form != TABLE_AS_JSON) {
		int written = table_write(stdout, text, strlen(text));

		return written < 0 ? written : table_write(stdout, "\n", 1);
	}
	int r = table_new(&table, &column, 1, TABLE_RECORD);
	if (r < 0)
		return r;
	table_row(table);
	table_set_text(table, "text", text);
	r = table_print(table, stdout, form);
	table_free(table);
	return r;
}

/* The line about a model, "NAME: graph mode ..."; its length is 0 if there is none. */
static const char *line_of_model(const char *text, const char *model, size_t *ret_length)
{
	size_t length = strlen(model);

	while (text && (strncmp(text, model, length) != 0 || text[length] != ':')) {
		text = strchr(text, '\n');
		text += text != NULL;
	}
	*ret_length = text ? strcspn(text, "\n") : 0;
	return text;
}

/* What an answer says beside its rows stands above them; -ENOENT: it does not know the model. */
static int print_listing(const struct listing *listing, const struct answer *answer,
	const char *model, enum table_form form)
{
	char line[512] = "";
	size_t length;
	int r = 0;

	if (model) {
		const char *at = line_of_model(answer->text, model, &length);

		if (!at)
			return -ENOENT;
		snprintf(line, sizeof(line), "%.*s", (int)length, at);
	}
	if (answer->text[0] && form != TABLE_AS_JSON)
		r = print_text(model ? line : answer->text, form);
	return r < 0 ? r : listing_print(listing, answer, model, stdout, form);
}

static int list(const struct options *options, const struct answer *answer)
{
	const struct listing *listing = listing_find(options->ask.op);
	int r = 0;

	if (!listing)
		r = print_text(answer->text, options->form);
	else if (strcmp(options->ask.op, "metrics") == 0 && options->form != TABLE_AS_JSON)
		r = table_write(stdout, answer->text, strlen(answer->text));
	else
		r = print_listing(listing, answer, options->ask.model, options->form);
	if (r == -ENOENT) {
		fprintf(stderr, "mimeoctl: no model is called %s: see mimeoctl models\n",
			options->ask.model);
		return EXIT_ERROR;
	}
	if (r < 0) {
		fprintf(stderr, "mimeoctl: cannot write: %s\n", strerror(-r));
		return EXIT_ERROR;
	}
	return exit_status(options, answer);
}

static void show_progress(const struct answer *answer)
{
	printf("\rdraining: %" PRIu64 " requests in flight, %" PRIu64 " sessions \033[K",
		answer_count(answer, 0, "running", 0) + answer_count(answer, 0, "waiting", 0),
		answer_count(answer, 0, "sessions", 0));
	fflush(stdout);
}

static bool is_readable(int fd, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, timeout_ms) > 0;
}

/* What came of the drain, which has no rows; meanwhile ask how far it is. 0 or -errno. */
static int await_word(int fd, struct answer **ret)
{
	bool terminal = isatty(STDOUT_FILENO);

	for (;;) {
		bool asked = !is_readable(fd, PROGRESS_MS);
		struct answer *answer;

		int r = asked ? ask_send(fd, &(struct ask){.op = "status"}) : 0;
		/* Of a daemon that ended meanwhile the word is there to be read. */
		if (r == 0 || r == -EPIPE)
			r = ask_receive(fd, &answer);
		if (r < 0)
			return r;
		if (answer->n_rows == 0) {
			*ret = answer;
			return 0;
		}
		if (terminal)
			show_progress(answer);
		answer_free(answer);
	}
}

/* Until the connection ends; what may still come on it is of no interest. */
static void await_hang_up(int fd)
{
	char bytes[256];
	ssize_t n;

	do {
		n = recv(fd, bytes, sizeof(bytes), 0);
	} while (n > 0 || (n < 0 && errno == EINTR));
}

/* Wait for the daemon's word, and then until its process has ended: only then are its sockets free
 * for another. Where the kernel gives no pidfd, its hang-up has to do. */
static int await_end(int fd, int pidfd, struct answer **ret)
{
	int r = await_word(fd, ret);

	if (r == 0)
		await_hang_up(fd);
	while (r == 0 && pidfd >= 0 && !is_readable(pidfd, -1))
		;
	if (isatty(STDOUT_FILENO))
		printf("\r\033[K");
	return r;
}

static int drain(const struct options *options, int fd, const struct answer *answer)
{
	struct socket_peer peer = {.pidfd = -1};
	bool json = options->form == TABLE_AS_JSON;
	struct answer *word = NULL;
	int status = EXIT_ERROR;

	(void)socket_peer(fd, &peer);
	if (!json)
		puts(answer->text);
	fflush(stdout);
	int r = await_end(fd, peer.pidfd, &word);
	if (peer.pidfd >= 0)
		close(peer.pidfd);
	if (r == -ECONNRESET)
		fprintf(stderr,
			"mimeoctl: the daemon ended and did not say whether it had drained: see "
			"its log\n");
	else if (r < 0)
		fprintf(stderr, "mimeoctl: the daemon drains and no longer answers: %s\n",
			strerror(-r));
	else if (word->status < 0)
		fprintf(stderr, "mimeoctl: the daemon has ended: %s (%s)\n", word->text,
			mimeo_status_name(word->status));
	else if (puts(json ? "{\"drained\": true}" : "drained: the daemon has ended") != EOF)
		status = EXIT_DONE;
	answer_free(word);
	return fflush(stdout) == EOF ? EXIT_ERROR : status;
}

/* What came of an order about graphs: all of them, as they are now. */
static int show_order(struct options *options, int fd)
{
	struct answer *answer = NULL;
	bool capture = strcmp(options->ask.op, "capture") == 0;
	int r = order_await(fd, &answer), status = EXIT_ERROR;

	if (r < 0)
		fprintf(stderr, "mimeoctl: %s\n",
			r == -ETIMEDOUT ? "a minute has not sufficed; the daemon goes on"
			: r == -EPIPE || r == -ECONNRESET ? "the daemon ended meanwhile"
			: strerror(-r));
	options->ask.op = "graphs";
	if (answer)
		status = list(options, answer);
	if (answer && capture && order_failed(answer)) {
		fprintf(stderr, "mimeoctl: graphs that are failed could not be captured: see the "
			"daemon's log\n");
		status = EXIT_ERROR;
	}
	answer_free(answer);
	return r < 0 ? EXIT_ERROR : status;
}

int main(int argc, char **argv)
{
	struct options options = {
		.form = isatty(STDOUT_FILENO) ? TABLE_AS_TEXT : TABLE_AS_WIDE_TEXT,
	};

	int status = parse_options(argc, argv, &options);
	if (status >= 0)
		return status;
	int fd = reach(&options);
	if (fd < 0)
		return EXIT_ERROR;
	struct answer *answer = ask(fd, &options.ask);
	if (!answer) {
		status = EXIT_ERROR;
	} else if (answer->status < 0) {
		fprintf(stderr, "mimeoctl: %s (%s)\n", answer->text, mimeo_status_name(answer->status));
		status = EXIT_ERROR;
	} else if (strcmp(options.ask.op, "drain") == 0) {
		status = drain(&options, fd, answer);
	} else if (options.ask.graph) {
		status = show_order(&options, fd);
	} else {
		status = list(&options, answer);
	}
	answer_free(answer);
	close(fd);
	return status;
}
