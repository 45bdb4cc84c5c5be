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

/* ---- mask.c: its program, each token's word, and what it leaves to be read and computed ---- */

struct bench_mask {
	enum mask_kind kind;
	uint32_t n; /* of a window, a prefix, a document, a tree: tokens */
};

/* "causal", "window:N", "prefix:N", "documents:N", "tree:N"; NULL: causal. False: none of these. */
bool bench_mask_parse(const char *text, struct bench_mask *ret);
/* Tokens that a decoding row has: of a tree all of it, in one pass, otherwise one. */
uint32_t bench_mask_query(const struct bench_mask *mask);

/* The program and a token's word, for a row of so many tokens in all. */
struct slot_mask bench_mask_program(const struct bench_mask *mask, uint32_t context);
uint64_t bench_mask_word(const struct bench_mask *mask, uint32_t position, uint32_t context);

struct bench_mask_cost {
	double pairs;  /* of a token of the query and one that it sees */
	uint64_t keys; /* that any of them sees */
};
/* Of a row whose last `query` tokens of `context` attend. */
struct bench_mask_cost bench_mask_cost(
	const struct bench_mask *mask, uint32_t query, uint32_t context);

/* ---- latent.c ---- */

/* Seconds that both stages of a layer of absorbed latent attention take, the merge among them, for a
 * scene that is built; by the kernels themselves. NAN where the tokens do not fit one chunk. 0 or the
 * device's condition. */
int latent_attend(struct scene *scene, double *ret_seconds);

/* What that reads and computes; and a layer with the products of queries and values, absorbed or, of
 * prompts, with keys and values expanded. */
struct results_cost latent_attend_cost(const struct scene *scene);
struct results_cost latent_layer_cost(const struct scene *scene);

#endif
