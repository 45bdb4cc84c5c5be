/* SPDX-License-Identifier: MIT */
/* A search begins behind the last payload placed, or at a gap below it that was made since: payloads stay
 * close together at the start of the pool. */
#include "daemon/engine/requests/payload.h"

#include <assert.h>
#include <utlist.h>

#include "ipc/msg.h"

#define PAYLOAD_ALIGN 4u
#define PAYLOAD_GAPS_MAX 64u /* gaps examined for one payload, at most */

uint32_t payload_pool_bytes(uint32_t n_requests, uint32_t max_rows, uint32_t max_seq_len,
	uint32_t adjust_bytes, uint64_t arena_bytes)
{
	const uint64_t row_bytes = sizeof(struct msg_row) + adjust_bytes +
		(uint64_t)max_seq_len * (sizeof(int32_t) + sizeof(uint64_t));
	const uint64_t n = n_requests > max_rows ? n_requests : max_rows;
	const uint64_t bytes = n * row_bytes < arena_bytes ? n * row_bytes : arena_bytes;

	assert(bytes <= UINT32_MAX && bytes % PAYLOAD_ALIGN == 0);
	return (uint32_t)bytes;
}

/* before: NULL for the pool's start. */
static void payload_place(struct payload_pool *pool, struct payload *before, struct payload *payload,
	uint32_t offset, uint32_t bytes)
{
	payload->offset = offset;
	payload->bytes = bytes;
	if (before)
		DL_APPEND_ELEM(pool->first, before, payload);
	else
		DL_PREPEND(pool->first, payload);
	pool->cursor = payload;
	pool->used += bytes;
	assert(pool->used <= pool->bytes);
}

bool payload_take(struct payload_pool *pool, struct payload *payload, uint32_t bytes)
{
	struct payload *before = pool->cursor;

	assert(!payload->bytes);
	if (bytes > pool->bytes - pool->used)
		return false;
	bytes = bytes ? (bytes + PAYLOAD_ALIGN - 1) / PAYLOAD_ALIGN * PAYLOAD_ALIGN : PAYLOAD_ALIGN;
	for (uint32_t i = 0; i < PAYLOAD_GAPS_MAX; i++) {
		struct payload *next = before ? before->next : pool->first;
		uint32_t begin = before ? before->offset + before->bytes : 0;
		uint32_t end = next ? next->offset : pool->bytes;

		assert(begin <= end);
		if (end - begin >= bytes) {
			payload_place(pool, before, payload, begin, bytes);
			return true;
		}
		before = next;
		if (before == pool->cursor)
			break;
	}
	pool->cursor = before; /* the next search goes on here */
	return false;
}

void payload_release(struct payload_pool *pool, struct payload *payload)
{
	if (!payload->bytes)
		return;
	assert(pool->used >= payload->bytes && pool->first);
	if (pool->cursor && payload->offset <= pool->cursor->offset)
		pool->cursor = payload == pool->first ? NULL : payload->prev;
	DL_DELETE(pool->first, payload);
	pool->used -= payload->bytes;
	payload->bytes = 0;
	assert((pool->used == 0) == !pool->first);
}
