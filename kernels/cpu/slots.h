/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_SLOTS_H
#define MIMEO_KERNELS_CPU_SLOTS_H

/* Shared by the ops that write a step's inputs: slots, ids and places in the cache, read from device memory
 * with possibly invalid contents. */

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

/* The place in the cache of the token at a position, in this page of its sequence; -1: none. */
static inline int32_t place_in_page(const struct step_inputs *in, int32_t page, uint64_t position)
{
	uint64_t place = (uint64_t)page * in->page_tokens + position % in->page_tokens;

	return place <= INT32_MAX ? (int32_t)place : -1;
}

#endif
