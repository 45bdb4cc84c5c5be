/* SPDX-License-Identifier: MIT */
/* A daemon that loads its models: what operators see, and clients that wait for it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/socket.h"
#include "tests/device.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/daemon.h"

#define WAIT_MS 200 /* after which a client that should wait is seen to wait */

static void hold_path(const struct daemon *daemon, char ret[static 96])
{
	snprintf(ret, 96, "%.80s/hold", daemon->folder);
}

/* It stands in the warm-up until go_on. */
static int start_held(void **state)
{
	static struct daemon daemon;
	char path[96], hold[128];

	daemon_init(&daemon);
	hold_path(&daemon, path);
	file_write(path, "", 0);
	snprintf(hold, sizeof(hold), "sample:%s", path);
	setenv("MIMEO_CPU_HOLD", hold, 1);
	daemon_launch(&daemon);
	unsetenv("MIMEO_CPU_HOLD");
	*state = &daemon;
	return 0;
}

static int end(void **state)
{
	daemon_deinit(*state);
	return 0;
}

static void go_on(const struct daemon *daemon)
{
	char path[96];

	hold_path(daemon, path);
	unlink(path);
}

static void mimeoctl(const struct daemon *daemon, const char *command, struct program_output *ret)
{
	const char *const argv[] = {
		build_path("daemon/mimeoctl"), "--socket", daemon->socket, command, NULL};

	program_run(argv, ret);
}

static bool shows(const struct daemon *daemon, int status, const char *text)
{
	static struct program_output output;

	mimeoctl(daemon, "status", &output);
	return output.status == status && strstr(output.text, text);
}

static void test_operators_see_that_it_loads_and_how_far_it_is(void **state)
{
	static struct program_output output;
	struct daemon *daemon = *state;

	assert_true(EVENTUALLY(shows(daemon, 2, "warming up")));
	assert_true(shows(daemon, 2, "loading"));
	mimeoctl(daemon, "sessions", &output);
	assert_int_equal(output.status, 1);
	assert_non_null(strstr(output.text, "is loading its models and does not serve yet: warming up"));
	mimeoctl(daemon, "top", &output);
	assert_int_equal(output.status, 1);
	assert_non_null(strstr(output.text, "the daemon does not serve: see mimeoctl status"));
	go_on(daemon);
	assert_true(EVENTUALLY(shows(daemon, 0, "serving")));
	assert_false(shows(daemon, 0, "loading"));
	daemon_stop(daemon);
}

/* -1: no daemon answers. */
static double uptime(const struct daemon *daemon)
{
	const char *const argv[] = {
		build_path("daemon/mimeoctl"), "--socket", daemon->socket, "--json", "status", NULL};
	static struct program_output output;
	double seconds = -1;

	program_run(argv, &output);
	const char *at = strstr(output.text, "\"uptime_s\":");
	if (at)
		assert_int_equal(sscanf(at, "\"uptime_s\": %lf", &seconds), 1);
	return seconds;
}

static void test_uptime_goes_on_when_it_serves(void **state)
{
	struct daemon *daemon = *state;

	assert_true(EVENTUALLY(uptime(daemon) > 2));
	go_on(daemon);
	assert_true(EVENTUALLY(shows(daemon, 0, "serving")));
	assert_true(uptime(daemon) > 2);
	assert_true(daemon_log_has(daemon, "warm-up and capture took "));
	daemon_stop(daemon);
}

/* Operators that say nothing delay the others, and the daemon, by little. */
static void test_silent_operators_do_not_delay_it(void **state)
{
	struct daemon *daemon = *state;
	char path[SOCKET_PATH_MAX];
	int fds[20];

	assert_true(EVENTUALLY(shows(daemon, 2, "loading")));
	assert_int_equal(socket_admin_path(path, daemon->socket), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_true((fds[i] = socket_connect(path, 5000)) >= 0);
	uint64_t start = now_ms();
	go_on(daemon);
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	assert_true(now_ms() - start < 15000); /* 20 silences of a second are longer */
	mimeo_close(m);
	for (unsigned i = 0; i < 20; i++)
		close(fds[i]);
	daemon_stop(daemon);
}

static int attach(void *arg)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	const struct daemon *daemon = arg;
	struct mimeo *m;

	config.socket_path = daemon->socket;
	config.connect_timeout_ms = PATIENCE_MS;
	int rc = mimeo_connect(&m, &config);
	if (rc == 0)
		mimeo_close(m);
	return -rc;
}

static void test_clients_wait_for_a_daemon_that_loads(void **state)
{
	struct daemon *daemon = *state;
	pid_t clients[3];

	assert_true(EVENTUALLY(shows(daemon, 2, "loading")));
	for (unsigned i = 0; i < 3; i++)
		clients[i] = process_run(attach, daemon);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(process_exit_status(clients[i], WAIT_MS), -1);
	go_on(daemon);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(process_exit_status(clients[i], PATIENCE_MS), 0);
	daemon_stop(daemon);
}

static void test_client_waits_no_longer_than_it_said(void **state)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct daemon *daemon = *state;
	struct mimeo *m;

	assert_true(EVENTUALLY(shows(daemon, 2, "loading")));
	config.socket_path = daemon->socket;
	config.connect_timeout_ms = WAIT_MS;
	uint64_t start = now_ms();
	assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_UNREACHABLE);
	assert_true(now_ms() - start >= WAIT_MS - 10);
	go_on(daemon);
	/* the one that gave up leaves nothing behind */
	m = daemon_connect(daemon, 0, 0);
	assert_true(EVENTUALLY(daemon_count(daemon, "sessions") == 1));
	mimeo_close(m);
	daemon_stop(daemon);
}

static bool is_there(const char *path)
{
	struct stat status;

	return lstat(path, &status) == 0;
}

static void test_signal_while_it_loads_removes_the_sockets(void **state)
{
	struct daemon *daemon = *state;
	char path[SOCKET_PATH_MAX];

	assert_int_equal(socket_admin_path(path, daemon->socket), 0);
	assert_true(EVENTUALLY(shows(daemon, 2, "loading")));
	assert_true(is_there(path) && is_there(daemon->socket));
	pid_t client = process_run(attach, daemon);
	assert_int_equal(process_exit_status(client, WAIT_MS), -1);
	kill(daemon->pid, SIGTERM);
	assert_int_equal(daemon_wait(daemon), 1);
	assert_false(is_there(path) || is_there(daemon->socket));
	assert_int_equal(process_exit_status(client, PATIENCE_MS), -MIMEO_E_UNREACHABLE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_held, end)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(test_operators_see_that_it_loads_and_how_far_it_is),
		TEST(test_uptime_goes_on_when_it_serves),
		TEST(test_silent_operators_do_not_delay_it),
		TEST(test_clients_wait_for_a_daemon_that_loads),
		TEST(test_client_waits_no_longer_than_it_said),
		TEST(test_signal_while_it_loads_removes_the_sockets),
	};

	watchdog(WATCHDOG_SECONDS);
	if (strcmp(test_device(), "cpu") != 0) {
		printf("1..0 # SKIP the cpu device holds an op while it loads\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
