/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_LOADED_H
#define MIMEO_KERNELS_LOADED_H

/*
 * Which ops of a device have been loaded: an open-addressed set of addresses that only grows. Any
 * thread may read it and add to it without a lock. Zeroed: empty.
 */

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOADED_MAX 512u /* a power of two */

struct loaded {
	_Atomic(const void *) keys[LOADED_MAX];
};

static inline _Atomic(const void *) *loaded_place(struct loaded *set, const void *key, size_t probe)
{
	const size_t first = (size_t)(((uintptr_t)key >> 3) * 0x9e3779b97f4a7c15ULL >> 32);

	return &set->keys[(first + probe) % LOADED_MAX];
}

static inline bool loaded_has(struct loaded *set, const void *key)
{
	for (size_t i = 0; i < LOADED_MAX; i++) {
		const void *there = atomic_load_explicit(
			loaded_place(set, key, i), memory_order_acquire);

		if (there == key || there == NULL)
			return there == key;
	}
	return false;
}

/* 0, also if it is there already; -ENOSPC: the set is full. */
static inline int loaded_add(struct loaded *set, const void *key)
{
	assert(key != NULL);
	for (size_t i = 0; i < LOADED_MAX; i++) {
		const void *there = NULL;

		if (atomic_compare_exchange_strong(loaded_place(set, key, i), &there, key) ||
			there == key)
			return 0;
	}
	return -ENOSPC;
}

#endif
