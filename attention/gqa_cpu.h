/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_GQA_CPU_H
#define MIMEO_ATTENTION_GQA_CPU_H

/*
 * Grouped-query attention on the host, a tile of keys at a time, float32; paged and flex share it.
 *
 * The edges of tiles are multiples of GQA_TILE in the sequence, whatever the page size, and a
 * tile's keys alone decide the order of every sum in it: the same keys and query give the same
 * bits.
 */

#include "attention/attention_cpu.h"
#include "kernels/ops.h"

#define GQA_TILE 32u

/* A layer's cache, and what becomes of scores. */
struct gqa_cache {
	const void *kv; /* [n_pages, 2, page_tokens, n_kv_heads, head_dim] float32; with `decoded` e4m3 */
	uint32_t page_tokens, n_kv_heads, head_dim;
	uint32_t n_pages; /* ids outside are the null page; 0: not known */
	float scale, soft_cap; /* of scores; soft_cap 0: none */
	float *decoded;   /* [GQA_TILE, 2, n_kv_heads, head_dim], a tile's; NULL: there are no codes */
	struct kv_factors factors;
};

/* Of the workspace of an op: a softmax a head, then `decoded`. */
static inline size_t gqa_workspace_bytes(
	uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim, bool fp8)
{
	return n_heads * sizeof(struct running_softmax) +
	       (fp8 ? 2 * (size_t)GQA_TILE * n_kv_heads * head_dim * sizeof(float) : 0);
}

static inline float *gqa_decoded(void *workspace, uint32_t n_heads, bool fp8)
{
	return fp8 ? (float *)((struct running_softmax *)workspace + n_heads) : NULL;
}

struct gqa_tile {
	const float *keys[GQA_TILE]; /* [n_kv_heads, head_dim] each; values are to_value further */
	size_t to_value;
	uint32_t n;
};

/* Look up the keys of positions [first, end), which are in one tile; codes are decoded. pages[]: the row's. */
void gqa_tile_load(struct gqa_tile *tile, const struct gqa_cache *cache, const int32_t *pages,
	uint32_t first, uint32_t end);
/* Start without keys. */
void gqa_begin(struct running_softmax *running, uint32_t n_heads, float *out, uint32_t head_dim);
/* Bring all heads of a query from the tiles before this one to the end of this one, which is not
 * empty. q, out: [n_heads, head_dim]. */
void gqa_tile_attend(const struct gqa_tile *tile, const struct gqa_cache *cache, const float *q,
	uint32_t n_heads, struct running_softmax *running, float *out);
/* From weighted sums to averages; every head has seen a key. */
void gqa_end(
	const struct running_softmax *running, uint32_t n_heads, float *out, uint32_t head_dim);

#endif
