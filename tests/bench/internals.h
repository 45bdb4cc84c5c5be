/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_INTERNALS_H
#define MIMEO_TESTS_BENCH_INTERNALS_H

#include "daemon/bench/bench.h"

/* The benches of bench-internals: as the run functions of struct bench. */
int bench_gap(const struct bench_options *options, struct results *results);
int bench_kill(const struct bench_options *options, struct results *results);
int bench_capture(const struct bench_options *options, struct results *results);
int bench_buffer(const struct bench_options *options, struct results *results);
int bench_modes(const struct bench_options *options, struct results *results);
int bench_whole(const struct bench_options *options, struct results *results);
int bench_attention(const struct bench_options *options, struct results *results);
int bench_gemm(const struct bench_options *options, struct results *results);
int bench_experts(const struct bench_options *options, struct results *results);

#endif
