/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"

static size_t elementwise_clamp(int32_t index, uint32_t n)
{
	if (index < 0)
		return 0;
	return (uint32_t)index < n ? (uint32_t)index : n - 1;
}

static void embed_run(const void *args, void *workspace)
{
	const struct op_embed *a = args;
	size_t cols = a->table.cols, stride = a->out_stride ? a->out_stride : cols;

	for (size_t t = 0; t < a->n_tokens; t++) {
		float *out = (float *)a->out + t * stride;

		if (a->from && a->from[t])
			memcpy(out, a->from[t], cols * sizeof(float));
		else
			weight_to_f32(out, &a->table,
				elementwise_clamp(a->ids[t], a->table.rows) * cols, cols);
		for (size_t i = 0; a->scale != 0 && !(a->from && a->from[t]) && i < cols; i++)
			out[i] *= a->scale;
	}
}

static float elementwise_silu(float x)
{
	return x / (1.0f + expf(-x));
}

static float elementwise_gelu(float x)
{
	return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static void silu_mul_run(const void *args, void *workspace)
{
	const struct op_silu_mul *a = args;
	size_t cols = a->cols;

	for (size_t r = 0; r < a->n_rows; r++) {
		const float *gate = (const float *)a->gate_up + r * 2 * cols, *up = gate + cols;
		float *out = (float *)a->out + r * cols;

		for (size_t i = 0; i < cols; i++)
			out[i] = (a->gelu ? elementwise_gelu(gate[i]) : elementwise_silu(gate[i])) * up[i];
	}
}

static void gather_rows_run(const void *args, void *workspace)
{
	const struct op_gather_rows *a = args;
	size_t cols = a->cols, stride = a->out_stride ? a->out_stride : cols;

	for (size_t r = 0; r < a->n_rows; r++) {
		int32_t index = a->index ? a->index[r] : (int32_t)r;

		memcpy((float *)a->out + r * stride,
			(const float *)a->x + elementwise_clamp(index, a->x_rows) * cols,
			cols * sizeof(float));
	}
}

static void to_f32_run(const void *args, void *workspace)
{
	const struct op_to_f32 *a = args;

	memcpy(a->out, a->x, a->n * sizeof(float));
}

static void soft_cap_run(const void *args, void *workspace)
{
	const struct op_soft_cap *a = args;

	for (size_t i = 0; i < a->n; i++)
		a->x[i] = a->cap * tanhf(a->x[i] / a->cap);
}

static void copy_pages_run(const void *args, void *workspace)
{
	const struct op_copy_pages *a = args;

	for (uint32_t i = 0; i < a->n_pairs; i++) {
		uint32_t src = a->pairs[2 * i], dst = a->pairs[2 * i + 1];

		if (src != dst)
			memcpy((uint8_t *)a->kv + dst * a->page_bytes,
				(const uint8_t *)a->kv + src * a->page_bytes, a->page_bytes);
	}
}

/* The release of the flag orders the tokens before it; it pairs with the engine's acquire load. */
static void outbox_run(const void *args, void *workspace)
{
	const struct op_outbox *a = args;

	memcpy(a->out, a->sampled, a->n_rows * sizeof(*a->out));
	for (uint32_t r = 0; a->out_logprobs && r < a->n_logprob_rows; r++) {
		size_t n = (size_t)a->logprob_tokens * LOGPROBS_WIDTH;

		if ((uint32_t)a->row_flags[r] & ROW_LOGPROBS)
			memcpy(a->out_logprobs + r * n, a->logprobs + r * n, n * sizeof(*a->logprobs));
	}
	if (a->ended)
		*a->ended = cpu_clock_ns();
	__atomic_store_n(a->flag, a->step, __ATOMIC_RELEASE);
}

CPU_OP(embed, 0)
CPU_OP(silu_mul, 0)
CPU_OP(gather_rows, 0)
CPU_OP(to_f32, 0)
CPU_OP(soft_cap, 0)
CPU_OP(copy_pages, 0)
CPU_OP(outbox, 0)
