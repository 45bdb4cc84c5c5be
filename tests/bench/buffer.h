/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_BUFFER_H
#define MIMEO_TESTS_BENCH_BUFFER_H

/*
 * The parts of `bench-internals buffer`. Each measures in children, which add rows to the results.
 * What the device does not have, or the daemon does not allow, has no row.
 */

#include <mimeo/mimeo.h>
#include <stdint.h>

#include "daemon/bench/spawn.h"

struct buffer_bench {
	const struct bench_options *options;
	struct results *results;
	const struct target *target;
};

/* A message on standard error, with the daemon's own words; returns the status. */
int buffer_fail(const struct mimeo *m, const char *what, int status);
/* Begin the row of a result and its floor; more of its values may follow. */
void buffer_row(const struct buffer_bench *bench, const char *name, struct samples *result,
	struct samples *floor, const char *floor_name);

/* Calls that make and close buffers; steps that leave their logits in one; how long the lane is
 * idle when memory is given back, which needs the admin socket. 0, or -errno with a sentence on standard error. */
int buffer_calls(const struct buffer_bench *bench);
int buffer_steps(const struct buffer_bench *bench);
int buffer_gaps(const struct buffer_bench *bench);

#endif
