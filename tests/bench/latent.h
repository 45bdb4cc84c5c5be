/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_LATENT_H
#define MIMEO_TESTS_BENCH_LATENT_H

#include "tests/bench/scene.h"

/* Seconds that both stages of a layer of absorbed latent attention take, the merge among them, for a
 * scene that is built; by the kernels themselves. 0 or the device's condition. */
int latent_attend(struct scene *scene, double *ret_seconds);

/* What that reads and computes; and a layer with the products of queries and values, absorbed or, of
 * prompts, with keys and values expanded. */
struct results_cost latent_attend_cost(const struct scene *scene);
struct results_cost latent_layer_cost(const struct scene *scene);

#endif
