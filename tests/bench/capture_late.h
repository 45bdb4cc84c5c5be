/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_CAPTURE_LATE_H
#define MIMEO_TESTS_BENCH_CAPTURE_LATE_H

#include "daemon/bench/spawn.h"

/* Captures beside a stream of tokens. */
struct capture_late {
	uint64_t n;          /* graphs captured; 0: not measured */
	double gap_seconds;  /* the longest time that the device stood idle for one, between steps */
	double turn_seconds; /* what one takes of the engine, on average */
};

/* On a private daemon: one process streams, all graphs are dropped and captured again. 0, or -errno with
 * a sentence on standard error. */
int capture_late_measure(const struct bench_options *options, const struct target *target,
	struct capture_late *ret);

#endif
