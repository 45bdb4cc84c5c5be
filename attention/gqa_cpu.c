/* SPDX-License-Identifier: MIT */

/*
 * All heads pass over a tile before the next one, so that its keys are looked up in the block table
 * once, and heads of one group find them in the cache.
 */

#include "attention/gqa_cpu.h"

#include <math.h>
#include <string.h>

#include "attention/vector_cpu.h"

void gqa_tile_load(struct gqa_tile *tile, const struct gqa_cache *cache, const int32_t *pages,
	uint32_t first, uint32_t end)
{
	uint32_t index = first / cache->page_tokens, offset = first % cache->page_tokens;

	tile->n = 0;
	tile->to_value = (size_t)cache->page_tokens * cache->n_kv_heads * cache->head_dim;
	while (first < end) {
		int32_t page = pages[index++];

		if (page < 0 || (cache->n_pages && (uint32_t)page >= cache->n_pages))
			page = 0;
		for (; offset < cache->page_tokens && first < end; offset++, first++)
			tile->keys[tile->n++] = cache->kv + gqa_key_at(cache, page, offset);
		offset = 0;
	}
}

void gqa_begin(struct gqa_running *running, uint32_t n_heads, float *out, uint32_t head_dim)
{
	for (uint32_t h = 0; h < n_heads; h++)
		running[h] = (struct gqa_running){ .highest = -INFINITY };
	memset(out, 0, (size_t)n_heads * head_dim * sizeof(*out));
}

/* Bring one head from the tiles before this one to the end of this one; first: where its elements
 * begin in a key. */
static void head_attend(const struct gqa_tile *tile, float scale, const float *q, size_t first,
	size_t n, struct gqa_running *run, float *acc)
{
	float scores[GQA_TILE], highest = run->highest, keep, sum;

	for (uint32_t i = 0; i < tile->n; i++) {
		scores[i] = scale * vector_dot(q, tile->keys[i] + first, n);
		highest = scores[i] > highest ? scores[i] : highest;
	}
	keep = expf(run->highest - highest); /* 0 at the first tile, whose past is -inf */
	if (keep != 1.0f)
		vector_scale(acc, keep, n);
	sum = run->sum * keep;
	for (uint32_t i = 0; i < tile->n; i++) {
		scores[i] = expf(scores[i] - highest);
		sum += scores[i];
	}
	vector_add_weighted(acc, tile->keys, first + tile->to_value, scores, tile->n, n);
	run->highest = highest;
	run->sum = sum;
}

void gqa_tile_attend(const struct gqa_tile *tile, const struct gqa_cache *cache, float scale,
	const float *q, uint32_t n_heads, struct gqa_running *running, float *out)
{
	const uint32_t group = n_heads / cache->n_kv_heads;
	const size_t n = cache->head_dim;

	for (uint32_t h = 0; h < n_heads; h++)
		head_attend(tile, scale, q + h * n, h / group * n, n, &running[h], out + h * n);
}

void gqa_end(
	const struct gqa_running *running, uint32_t n_heads, float *out, uint32_t head_dim)
{
	for (size_t h = 0; h < n_heads; h++)
		vector_scale(out + h * head_dim, 1.0f / running[h].sum, head_dim);
}
