/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_BUFFER_H
#define MIMEO_TESTS_BENCH_BUFFER_H

/*
 * The parts of `bench-internals buffer`. What the device does not have, or the daemon does not allow,
 * has no row.
 */

#include <mimeo/mimeo.h>
#include <stdint.h>

#include "daemon/bench/spawn.h"

/* A client of the daemon, in a child that adds rows to the results. */
struct buffer_bench {
	const struct bench_options *options;
	struct results *results;
	const struct target *target;
	struct mimeo *m;
};

/* A message on standard error, with the daemon's own words; returns the status. */
int buffer_fail(const struct buffer_bench *bench, const char *what, int status);
/* Begin the row of a result and its floor; more of its values may follow. */
void buffer_row(const struct buffer_bench *bench, const char *name, struct samples *result,
	struct samples *floor, const char *floor_name);
/* Allocate samples, for the child's life: 0 or -ENOMEM, reported. */
int buffer_samples(struct samples **ret, uint32_t n, uint32_t capacity);

/* Calls that make and close buffers; how long the lane is idle when memory is given back, which needs
 * the admin socket. 0, or an error with a sentence on standard error. */
int buffer_calls(const struct buffer_bench *bench);
int buffer_gaps(const struct buffer_bench *bench);

#endif
