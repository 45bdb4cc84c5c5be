/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_MERGES_H
#define MIMEO_SDK_TEXT_MERGES_H

/* The table of merges: which pairs of ids become one id, and in which order. */

#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"
#include "sdk/text/hash.h"

#define MERGES_MAX (1u << 23)
#define MERGES_NONE UINT32_MAX

struct merge {
	uint64_t pair; /* left id, right id */
	uint32_t rank; /* MERGES_NONE: an empty slot */
	int32_t id;
};

struct merges {
	struct merge *slots; /* [n_slots], a power of two */
	size_t n_slots;
	uint64_t seed;
};

/* Room for n merges. 0 or NO_MEMORY. */
int merges_init(struct merges *merges, size_t n);
void merges_deinit(struct merges *merges);
/* A pair that is there already gets the new rank and id. */
void merges_add(struct merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* The slot of a pair; its rank is MERGES_NONE if the pair is not merged. */
static inline const struct merge *merges_find(
	const struct merges *merges, int32_t left, int32_t right)
{
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	size_t mask = merges->n_slots - 1;

	for (size_t i = hash_word(merges->seed, pair) & mask;; i = (i + 1) & mask) {
		const struct merge *slot = &merges->slots[i];

		if (slot->pair == pair || slot->rank == MERGES_NONE)
			return slot;
	}
}

/* Merge ids[n] in place; returns how many are left. For a few ids: takes quadratic time. */
#define MERGES_SHORT 48u
size_t merges_apply(const struct merges *merges, int32_t *ids, size_t n);
/* The same with a heap, for any number. links [4 * n], heap [2 * n]: scratch. */
size_t merges_apply_long(
	const struct merges *merges, int32_t *ids, size_t n, uint32_t *links, uint64_t *heap);

#endif
