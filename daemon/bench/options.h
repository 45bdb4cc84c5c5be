/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_OPTIONS_H
#define MIMEO_DAEMON_BENCH_OPTIONS_H

#include "daemon/bench/bench.h"

#define EXIT_FAILED 1
#define EXIT_USAGE 2

struct bench {
	const char *name, *help;
	int (*run)(const struct bench_options *options);
	bool in_process;  /* needs no daemon */
	bool config_only; /* of a shape it reads config.json alone */
};

/* Read the command line: 0, EXIT_USAGE with a sentence on standard error, or -1: it was answered.
 */
int options_read(int argc, char **argv, struct bench_options *ret, const struct bench **ret_bench);
int __attribute__((format(printf, 1, 2))) options_misuse(const char *format, ...);

#endif
