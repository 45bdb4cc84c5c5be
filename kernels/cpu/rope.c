/* SPDX-License-Identifier: MIT */
#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/rms.h"

/* Optional norm, then the rotation of the pairs (i, i + n / 2), in place. */
static void rotate_head(float *head, const float *norm, float eps, const float *cos_sin, size_t n)
{
	const float *cosines = cos_sin, *sines = cos_sin + n / 2;

	if (norm)
		rms_normalise(head, head, norm, n, eps);
	for (size_t i = 0; i < n / 2; i++) {
		float lower = head[i], upper = head[i + n / 2];

		head[i] = lower * cosines[i] - upper * sines[i];
		head[i + n / 2] = upper * cosines[i] + lower * sines[i];
	}
}

/* Where a token's k heads begin; its v heads are a page's half further. */
static float *cache_row(const struct op_rope_and_cache *a, int32_t slot)
{
	size_t page = (uint32_t)slot / a->page_tokens, offset = (uint32_t)slot % a->page_tokens;
	size_t row = (size_t)a->n_kv_heads * a->head_dim;

	return (float *)a->kv + (page * 2 * a->page_tokens + offset) * row;
}

static void write_cache(const struct op_rope_and_cache *a, int32_t slot, const float *k,
	const float *k_norm, const float *cos_sin)
{
	size_t row = (size_t)a->n_kv_heads * a->head_dim;
	float *cached = cache_row(a, slot);

	memcpy(cached, k, row * sizeof(*k));
	for (uint32_t h = 0; h < a->n_kv_heads; h++)
		rotate_head(cached + (size_t)h * a->head_dim, k_norm, a->eps, cos_sin, a->head_dim);
	memcpy(cached + a->page_tokens * row, k + row, row * sizeof(*k));
}

static void rope_and_cache_run(const void *args, void *workspace)
{
	const struct op_rope_and_cache *a = args;
	float *storage = workspace, *k_storage = storage + a->head_dim;
	const float *q_norm = a->q_norm.data ? weight_vector(&a->q_norm, storage) : NULL;
	const float *k_norm = a->k_norm.data ? weight_vector(&a->k_norm, k_storage) : NULL;
	size_t stride = (size_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim;

	for (size_t t = 0; t < a->n_tokens; t++) {
		float *q = (float *)a->qkv + t * stride;
		int32_t position = a->positions[t] < 0 ? 0 : a->positions[t];
		const float *cos_sin;

		if ((uint32_t)position >= a->max_positions)
			position = (int32_t)(a->max_positions - 1);
		cos_sin = a->cos_sin + (size_t)position * a->head_dim;
		for (uint32_t h = 0; h < a->n_heads; h++)
			rotate_head(
				q + (size_t)h * a->head_dim, q_norm, a->eps, cos_sin, a->head_dim);
		if (a->slot_mapping[t] >= 0)
			write_cache(a, a->slot_mapping[t], q + (size_t)a->n_heads * a->head_dim,
				k_norm, cos_sin);
	}
}

CPU_OP(rope_and_cache, 2 * a->head_dim * sizeof(float))
