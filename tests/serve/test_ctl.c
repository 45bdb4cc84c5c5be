/* SPDX-License-Identifier: MIT */

/* mimeoctl against a daemon of a few lines: a process that answers `drain` and then does as a test
 * says. */

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/serve/admin_wire.h"
#include "daemon/serve/reply.h"
#include "ipc/socket.h"
#include "tests/ipc/listen.h"
#include "tests/ipc/test.h"

#define LINGER_US 200000 /* from the hang-up to the process's end */

static const char *mimeoctl; /* the program's path */

struct scene {
	char folder[64], socket[96], admin_socket[108];
	int lock_fd;
};

static int setup(void **state)
{
	struct scene *scene = calloc(1, sizeof(*scene));

	assert_non_null(scene);
	strcpy(scene->folder, "/tmp/mimeo-ctl-XXXXXX");
	assert_non_null(mkdtemp(scene->folder));
	snprintf(scene->socket, sizeof(scene->socket), "%s/t.sock", scene->folder);
	assert_int_equal(socket_admin_path(scene->admin_socket, scene->socket), 0);
	*state = scene;
	return 0;
}

static int teardown(void **state)
{
	struct scene *scene = *state;
	char lock[128];

	snprintf(lock, sizeof(lock), "%s.lock", scene->admin_socket);
	unlink(lock);
	unlink(scene->admin_socket);
	rmdir(scene->folder);
	free(scene);
	return 0;
}

static void must(bool condition)
{
	if (!condition)
		_exit(99);
}

static void hear(int fd)
{
	char request[ADMIN_REQUEST_MAX];

	must(socket_receive(fd, request, sizeof(request), NULL, 0, NULL, 60000) > 0);
}

static void say(int fd, int status, const char *text)
{
	struct reply reply;

	reply_init(&reply);
	reply_say(&reply, status, text);
	must(reply_end(&reply) == 0);
	must(send(fd, reply.out.data, reply.out.size, MSG_NOSIGNAL) == (ssize_t)reply.out.size);
	reply_deinit(&reply);
}

/* Takes one operator's `drain`, and then the connection to `then`. Its process. */
static pid_t daemon_start(struct scene *scene, void (*then)(int fd))
{
	int ready[2];
	char byte = 0;

	assert_int_equal(pipe(ready), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int listener = socket_listen(scene->admin_socket, &scene->lock_fd);
		struct pollfd poll_fd = {.fd = listener, .events = POLLIN};

		must(listener >= 0 && write(ready[1], &byte, 1) == 1);
		must(poll(&poll_fd, 1, -1) == 1);
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		must(fd >= 0);
		hear(fd);
		say(fd, 0, "draining: 0 requests in flight");
		then(fd);
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

/* mimeoctl's exit status. */
static int drain_on(const char *path)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
			_exit(98);
		execl(mimeoctl, mimeoctl, "--socket", path, "drain", (char *)NULL);
		_exit(98);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int drain(const struct scene *scene)
{
	return drain_on(scene->socket);
}

static void end_and_linger(int fd)
{
	say(fd, 0, "drained");
	close(fd);
	usleep(LINGER_US);
}

static void test_drain_returns_only_once_the_process_has_ended(void **state)
{
	pid_t daemon = daemon_start(*state, end_and_linger);
	siginfo_t info = {0};

	assert_int_equal(drain(*state), 0);
	assert_int_equal(waitid(P_PID, (id_t)daemon, &info, WEXITED | WNOHANG), 0);
	if (info.si_pid == 0) {
		kill(daemon, SIGKILL);
		waitpid(daemon, NULL, 0);
	}
	assert_int_equal(info.si_pid, daemon);
	assert_int_equal(info.si_status, 0);
}

/* Asked how far it is, it gives no answer that can be understood. */
static void babble(int fd)
{
	hear(fd);
	must(socket_send(fd, "\xc1", 1, NULL, 0) == 0);
	must(pause() == -1);
}

static void test_drain_of_a_daemon_that_stops_answering_is_no_success(void **state)
{
	pid_t daemon = daemon_start(*state, babble);

	assert_int_equal(drain(*state), 1);
	assert_int_equal(waitpid(daemon, NULL, WNOHANG), 0);
	kill(daemon, SIGKILL);
	assert_int_equal(waitpid(daemon, NULL, 0), daemon);
}

static void test_operators_socket_may_be_named_itself(void **state)
{
	struct scene *scene = *state;
	pid_t daemon = daemon_start(scene, end_and_linger);

	assert_int_equal(drain_on(scene->admin_socket), 0);
	assert_int_equal(waitpid(daemon, NULL, 0), daemon);
}

static void cut_off(int fd)
{
	say(fd, MIMEO_E_DRAINING, "requests cut off: 2");
	close(fd);
}

static void hang_up(int fd)
{
	close(fd);
}

static void test_drain_that_cut_requests_off_or_says_nothing_is_no_success(void **state)
{
	void (*const ends[])(int fd) = {cut_off, hang_up};

	for (unsigned i = 0; i < 2; i++) {
		pid_t daemon = daemon_start(*state, ends[i]);

		assert_int_equal(drain(*state), 1);
		assert_int_equal(waitpid(daemon, NULL, 0), daemon);
	}
}

static void test_wrong_command_line_is_named_and_exits_3(void **state)
{
	static const char *const table[][2] = {
		{"", "a command is missing"},
		{"--bogus status", "--bogus: unknown option"},
		{"status --socket", "--socket: needs a value"},
		{"status --json=1", "--json=1: takes no value"},
		{"statu", "unknown command: statu (did you mean status?)"},
		{"Sesions", "unknown command: Sesions (did you mean sessions?)"},
		{"met", "unknown command: met (did you mean metrics?)"},
		{"reboot", "unknown command: reboot"},
		{"doctor all", "one word too many: all"},
		{"sessions klil 7", "one word too many: klil (did you mean kill?)"},
		{"requests cancle 7", "one word too many: cancle (did you mean cancel?)"},
		{"--jsno status", "--jsno: unknown option (did you mean --json?)"},
		{"--js status", "--js: unknown option (did you mean --json?)"},
		{"status --sock x", "--sock: unknown option (did you mean --socket?)"},
		{"--batch status", "--batch, --count, --delay and --sort go with top"},
		{"top -n 0", "--count is 0, and must be 1 or more"},
		{"top -d 0", "--delay is 0, and must be 0.1 to 3600 seconds"},
		{"top -d nan", "--delay is nan, and must be 0.1 to 3600 seconds"},
		{"top --sort size", "--sort is size, and must be a key of top in mimeoctl(1)"},
		{"--user root status", "--user goes with sessions, requests, pages and limits"},
		{"--user 5000000000 sessions", "no user is called 5000000000"},
		{"status all", "one word too many: all"},
		{"graphs build", "one word too many: build"},
		{"graphs capture", "graphs capture needs a graph name or 'all'"},
		{"graphs drop", "graphs drop needs a graph name, 'all' or 'idle'"},
		{"sessions kill", "sessions kill needs one session number"},
		{"sessions kill x", "not a session number: x"},
		{"requests cancel", "requests cancel needs one request number"},
		{"requests show 7 8", "requests show needs one request number"},
		{"requests cancel x", "not a request number: x"},
		{"models show", "models show needs one model's name"},
		{"models load", "models load needs a name or NAME=DIR"},
		{"models load =/x", "models load: no model can have this name: =/x"},
		{"models load x=", "models load: the directory is missing: x="},
		{"models load x=/x draft", "models load: not KEY=VALUE: draft"},
		{"models unload", "models unload needs one model's name"},
		{"models show a b", "models show needs one model's name"},
		{"pages empty", "one word too many: empty"},
		{"set", "set needs one NAME=VALUE"},
		{"set log_level", "set needs one NAME=VALUE"},
		{"set log_level=debug request_log=yes", "set needs one NAME=VALUE"},
		{"trace stat", "unknown command: stat (did you mean start?)"},
		{"trace", "trace needs a second word"},
		{"--model m status", "--model goes with graphs, pages and requests"},
	};
	char line[512], expected[256], said[256];

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		snprintf(line, sizeof(line), "'%s' %s 2>&1", mimeoctl, table[i][0]);
		snprintf(expected, sizeof(expected), "mimeoctl: %s: see mimeoctl --help\n", table[i][1]);
		FILE *output = popen(line, "r");
		assert_non_null(output);
		assert_ptr_equal(fgets(said, sizeof(said), output), said);
		assert_string_equal(said, expected);
		assert_int_equal(WEXITSTATUS(pclose(output)), 3);
	}
}

/* The program's output; the caller's to free. */
static char *output_of(const char *words)
{
	char line[512], *text = NULL;
	size_t size;

	snprintf(line, sizeof(line), "'%s' %s 2>&1", mimeoctl, words);
	FILE *output = popen(line, "r");
	assert_non_null(output);
	if (getdelim(&text, &size, EOF, output) < 0) {
		free(text);
		text = strdup("");
	}
	assert_int_equal(WEXITSTATUS(pclose(output)), 0);
	assert_non_null(text);
	return text;
}

static void test_words_are_completed_without_a_daemon(void **state)
{
	static const struct {
		const char *words, *candidates; /* each ahead of a tab, with a blank behind */
	} table[] = {
		{"st", "status "},
		{"''", "status sessions requests pages limits models graphs top metrics set trace reload drain doctor "},
		{"set request", "request_log=yes request_log=no "},
		{"trace ''", "start stop "},
		{"--json sessions ''", "show kill "},
		{"sessions s", "show "},
		{"models ''", "show load unload "},
		{"graphs", "graphs "},
		{"graphs drop ''", "all idle "},
		{"graphs capture ''", "all "},
		{"--js", "--json "},
		{"top --sort to", "tokens_s token_s tokens "},
		{"--socket /tmp/x", ""},
		{"--socket = /tmp/x sta", "status "},
		{"--socket=/tmp/x sta", "status "},
		{"status ''", ""},
		{"bogus ''", ""},
	};
	char line[256], found[256];

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		size_t used = 0;

		snprintf(line, sizeof(line), "complete -- --socket /nowhere/m.sock %s", table[i].words);
		char *text = output_of(line);
		found[0] = '\0';
		for (char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
			const size_t length = strcspn(at, "\t\n");

			assert_true(used + length + 2 <= sizeof(found));
			memcpy(found + used, at, length);
			memcpy(found + used + length, " ", 2);
			used += length + 1;
		}
		assert_string_equal(found, table[i].candidates);
		free(text);
	}
}

static void test_impossible_socket_path_is_named_with_its_length(void **state)
{
	char line[512], said[256];

	for (int length = 0; length < 200; length += 108) {
		snprintf(line, sizeof(line), "'%s' --socket '%.*s' status 2>&1", mimeoctl, length,
			"/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
		FILE *output = popen(line, "r");
		assert_non_null(output);
		assert_ptr_equal(fgets(said, sizeof(said), output), said);
		snprintf(line, sizeof(line), "mimeoctl: the socket's path must be 1 to 107 bytes with "
			"-admin, this one has %d\n", length);
		assert_string_equal(said, line);
		assert_int_equal(WEXITSTATUS(pclose(output)), 1);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_drain_returns_only_once_the_process_has_ended, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_drain_of_a_daemon_that_stops_answering_is_no_success, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_drain_that_cut_requests_off_or_says_nothing_is_no_success, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			test_operators_socket_may_be_named_itself, setup, teardown),
		cmocka_unit_test(test_wrong_command_line_is_named_and_exits_3),
		cmocka_unit_test(test_words_are_completed_without_a_daemon),
		cmocka_unit_test(test_impossible_socket_path_is_named_with_its_length),
	};

	if (argc != 2)
		return 2;
	mimeoctl = argv[1];
	return cmocka_run_group_tests_name("ctl", tests, NULL, NULL);
}
