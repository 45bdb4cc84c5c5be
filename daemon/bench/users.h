/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_USERS_H
#define MIMEO_DAEMON_BENCH_USERS_H

#include "daemon/bench/bench.h"

/* The benches of mimeo-bench: as the run functions of struct bench. */
int bench_ring(const struct bench_options *options, struct results *results);
int bench_attach(const struct bench_options *options, struct results *results);
int bench_share(const struct bench_options *options, struct results *results);
int bench_load(const struct bench_options *options, struct results *results);
int bench_fair(const struct bench_options *options, struct results *results);
int bench_speculation(const struct bench_options *options, struct results *results);
int bench_perplexity(const struct bench_options *options, struct results *results);
int bench_decode(const struct bench_options *options, struct results *results);

#endif
