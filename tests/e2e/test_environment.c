/* SPDX-License-Identifier: MIT */
/* A daemon whose surroundings are against it: signals sent by mistake, limits of the process. */
#include <signal.h>
#include <sys/resource.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/startup.h"

static const int harmless[] = {SIGPIPE, SIGXFSZ, SIGHUP, SIGUSR1, SIGUSR2};

static void send_harmless(const struct daemon *daemon)
{
	for (unsigned i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
		kill(daemon->pid, harmless[i]);
}

static void test_signals_sent_by_mistake_end_no_daemon(void **state)
{
	struct daemon *daemon = *state;

	daemon_launch(daemon);
	assert_true(EVENTUALLY(daemon_log_has(daemon, "info:")));
	send_harmless(daemon);
	assert_true(EVENTUALLY(daemon_log_has(daemon, "ready:") || !daemon_is_alive(daemon)));
	send_harmless(daemon);
	assert_true(EVENTUALLY(daemon_log_has(daemon, "received SIGHUP: reading the configuration")));
	struct mimeo *m = daemon_connect(daemon, 0, 0);
	assert_serves(m, 1);
	mimeo_close(m);
	daemon_stop(daemon);
}

static void test_limit_of_file_sizes_refuses_the_session_that_exceeds_it(void **state)
{
	const struct rlimit little = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct daemon *daemon = *state;
	char why[256] = "";
	struct rlimit before;
	struct mimeo *m;

	getrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
	daemon_start(daemon);
	setrlimit(RLIMIT_FSIZE, &before);
	config.socket_path = daemon->socket;
	config.message = why;
	config.message_size = sizeof(why);
	assert_int_equal(mimeo_connect(&m, &config), MIMEO_E_NO_MEMORY);
	assert_non_null(strstr(why, "File too large"));
	m = daemon_connect(daemon, 0, 64 << 10);
	assert_serves(m, 1);
	mimeo_close(m);
	daemon_stop(daemon);
}

static void test_drain_of_a_stopped_daemon_says_that_it_may_take_effect_later(void **state)
{
	static struct program_output output;
	struct daemon *daemon = *state;

	daemon_start(daemon);
	daemon_pause(daemon);
	const char *const argv[] = {
		build_path("daemon/mimeoctl"), "--socket", daemon->socket, "drain", NULL};
	program_run(argv, &output);
	assert_int_equal(output.status, EXIT_ERROR);
	assert_non_null(strstr(output.text,
		"did not answer within 10 s: the order may still take effect when the daemon goes on"));
	daemon_go_on(daemon);
	assert_int_equal(daemon_wait(daemon), 0);
}

static void test_second_daemon_names_the_first_one(void **state)
{
	struct daemon *first = *state, second = *first;
	char text[64];

	daemon_start(first);
	snprintf(text, sizeof(text), "another daemon (pid %d) uses this socket", (int)first->pid);
	ASSERT_REFUSES(&second, EXIT_ERROR, text);
	daemon_stop(first);
}

#ifdef __x86_64__
static void test_blas_kernels_for_an_older_cpu_are_warned_of(void **state)
{
	const char *warning = "OpenBLAS does not know this CPU and computes without AVX: set OPENBLAS_CORETYPE=";
	const char *before = getenv("OPENBLAS_CORETYPE");
	struct daemon *daemon = *state;

	if (!__builtin_cpu_supports("avx2") || test_on_cuda())
		skip();
	setenv("OPENBLAS_CORETYPE", "Haswell", 1);
	daemon_start(daemon);
	assert_false(daemon_log_has(daemon, warning));
	daemon_stop(daemon);
	setenv("OPENBLAS_CORETYPE", "Prescott", 1);
	daemon_start(daemon);
	assert_true(daemon_log_has(daemon, warning));
	daemon_stop(daemon);
	if (before)
		setenv("OPENBLAS_CORETYPE", before, 1);
	else
		unsetenv("OPENBLAS_CORETYPE");
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		OWN(test_signals_sent_by_mistake_end_no_daemon),
		OWN(test_limit_of_file_sizes_refuses_the_session_that_exceeds_it),
		OWN(test_drain_of_a_stopped_daemon_says_that_it_may_take_effect_later),
		OWN(test_second_daemon_names_the_first_one),
#ifdef __x86_64__
		OWN(test_blas_kernels_for_an_older_cpu_are_warned_of),
#endif
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("environment", tests, NULL, NULL);
}
