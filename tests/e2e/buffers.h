/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_BUFFERS_H
#define MIMEO_TESTS_E2E_BUFFERS_H

/*
 * Device buffers on the cpu device: a daemon whose lane a file holds, and steps that name buffers.
 * What must not happen fails the running test (cmocka).
 */

#include "tests/device.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/daemon.h"

#define BUFFERS_MAX 6
#define CLIENT_BYTES (4u << 20)
#define ALL_BYTES (6u << 20) /* of one user: a half of all */

/* The lane waits at each sampling while the file exists. */
static inline void hold_path(const struct daemon *daemon, char ret[static 96])
{
	snprintf(ret, 96, "%.60s/hold", daemon->folder);
}

static inline void lane_hold(const struct daemon *daemon)
{
	char path[96];

	hold_path(daemon, path);
	file_write(path, "", 0);
}

static inline void lane_go(const struct daemon *daemon)
{
	char path[96];

	hold_path(daemon, path);
	unlink(path);
}

/* Small limits, and a lane that can be held. */
static inline void buffers_daemon_start(struct daemon *daemon)
{
	char path[96], hold[128];

	daemon_option(daemon, "--max-client-buffers", "6");
	daemon_option(daemon, "--max-client-buffer-bytes", "4M");
	daemon_option(daemon, "--max-buffer-bytes", "12M");
	hold_path(daemon, path);
	snprintf(hold, sizeof(hold), "sample:%s", path);
	setenv("MIMEO_CPU_HOLD", hold, 1);
	daemon_start(daemon);
	unsetenv("MIMEO_CPU_HOLD");
}

/* No buffer is left, nor what it was made of. */
static inline void assert_no_buffers(struct daemon *daemon)
{
	assert_true(EVENTUALLY(daemon_count(daemon, "buffers") == 0 &&
			       daemon_count(daemon, "buffer_bytes") == 0 &&
			       daemon_count(daemon, "buffers_closing") == 0));
}

static inline uint32_t buffer_of(struct mimeo *m, uint64_t bytes, void *ret_memory)
{
	uint32_t buffer;

	assert_int_equal(mimeo_buffer_alloc(m, MIMEO_HANDLE_DEFAULT, bytes, &buffer), 0);
	if (ret_memory)
		assert_int_equal(mimeo_buffer_map(m, buffer, ret_memory), 0);
	return buffer;
}

/* A step of one row, prepared; the caller fills in its places before. */
static inline struct mimeo_request *step_prepare(
	struct mimeo *m, struct mimeo_step *step, const struct mimeo_step_row *rows, uint32_t n)
{
	struct mimeo_request *request = mimeo_request_get(m);

	assert_non_null(request);
	step->rows = rows;
	step->n_rows = n;
	assert_int_equal(mimeo_request_prep_step(request, step), 0);
	return request;
}

static inline struct mimeo_event step_wait(
	struct mimeo *m, struct mimeo_step *step, const struct mimeo_step_row *rows, uint32_t n)
{
	step_prepare(m, step, rows, n);
	assert_true(mimeo_submit(m) >= 1);
	return wait_event(m);
}

/* ---- one daemon for all tests of a program ---- */

static inline int start(void **state)
{
	daemon_init(&group_daemon);
	buffers_daemon_start(&group_daemon);
	return 0;
}

static inline int settle(void **state)
{
	lane_go(&group_daemon);
	assert_no_buffers(&group_daemon);
	return group_daemon_settle(state);
}

#define T(test) cmocka_unit_test_setup_teardown(test, group_daemon_begin, settle)

/* Memfds are the cpu device's alone. */
#define RUN(name, tests)                                                                           \
	do {                                                                                       \
		if (test_on_cuda()) {                                                              \
			printf("1..0 # SKIP memfd buffers are the cpu device's\n");                \
			return 0;                                                                  \
		}                                                                                  \
		watchdog(WATCHDOG_SECONDS);                                                        \
		return cmocka_run_group_tests_name(name, tests, start, group_daemon_end);                       \
	} while (0)

#endif
