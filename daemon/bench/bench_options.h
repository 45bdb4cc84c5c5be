/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_BENCH_OPTIONS_H
#define MIMEO_DAEMON_BENCH_BENCH_OPTIONS_H

#include "daemon/bench/bench.h"

/* Read the command line: 0, EXIT_USAGE with a sentence on standard error, or -1: it was answered. */
int bench_options_read(const struct program *program, int argc, char **argv, struct bench_options *ret,
	const struct bench **ret_bench);

#endif
