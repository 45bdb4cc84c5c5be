/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_STATS_H
#define MIMEO_DAEMON_BENCH_STATS_H

/*
 * Durations, kept in memory that forked children share: a child adds, its parent reads when the
 * child has ended.
 */

#include <stdbool.h>
#include <stdint.h>

struct samples {
	uint32_t n, capacity;
	bool sorted;
	uint64_t ns[];
};

struct samples *samples_new(uint32_t capacity);
void samples_free(struct samples *samples);
/* Beyond the capacity it is dropped. */
void samples_add(struct samples *samples, uint64_t ns);
/* The duration in seconds that `fraction` of all do not exceed (the nearest rank); NAN if there are
 * none. Sorts. */
double samples_quantile(struct samples *samples, double fraction);

/* Nanoseconds of the monotonic clock. */
uint64_t stats_now(void);

#endif
