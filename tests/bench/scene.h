/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_SCENE_H
#define MIMEO_TESTS_BENCH_SCENE_H

/*
 * One batch for an attention backend: equal rows, pages in no order, random contents, and layers
 * that take turns, so that their caches together exceed any L2.
 */

#include "attention/attention.h"
#include "tests/bench/cost.h"

struct scene {
	struct probe *probe;
	const struct attention_backend *backend;
	uint32_t n_rows, n_query, context; /* of each row; the query's tokens are the last */
	uint32_t n_runs;                   /* of one measurement: each layer once at least */
	struct attention_config config;
	struct step_inputs inputs;
	struct attention_batch batch;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t *lens; /* [2 n_rows] query, then sequence */
	uint64_t layer_bytes;
	uint64_t weight_bytes; /* of latent attention's kv_b, n_weights of which take turns; 0: none */
	uint32_t n_weights;
	char *kv, *weights;
	void *q, *out;
};

/* The sizes of a scene whose probe, rows and query are set, from the model's heads in config: the
 * rest of config is filled in. */
void scene_size(struct scene *scene, const struct attention_config *heads);
/* The device has no space for it. */
bool scene_has_no_space(const struct scene *scene);
/* Take memory for cache, tables, queries, output and weights, and make the backend's manager and
 * metadata, built for the batch. To be deinitialised even if it fails. */
int scene_init(struct scene *scene);
/* Release what scene_init made; memory is the probe's. */
void scene_deinit(struct scene *scene);

/* Seconds of a layer, in a graph if it can be captured. 0 or the device's condition. */
int scene_time(struct scene *scene, bool captured, double *ret_seconds);
/* Of what a backend queues once a step for all layers. A graph with a plan of its own changes how layers
 * run: this comes last. */
int scene_time_plan(struct scene *scene, bool captured, double *ret_seconds);
/* Of what absorbed queries of latent attention attend to: both stages, without the products that absorb
 * queries and expand values. NAN where the tokens do not fit one chunk of the workspace. */
int scene_time_attend(struct scene *scene, double *ret_seconds);

#endif
