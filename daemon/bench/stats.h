/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_STATS_H
#define MIMEO_DAEMON_BENCH_STATS_H

/*
 * Durations, kept in memory that forked children share: children add, also several at once, and their
 * parent reads when they have ended.
 */

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cleanup.h"
#include "ipc/clock.h"

struct samples {
	_Atomic uint32_t n;
	uint32_t capacity;
	bool sorted;
	uint64_t ns[];
};

struct samples *samples_new(uint32_t capacity);
/* n of them; 0, or -ENOMEM, and NULL where there was no memory. */
int samples_make(struct samples **ret, uint32_t n, uint32_t capacity);
void samples_free(struct samples *samples);
DEFINE_CLEANUP(samples, struct samples, samples_free)
/* Beyond the capacity it is dropped. */
void samples_add(struct samples *samples, uint64_t ns);
/* The duration in seconds that `fraction` of all do not exceed (the nearest rank); NAN if there are
 * none. Sorts. */
double samples_quantile(struct samples *samples, double fraction);
/* Their mean in seconds; NAN if there are none. */
double samples_mean(const struct samples *samples);

/* The next number of a sequence that *state, not 0, determines (Marsaglia's xorshift, its upper
 * bits). */
static inline uint32_t stats_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 32);
}

#endif
