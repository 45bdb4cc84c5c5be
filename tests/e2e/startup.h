/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_STARTUP_H
#define MIMEO_TESTS_E2E_STARTUP_H

/* Tests that begin with a daemon made and not started, which may refuse to start. */

#include "tests/device.h"
#include "tests/e2e/daemon.h"

#define EXIT_ERROR 1
#define EXIT_CUT_OFF 3
#define EXIT_USAGE 2

static inline int setup(void **state)
{
	struct daemon *daemon = calloc(1, sizeof(*daemon));

	daemon_init(daemon);
	*state = daemon;
	return 0;
}

static inline int teardown(void **state)
{
	daemon_deinit(*state);
	free(*state);
	unsetenv(test_fault_variable());
	return 0;
}

/* The daemon must refuse to start, with that status and a line that has the texts
 * (NULL-terminated). */
static inline void assert_refuses(struct daemon *daemon, int status, const char *const *texts)
{
	daemon_launch(daemon);
	int ended = daemon_wait(daemon);
	if (ended != status)
		daemon_log_show(daemon);
	assert_int_equal(ended, status);
	for (; *texts; texts++) {
		if (daemon_log_has(daemon, *texts))
			continue;
		daemon_log_show(daemon);
		fail_msg("the log does not name \"%s\"", *texts);
	}
}

#define ASSERT_REFUSES(daemon, status, ...)                                                        \
	assert_refuses((daemon), (status), (const char *const[]){__VA_ARGS__, NULL})

#define OWN(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
