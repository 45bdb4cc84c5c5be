/* SPDX-License-Identifier: MIT */

/*
 * All heads take a tile before the next one, so that its keys are looked up in the block table
 * once, and the heads of one group find them in the processor's cache.
 */

#include "attention/gqa_cpu.h"

#include <assert.h>
#include <string.h>

#include "kernels/convert.h"

/* The key of the token at element `at` of the cache, which becomes the tile's i-th. */
static const float *gqa_tile_key(const struct gqa_cache *cache, size_t at, uint32_t i)
{
	const size_t row = (size_t)cache->n_kv_heads * cache->head_dim;
	const uint8_t *codes = (const uint8_t *)cache->kv + at;
	float *key;

	if (!cache->decoded)
		return (const float *)cache->kv + at;
	key = cache->decoded + 2 * i * row;
	kv_decode(key, codes, cache->factors.key, row);
	kv_decode(key + row, codes + cache->page_tokens * row, cache->factors.value, row);
	return key;
}

void gqa_tile_load(struct gqa_tile *tile, const struct gqa_cache *cache, const int32_t *pages,
	uint32_t first, uint32_t end)
{
	const size_t row = (size_t)cache->n_kv_heads * cache->head_dim;
	uint32_t index = first / cache->page_tokens, offset = first % cache->page_tokens;

	assert(first < end && end - first <= GQA_TILE);
	tile->n = 0;
	tile->to_value = cache->decoded ? row : cache->page_tokens * row;
	for (; first < end; index++, offset = 0) {
		size_t page = attention_page(pages[index], cache->n_pages);

		for (; offset < cache->page_tokens && first < end; offset++, first++, tile->n++)
			tile->keys[tile->n] = gqa_tile_key(
				cache, (page * 2 * cache->page_tokens + offset) * row, tile->n);
	}
}

void gqa_begin(struct running_softmax *running, uint32_t n_heads, float *out, uint32_t head_dim)
{
	for (uint32_t h = 0; h < n_heads; h++)
		running[h] = RUNNING_SOFTMAX_NONE;
	memset(out, 0, (size_t)n_heads * head_dim * sizeof(*out));
}

void gqa_tile_attend(const struct gqa_tile *tile, const struct gqa_cache *cache, const float *q,
	uint32_t n_heads, struct running_softmax *running, float *out)
{
	const uint32_t group = n_heads / cache->n_kv_heads;
	const size_t n = cache->head_dim;
	float scores[GQA_TILE];

	assert(tile->n > 0 && tile->n <= GQA_TILE);
	for (uint32_t h = 0; h < n_heads; h++) {
		size_t first = h / group * n;

		for (uint32_t i = 0; i < tile->n; i++)
			scores[i] = cache->scale * vector_dot(q + h * n, tile->keys[i] + first, n);
		scores_cap(scores, tile->n, cache->soft_cap);
		softmax_take(&running[h], scores, tile->n, tile->keys, first + tile->to_value,
			out + h * n, n);
	}
}

void gqa_end(
	const struct running_softmax *running, uint32_t n_heads, float *out, uint32_t head_dim)
{
	for (size_t h = 0; h < n_heads; h++)
		vector_scale(out + h * head_dim, 1.0f / running[h].sum, head_dim);
}
