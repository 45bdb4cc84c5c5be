/* SPDX-License-Identifier: MIT */
/* mimeoctl top on a terminal of the test's own, and in a pipe. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/daemon.h"

#define KEY_DOWN "\033OB"

static int terminal; /* the side that the test writes keys to */

static const char *top_count; /* NULL: no -n */

/* In the child: the live view on that terminal. */
static int run_top(void *arg)
{
	const char *path = arg, *program = build_path("daemon/mimeoctl");
	const struct winsize size = {.ws_row = 24, .ws_col = 80};

	setsid();
	int fd = open(path, O_RDWR);
	CHILD_EXPECT(fd >= 0 && ioctl(fd, TIOCSWINSZ, &size) == 0);
	CHILD_EXPECT(dup2(fd, 0) == 0 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2);
	setenv("TERM", "xterm", 1);
	execl(program, program, "--socket", group_daemon.socket, "top", "-d", "0.2", top_count ? "-n" : NULL,
		top_count, (char *)NULL);
	return 1;
}

static pid_t top_start(void)
{
	terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
	assert_true(terminal >= 0);
	assert_int_equal(grantpt(terminal), 0);
	assert_int_equal(unlockpt(terminal), 0);
	return process_run(run_top, ptsname(terminal));
}

/* Take what it draws, so that it never waits; true if there was anything. */
static bool top_draws(void)
{
	char bytes[4096];
	bool any = false;

	while (read(terminal, bytes, sizeof(bytes)) > 0)
		any = true;
	return any;
}

static void top_type(const char *keys)
{
	assert_int_equal(write(terminal, keys, strlen(keys)), strlen(keys));
}

/* Its exit status. */
static int top_end(pid_t pid)
{
	int status = 0;

	top_type("q");
	assert_true(EVENTUALLY((top_draws(), waitpid(pid, &status, WNOHANG) == pid)));
	close(terminal);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool is_gone(struct mimeo *m)
{
	struct mimeo_event event;

	return mimeo_event_wait(m, &event, 0) == MIMEO_E_GONE;
}

static void test_session_is_killed_once_it_is_confirmed(void **state)
{
	struct mimeo *first = daemon_connect(*state, 0, 0), *second = daemon_connect(*state, 0, 0);
	pid_t pid = top_start();

	assert_true(EVENTUALLY(top_draws()));
	/* not the first one, after all; the second one */
	top_type("kn" KEY_DOWN "ky");
	assert_true(EVENTUALLY((top_draws(), is_gone(second))));
	assert_false(is_gone(first));
	assert_int_equal(top_end(pid), 0);
	mimeo_close(second);
	mimeo_close(first);
}

static void test_request_is_cancelled_once_it_is_confirmed(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	const int32_t tokens[] = {1, '1', '+', '2', '='};
	struct mimeo_generate generate = generate_of(tokens, 5, 100);
	struct mimeo_event event;

	file_write(group_hold_file, "", 0);
	submit_generate(m, &generate);
	assert_true(EVENTUALLY(daemon_count(*state, "running") == 1));
	pid_t pid = top_start();
	assert_true(EVENTUALLY(top_draws()));
	/* a filter that leaves nothing, and none */
	top_type("\t/zzz\ncy/\033");
	top_draws();
	assert_int_equal(daemon_count(*state, "running"), 1);
	pause_ms(300); /* an escape that stands alone */
	top_type("cy");
	assert_true(EVENTUALLY((top_draws(), daemon_count(*state, "running") == 0)));
	event = wait_final(m);
	assert_int_equal(event.status, MIMEO_E_CANCELLED);
	assert_int_equal(top_end(pid), 0);
	unlink(group_hold_file);
	mimeo_close(m);
}

static void test_pictures_in_a_pipe_count_tokens_and_latencies(void **state)
{
	static struct program_output output;
	struct mimeo *m = daemon_connect(*state, 0, 0);
	double tokens_s = 0;
	json_t *rows, *row;
	size_t i;

	program_run((const char *const[]){build_path("daemon/mimeoctl"), "--socket", group_daemon.socket, "top",
		"--batch", "-n", "2", "-d", "0.1", NULL}, &output);
	assert_int_equal(output.status, 0);
	assert_non_null(strstr(output.text, "DEVICE"));
	assert_non_null(strstr(strstr(output.text, "MODEL") + 1, "MODEL"));
	assert_serves(m, 1);
	program_run((const char *const[]){build_path("daemon/mimeoctl"), "--socket", group_daemon.socket, "--json",
		"top", "-n", "1", "-d", "0.1", NULL}, &output);
	rows = json_loads(output.text, 0, NULL);
	assert_non_null(rows);
	json_array_foreach(rows, i, row)
	{
		if (strcmp(json_string_value(json_object_get(row, "kind")), "session") == 0)
			tokens_s = json_number_value(json_object_get(row, "tokens"));
	}
	assert_true(tokens_s > 0);
	json_decref(rows);
	mimeo_close(m);
	assert_true(daemon_number(*state, "models", 0, "first_tokens") > 0);
	assert_true(daemon_number(*state, "models", 0, "rows") > 0);
}

static void test_count_of_pictures_ends_it_on_a_terminal_too(void **state)
{
	int status = 0;

	top_count = "1";
	pid_t pid = top_start();
	top_count = NULL;
	assert_true(EVENTUALLY((top_draws(), waitpid(pid, &status, WNOHANG) == pid)));
	close(terminal);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GROUP_TEST(test_session_is_killed_once_it_is_confirmed),
		GROUP_TEST(test_request_is_cancelled_once_it_is_confirmed),
		GROUP_TEST(test_pictures_in_a_pipe_count_tokens_and_latencies),
		GROUP_TEST(test_count_of_pictures_ends_it_on_a_terminal_too),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("top", tests, group_daemon_start_held, group_daemon_end);
}
