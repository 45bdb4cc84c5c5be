/* SPDX-License-Identifier: MIT */

/*
 * All heads pass over a tile before the next one, so that its keys are looked up in the block table
 * once, and heads of one group find them in the cache.
 *
 * Sums over head_dim are written with vectors: left to itself, -O2 keeps partial sums in memory.
 */

#include "attention/gqa_cpu.h"

#include <math.h>
#include <string.h>

#define VEC 4u
#define LANES (4 * VEC)

/* What every machine has registers for; at any float's address. */
typedef float vec __attribute__((vector_size(VEC * sizeof(float)), aligned(4), may_alias));

/* LANES partial sums, folded in an order that n alone decides. */
static float dot(const float *a, const float *b, size_t n)
{
	vec sums[LANES / VEC] = { 0 };
	float sum = 0;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t j = 0; j < LANES / VEC; j++)
			sums[j] += *(const vec *)(a + i + j * VEC) *
				   *(const vec *)(b + i + j * VEC);
	for (; i < n; i++)
		sum += a[i] * b[i];
	sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
	return sum + ((sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]));
}

/* acc += the weighted sum of rows[n_rows], n elements of each from `first` on; four at a time. */
static void add_weighted(float *acc, const float *const *rows, size_t first, const float *weights,
	uint32_t n_rows, size_t n)
{
	uint32_t r = 0;

	for (; r + 4 <= n_rows; r += 4) {
		const float *x[4] = { rows[r] + first, rows[r + 1] + first, rows[r + 2] + first,
			rows[r + 3] + first };
		size_t i = 0;

		for (; i + VEC <= n; i += VEC)
			*(vec *)(acc + i) += (*(const vec *)(x[0] + i) * weights[r] +
						     *(const vec *)(x[1] + i) * weights[r + 1]) +
					     (*(const vec *)(x[2] + i) * weights[r + 2] +
						     *(const vec *)(x[3] + i) * weights[r + 3]);
		for (; i < n; i++)
			acc[i] += (x[0][i] * weights[r] + x[1][i] * weights[r + 1]) +
				  (x[2][i] * weights[r + 2] + x[3][i] * weights[r + 3]);
	}
	for (; r < n_rows; r++)
		for (size_t i = 0; i < n; i++)
			acc[i] += rows[r][first + i] * weights[r];
}

static void scale_by(float *x, float factor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] *= factor;
}

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
		scores[i] = scale * dot(q, tile->keys[i] + first, n);
		highest = scores[i] > highest ? scores[i] : highest;
	}
	keep = expf(run->highest - highest); /* 0 at the first tile, whose past is -inf */
	if (keep != 1.0f)
		scale_by(acc, keep, n);
	sum = run->sum * keep;
	for (uint32_t i = 0; i < tile->n; i++) {
		scores[i] = expf(scores[i] - highest);
		sum += scores[i];
	}
	add_weighted(acc, tile->keys, first + tile->to_value, scores, tile->n, n);
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
		scale_by(out + h * head_dim, 1.0f / running[h].sum, head_dim);
}
