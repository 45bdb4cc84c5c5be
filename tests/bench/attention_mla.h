/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_ATTENTION_MLA_H
#define MIMEO_TESTS_BENCH_ATTENTION_MLA_H

#include "daemon/bench/bench.h"

/* Does --attention name one of latent attention? */
bool bench_is_mla(const struct bench_options *options);
/* Is the model that the command line names latent, and the backend left to it? */
bool bench_means_mla(const struct bench_options *options);
/* `attention` for it; as bench.h's. */
int bench_attention_mla(const struct bench_options *options);

#endif
