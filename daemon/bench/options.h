/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_OPTIONS_H
#define MIMEO_DAEMON_BENCH_OPTIONS_H

#include <stddef.h>

#include "daemon/bench/bench.h"

#define EXIT_FAILED 1
#define EXIT_USAGE 2

struct bench {
	const char *name, *help;
	int (*run)(const struct bench_options *options);
	bool in_process;  /* needs no daemon */
	bool config_only; /* of a shape it reads config.json alone */
	const char *model; /* the shipped one that it measures by default; NULL: tinycalc */
};

/* One of the two programs that are made of benches. */
struct program {
	const char *name, *purpose;
	const struct bench *benches;
	size_t n_benches;
	/* 0, or EXIT_USAGE with a sentence on standard error; NULL: nothing more to check. */
	int (*check)(const struct bench *bench, const struct bench_options *options);
};

/* Read the command line: 0, EXIT_USAGE with a sentence on standard error, or -1: it was answered.
 */
int options_read(const struct program *program, int argc, char **argv, struct bench_options *ret,
	const struct bench **ret_bench);
int __attribute__((format(printf, 1, 2))) options_misuse(const char *format, ...);
/* The program's whole main function. */
int program_main(const struct program *program, int argc, char **argv);

#endif
