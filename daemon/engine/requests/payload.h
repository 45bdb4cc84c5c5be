/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_PAYLOAD_H
#define MIMEO_DAEMON_ENGINE_PAYLOAD_H

/*
 * The payloads of a session's requests: each request owns a copy in the session's pool from intake until
 * its end, so that nothing a client writes to its arena later matters. The pool is made with the
 * session. Hot path: no allocation, no lock, no system call.
 *
 * Capacity: max(requests in flight, rows of a step) times a row of max_seq_len tokens with mask words and
 * what a request may say about its logits, but never more than the arena. A request that may run fits an
 * empty pool. Full: see intake.c.
 */

#include <stdbool.h>
#include <stdint.h>

/* The largest payload of a step, unless a single row of max_seq_len tokens takes more: one entry is copied and
 * checked in one piece. */
#define PAYLOAD_BYTES_MAX (8u << 20)

/* In its request. */
struct payload {
	struct payload *prev, *next; /* by offset */
	uint32_t offset, bytes;      /* multiples of 4; bytes 0: none */
};

struct payload_pool {
	uint8_t *memory; /* the session's */
	uint32_t bytes, used;
	struct payload *first;
	struct payload *cursor; /* the next search begins behind it; NULL: at the pool's start */
};

/* adjust_bytes: see adjust.h. */
uint32_t payload_pool_bytes(uint32_t n_requests, uint32_t max_rows, uint32_t max_seq_len,
	uint32_t adjust_bytes, uint64_t arena_bytes);
/* Take memory for a payload of so many bytes. False if no gap among those looked at fits it. */
bool payload_take(struct payload_pool *pool, struct payload *payload, uint32_t bytes);
/* Release the memory, if any. */
void payload_release(struct payload_pool *pool, struct payload *payload);

#endif
