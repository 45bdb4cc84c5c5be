/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_COUNTER_H
#define MIMEO_DAEMON_ENGINE_COUNTER_H

/* Counters that the engine's thread writes and any thread reads. */

#include <stdatomic.h>
#include <stdint.h>

static inline void counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline uint64_t counter_read(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
