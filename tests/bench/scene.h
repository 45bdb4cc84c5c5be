/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_BENCH_SCENE_H
#define MIMEO_TESTS_BENCH_SCENE_H

/*
 * One batch for an attention backend: equal rows, pages in no order, random contents, and layers
 * that take turns, so that their caches together exceed any L2.
 */

#include "attention/attention.h"
#include "daemon/bench/probe.h"
#include "daemon/model/error.h"

#define SCENE_COLD_BYTES (768ull << 20)
#define SCENE_COLD_BYTES_HOST (1ull << 20)
#define SCENE_LAYERS_MAX 64u

struct scene {
	struct probe *probe;
	const struct attention_backend *backend;
	uint32_t n_rows, n_query, context; /* of each row; the query's tokens are the last */
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
/* Copies that take turns, of something of so many bytes: so many that they exceed any L2. */
uint32_t scene_copies(const struct scene *scene, uint64_t bytes);
/* The device has no space for it. */
bool scene_has_no_space(const struct scene *scene);
/* Take memory for cache, tables, queries, output and weights. */
int scene_take(struct scene *scene);
/* kv_b number i. */
struct weight scene_weight(const struct scene *scene, uint32_t i);
/* The backend's manager and metadata, built for the batch; scene->inputs are complete. */
int scene_build(struct scene *scene);
/* Release what scene_build made; memory is the probe's. */
void scene_deinit(struct scene *scene);

#endif
