/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_EXAMPLES_MAKE_CHECKPOINT_NORMAL_H
#define MIMEO_EXAMPLES_MAKE_CHECKPOINT_NORMAL_H

/*
 * Seeded random numbers of a normal distribution, as bf16. One depends on the seed, its tensor's
 * name and its index alone: not on threads, chunks or shards. 16 random bits choose one of 4096
 * quantiles of the distribution, so that a thread fills gigabytes a second.
 */

#include <stdint.h>

#define NORMAL_QUANTILES 4096u

struct normal {
	uint64_t seed;
	float quantiles[NORMAL_QUANTILES];
};

void normal_init(struct normal *normal, uint64_t seed);
/* Elements `first` (a multiple of 4) and on of the tensor `name`: n of them, rounded up to 4. Any
 * number of threads at once. */
void normal_fill(const struct normal *normal, const char *name, double mean, double deviation,
	uint64_t first, uint64_t n, uint16_t *to);

#endif
