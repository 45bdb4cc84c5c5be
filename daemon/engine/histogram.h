/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_HISTOGRAM_H
#define MIMEO_DAEMON_ENGINE_HISTOGRAM_H

/*
 * Distributions that the engine's thread counts and any thread reads, in buckets with fixed bounds. A bucket counts
 * values above the bound before it and up to its own; the last one has no bound. No allocation, lock or system call.
 */

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "daemon/engine/models/counter.h"

#define HISTOGRAM_BOUNDS 22

#define HISTOGRAM_COUNT_BOUNDS 13

struct histogram_bound {
	uint64_t value;
	const char *le; /* the same for metrics: times in seconds */
};
extern const struct histogram_bound histogram_times[HISTOGRAM_BOUNDS]; /* nanoseconds, 10 us to 100 s */
/* Rows, sessions: powers of two. */
extern const struct histogram_bound histogram_counts[HISTOGRAM_COUNT_BOUNDS];

struct histogram {
	_Atomic uint64_t buckets[HISTOGRAM_BOUNDS + 1];
	_Atomic uint64_t sum;
};

/* n values of `value` each. */
static inline void histogram_add(struct histogram *histogram, const struct histogram_bound *bounds, unsigned n_bounds,
	uint64_t value, uint64_t n)
{
	unsigned i = 0;

	assert(n_bounds <= HISTOGRAM_BOUNDS);
	while (i < n_bounds && value > bounds[i].value)
		i++;
	counter_add(&histogram->buckets[i], n);
	counter_add(&histogram->sum, value * n);
}

static inline void histogram_add_time(struct histogram *histogram, uint64_t ns, uint64_t n)
{
	histogram_add(histogram, histogram_times, HISTOGRAM_BOUNDS, ns, n);
}

static inline void histogram_add_count(struct histogram *histogram, uint64_t value)
{
	histogram_add(histogram, histogram_counts, HISTOGRAM_COUNT_BOUNDS, value, 1);
}

static inline uint64_t histogram_n(const struct histogram *histogram)
{
	uint64_t n = 0;

	for (unsigned i = 0; i <= HISTOGRAM_BOUNDS; i++)
		n += counter_read(&histogram->buckets[i]);
	return n;
}

#endif
