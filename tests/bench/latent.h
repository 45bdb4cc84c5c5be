/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_LATENT_H
#define MIMEO_TESTS_BENCH_LATENT_H

#include "daemon/bench/bench.h"

/* --attention names a backend for latent attention. */
bool latent_is_named(const struct bench_options *options);
/* So it does, or it leaves the backend open and the model that is named has latent attention. */
bool latent_is_meant(const struct bench_options *options);
/* `attention` for it; as the run function of struct bench. */
int bench_latent(const struct bench_options *options, struct results *results);

#endif
