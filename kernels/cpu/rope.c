/* SPDX-License-Identifier: MIT */

/* Rotary positions, the norms ahead of them, and the write into the cache. */

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/rms.h"

/* In place; the pairs stay where they are: (i, i + n / 2), or (2i, 2i + 1) if `interleaved`. */
static void rope_rotate(float *x, const float *cos_sin, size_t n, bool interleaved)
{
	const float *cosines = cos_sin, *sines = cos_sin + n / 2;
	size_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : n / 2;

	for (size_t i = 0; i < n / 2; i++) {
		float *lower = x + i * step, *upper = lower + apart, first = *lower;

		*lower = first * cosines[i] - *upper * sines[i];
		*upper = *upper * cosines[i] + first * sines[i];
	}
}

/* A position's row of the table, of n columns; positions are clamped. */
static const float *rope_angles(
	const float *cos_sin, size_t n, uint32_t max_positions, int32_t position)
{
	uint32_t row = position < 0 ? 0 : (uint32_t)position;

	return cos_sin + (row < max_positions ? row : max_positions - 1) * n;
}

/* ---- heads of keys and values ---- */

static void rope_head(float *head, const float *norm, float eps, const float *cos_sin, size_t n)
{
	if (norm)
		rms_normalise(head, head, norm, n, eps);
	rope_rotate(head, cos_sin, n, false);
}

/* The element of a token's first k head in the cache; its v heads are half a page later. */
static size_t rope_cache_at(const struct op_rope_and_cache *a, int32_t slot)
{
	size_t page = (uint32_t)slot / a->page_tokens, offset = (uint32_t)slot % a->page_tokens;
	size_t row = (size_t)a->n_kv_heads * a->head_dim;

	return (page * 2 * a->page_tokens + offset) * row;
}

/* k: the token's heads of k, then those of v; row: [n_kv_heads, head_dim]. */
static void rope_write_cache(const struct op_rope_and_cache *a, int32_t slot, const float *k,
	const float *k_norm, const float *cos_sin, float *row)
{
	const size_t n = (size_t)a->n_kv_heads * a->head_dim, at = rope_cache_at(a, slot);
	const size_t to_value = a->page_tokens * n;

	memcpy(row, k, n * sizeof(*k));
	for (uint32_t h = 0; h < a->n_kv_heads; h++)
		rope_head(row + (size_t)h * a->head_dim, k_norm, a->eps, cos_sin, a->head_dim);
	if (a->fp8) {
		kv_encode((uint8_t *)a->kv + at, row, a->factors.key, n);
		kv_encode((uint8_t *)a->kv + at + to_value, k + n, a->factors.value, n);
		return;
	}
	memcpy((float *)a->kv + at, row, n * sizeof(*row));
	memcpy((float *)a->kv + at + to_value, k + n, n * sizeof(*k));
}

static void rope_and_cache_run(const void *args, void *workspace)
{
	const struct op_rope_and_cache *a = args;
	float *storage = workspace, *k_storage = storage + a->head_dim;
	float *row = k_storage + a->head_dim;
	const float *q_norm = a->q_norm.data ? weight_vector(&a->q_norm, storage) : NULL;
	const float *k_norm = a->k_norm.data ? weight_vector(&a->k_norm, k_storage) : NULL;
	size_t stride = (size_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim;

	for (size_t t = 0; t < a->n_tokens; t++) {
		const float *cos_sin =
			rope_angles(a->cos_sin, a->head_dim, a->max_positions, a->positions[t]);
		float *q = (float *)a->qkv + t * stride, *k = q + (size_t)a->n_heads * a->head_dim;

		for (uint32_t h = 0; h < a->n_heads; h++)
			rope_head(
				q + (size_t)h * a->head_dim, q_norm, a->eps, cos_sin, a->head_dim);
		if (a->slot_mapping[t] >= 0)
			rope_write_cache(a, a->slot_mapping[t], k, k_norm, cos_sin, row);
	}
}

CPU_OP(rope_and_cache, (2 + (size_t)a->n_kv_heads) * a->head_dim * sizeof(float))

/* ---- latent attention ---- */

/* The row of the cache of a token whose latent and key are kv_a. */
static void mla_rope_row(const struct op_mla_rope_and_cache *a, const float *kv_a, const float *norm,
	const float *cos_sin, float *ret)
{
	rms_normalise(ret, kv_a, norm, a->rank, a->eps);
	memcpy(ret + a->rank, kv_a + a->rank, a->rope * sizeof(*ret));
	rope_rotate(ret + a->rank, cos_sin, a->rope, a->interleaved);
}

static void mla_rope_and_cache_run(const void *args, void *workspace)
{
	const struct op_mla_rope_and_cache *a = args;
	float *storage = workspace, *line = storage + a->rank;
	const float *norm = weight_vector(&a->norm, storage);
	size_t head = (size_t)a->nope + a->rope, row = (size_t)a->rank + a->rope;

	for (size_t t = 0; t < a->n_tokens; t++) {
		const float *cos_sin =
			rope_angles(a->cos_sin, a->rope, a->max_positions, a->positions[t]);
		const float *kv_a = (const float *)a->kv_a + t * row;
		float *q = (float *)a->q + t * a->n_heads * head;
		size_t at;

		for (size_t h = 0; h < a->n_heads; h++)
			rope_rotate(q + h * head + a->nope, cos_sin, a->rope, a->interleaved);
		if (a->slot_mapping[t] < 0)
			continue;
		at = (size_t)a->slot_mapping[t] * row;
		mla_rope_row(a, kv_a, norm, cos_sin, line);
		if (a->fp8)
			kv_encode((uint8_t *)a->kv + at, line, a->factors.key, row);
		else
			memcpy((float *)a->kv + at, line, row * sizeof(*line));
	}
}

CPU_OP(mla_rope_and_cache, (2 * (size_t)a->rank + a->rope) * sizeof(float))
