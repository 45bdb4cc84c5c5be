/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/rms.h"

/* In place; the pairs stay where they are. */
static void rotate(float *x, const float *cos_sin, size_t n, bool interleaved)
{
	const float *cosines = cos_sin, *sines = cos_sin + n / 2;
	size_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : n / 2;

	for (size_t i = 0; i < n / 2; i++) {
		float *lower = x + i * step, *upper = lower + apart, first = *lower;

		*lower = first * cosines[i] - *upper * sines[i];
		*upper = *upper * cosines[i] + first * sines[i];
	}
}

static const float *cos_sin_of(const struct op_mla_rope_and_cache *a, int32_t position)
{
	uint32_t row = position < 0 ? 0 : (uint32_t)position;

	if (row >= a->max_positions)
		row = a->max_positions - 1;
	return a->cos_sin + (size_t)row * a->rope;
}

static void mla_rope_and_cache_run(const void *args, void *workspace)
{
	const struct op_mla_rope_and_cache *a = args;
	const float *norm = weight_vector(&a->norm, workspace);
	size_t head = (size_t)a->nope + a->rope, row = (size_t)a->rank + a->rope;

	for (size_t t = 0; t < a->n_tokens; t++) {
		const float *cos_sin = cos_sin_of(a, a->positions[t]);
		const float *kv_a = (const float *)a->kv_a + t * row;
		float *q = (float *)a->q + t * a->n_heads * head, *cached;

		for (size_t h = 0; h < a->n_heads; h++)
			rotate(q + h * head + a->nope, cos_sin, a->rope, a->interleaved);
		if (a->slot_mapping[t] < 0)
			continue;
		cached = (float *)a->kv + (size_t)a->slot_mapping[t] * row;
		rms_normalise(cached, kv_a, norm, a->rank, a->eps);
		memcpy(cached + a->rank, kv_a + a->rank, a->rope * sizeof(*cached));
		rotate(cached + a->rank, cos_sin, a->rope, a->interleaved);
	}
}

CPU_OP(mla_rope_and_cache, a->rank * sizeof(float))
