/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_IPC_RING_PAIR_H
#define MIMEO_TESTS_IPC_RING_PAIR_H

#include "ipc/region.h"
#include "ipc/ring.h"
#include "tests/ipc/test.h"

/* Both sides over one mapping, so that a sanitizer sees that they share it. */
struct pair {
	struct region region;
	struct ring daemon, client;
};

static const struct ring_sqe nop = {.op = RING_OP_NOP};

static inline void pair_init(struct pair *pair, uint32_t entries)
{
	assert_int_equal(region_create(&pair->region, entries, REGION_ARENA_MIN), 0);
	pair->daemon = pair->region.ring;
	pair->client = pair->region.ring;
}

/* As if so many entries had gone round already. */
static inline void pair_start_at(struct pair *pair, uint32_t index)
{
	struct ring_control *control = pair->region.ring.control;
	struct ring *sides[] = {&pair->daemon, &pair->client};

	atomic_store(&control->sq_tail, index);
	atomic_store(&control->sq_head, index);
	atomic_store(&control->cq_tail, index);
	atomic_store(&control->cq_head, index);
	for (size_t i = 0; i < ARRAY_SIZE(sides); i++) {
		sides[i]->sq_index = sides[i]->sq_published = sides[i]->sq_seen = index;
		sides[i]->cq_index = sides[i]->cq_published = sides[i]->cq_seen = index;
	}
}

#endif
