/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_DESCRIPTORS_H
#define MIMEO_TESTS_E2E_DESCRIPTORS_H

/*
 * The group's daemon, which clients send descriptors that it did not ask for, and another client, which is
 * served meanwhile. Functions fail the running test (cmocka).
 */

#include <mimeo/types.h>

#include "ipc/socket.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/raw.h"
#include "tests/lingering.h"

/* On a kernel where any process may send descriptors. */
static inline int start(void **state)
{
	daemon_init(&group_daemon);
	group_daemon.takes_rights = true;
	daemon_start(&group_daemon);
	return 0;
}

/* When no client is attached. */
static inline struct holdings holdings(struct daemon *daemon)
{
	assert_true(EVENTUALLY(daemon_count(daemon, "sessions") == 0));
	return daemon_holdings(daemon);
}

static inline void assert_serves_others(struct daemon *daemon)
{
	struct mimeo *m = daemon_connect(daemon, 0, 0);

	assert_serves(m, 7);
	mimeo_close(m);
}

/* The daemon stands still meanwhile: if it were the first to close, ours would be the copy that
 * lingers. */
static inline void give(struct daemon *daemon, struct lingering *lingering, int socket, const void *bytes,
	size_t n)
{
	daemon_pause(daemon);
	lingering_give(lingering, socket, bytes, n);
	daemon_go_on(daemon);
}

static inline size_t import_call(uint8_t *bytes, size_t size)
{
	struct msg_call call = {.call = MSG_CALL_BUFFER_IMPORT};
	const struct mimeo_handle handle = {.kind = MIMEO_HANDLE_MEMFD, .bytes = 4096};

	handle_encode(&handle, call.handle);
	return raw_call(&call, bytes, size);
}

/* A daemon that does not map clients' memory takes no descriptors. */
static inline int strict_begin(void **state)
{
	static struct daemon strict;

	daemon_init(&strict);
	strict.takes_rights = true;
	daemon_option(&strict, "--allow-client-ipc", "no");
	daemon_start(&strict);
	*state = &strict;
	return 0;
}

static inline int strict_end(void **state)
{
	daemon_stop(*state);
	daemon_deinit(*state);
	return 0;
}

#define STRICT(test) cmocka_unit_test_setup_teardown(test, strict_begin, strict_end)

#endif
