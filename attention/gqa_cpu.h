/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_GQA_CPU_H
#define MIMEO_ATTENTION_GQA_CPU_H

/*
 * Grouped-query attention on the host, a tile of keys at a time: what the backends over the paged
 * cache have in common. float32.
 *
 * A running softmax goes over tiles whose edges lie at multiples of GQA_TILE in the sequence,
 * whatever the page size, and every sum inside a tile has an order that the tile's keys alone
 * decide: the same keys for the same query give the same bits, whoever picked them and however.
 */

#include <stddef.h>
#include <stdint.h>

#define GQA_TILE 32u

/* A layer's cache. */
struct gqa_cache {
	const float *kv; /* [n_pages, 2, page_tokens, n_kv_heads, head_dim] */
	uint32_t page_tokens, n_kv_heads, head_dim;
	uint32_t n_pages; /* ids outside are the null page; 0: not known */
};

struct gqa_tile {
	const float *keys[GQA_TILE]; /* [n_kv_heads, head_dim] each; values are to_value further */
	size_t to_value;
	uint32_t n;
};

/* A head's softmax so far: the highest score, and the sum of weights relative to it. */
struct gqa_running {
	float highest, sum;
};

/* Elements from the cache's start to a key, 64 bits wide: the cache may be larger than 2^31. */
static inline uint64_t gqa_key_at(const struct gqa_cache *cache, int32_t page, uint32_t offset)
{
	return ((uint64_t)(uint32_t)page * 2 * cache->page_tokens + offset) * cache->n_kv_heads *
	       cache->head_dim;
}

/* Look up the keys of positions [first, end), which lie in one tile. pages[]: the row's. */
void gqa_tile_load(struct gqa_tile *tile, const struct gqa_cache *cache, const int32_t *pages,
	uint32_t first, uint32_t end);
/* Nothing seen so far. */
void gqa_begin(struct gqa_running *running, uint32_t n_heads, float *out, uint32_t head_dim);
/* Bring all heads of a query from the tiles before this one to the end of this one, which is not
 * empty. q, out: [n_heads, head_dim]. */
void gqa_tile_attend(const struct gqa_tile *tile, const struct gqa_cache *cache, float scale,
	const float *q, uint32_t n_heads, struct gqa_running *running, float *out);
/* From weighted sums to averages; every head has seen a key. */
void gqa_end(
	const struct gqa_running *running, uint32_t n_heads, float *out, uint32_t head_dim);

#endif
