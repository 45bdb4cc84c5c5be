/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_RAW_H
#define MIMEO_TESTS_E2E_RAW_H

/*
 * A client without the library, for sessions that misbehave. Functions fail the running test
 * (cmocka) where they meet what they did not expect, so they are for the test's own process.
 */

#include "ipc/msg.h"
#include "ipc/region.h"
#include "tests/e2e/daemon.h"

struct raw {
	int socket;
	struct region region;
	int sq_bell, cq_bell;
	struct msg_welcome welcome;
};

/* A connection on which nothing has been said. */
int raw_connect(const struct daemon *daemon);
/* A HELLO that the daemon would take, with its length in front; its size. */
size_t raw_hello(uint8_t *buffer, size_t size, uint32_t entries);
void raw_attach(struct raw *raw, const struct daemon *daemon, uint32_t entries);
void raw_detach(struct raw *raw);

/* A call with its length in front; its size. */
size_t raw_call(const struct msg_call *call, uint8_t *bytes, size_t size);
/* The reply to a call, without a descriptor. */
struct msg_reply raw_hear_reply(struct raw *raw);

/* Fill the arena's first kilobytes with a generate request for n_tokens of `token`, and an entry
 * that names it. */
struct ring_sqe raw_generate(
	struct raw *raw, uint32_t n_tokens, int32_t token, uint32_t max_tokens);
/* Put an entry into the ring, publish, ring the doorbell whether it is wanted or not. */
void raw_submit(struct raw *raw, const struct ring_sqe *sqe);
/* The next completion, waited for. */
struct ring_cqe raw_complete(struct raw *raw);
/* The final completion of that request index, what comes before passed over. */
struct ring_cqe raw_final(struct raw *raw, uint32_t request);
/* Wait until the daemon has closed the connection. */
void raw_assert_closed(int socket);
/* The same, and close it here, too. */
void raw_assert_ends(int socket);
/* A question is still answered: the session lives. */
void raw_assert_alive(struct raw *raw);

#endif
