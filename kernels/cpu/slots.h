/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_SLOTS_H
#define MIMEO_KERNELS_CPU_SLOTS_H

/* What the ops that write a step's inputs share: slots, ids and places in the cache, from device
 * memory that anything may have written. */

#include "kernels/ops.h"

static inline bool slot_exists(const struct step_inputs *in, int32_t slot)
{
	return slot >= 0 && (uint32_t)slot < in->max_slots;
}

static inline int32_t clamp_id(const struct step_inputs *in, int32_t id)
{
	if (id < 0)
		return 0;
	return (uint32_t)id < in->vocab_size ? id : (int32_t)(in->vocab_size - 1);
}

/* Where a position's token lies in the cache, in that page of its sequence; -1: in no cache. */
static inline int32_t place_in_page(const struct step_inputs *in, int32_t page, uint64_t position)
{
	uint64_t place = (uint64_t)page * in->page_tokens + position % in->page_tokens;

	return place <= INT32_MAX ? (int32_t)place : -1;
}

#endif
