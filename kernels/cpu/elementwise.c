/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"

CPU_ARGS_FIT(op_embed);
CPU_ARGS_FIT(op_silu_mul);
CPU_ARGS_FIT(op_gather_rows);
CPU_ARGS_FIT(op_to_f32);
CPU_ARGS_FIT(op_copy_pages);
CPU_ARGS_FIT(op_outbox);

static size_t clamp_index(int32_t index, uint32_t n)
{
	if (index < 0)
		return 0;
	return (uint32_t)index < n ? (uint32_t)index : n - 1;
}

static void embed_run(const void *args, void *workspace)
{
	const struct op_embed *a = args;
	size_t cols = a->table.cols, stride = a->out_stride ? a->out_stride : cols;

	(void)workspace;
	for (size_t t = 0; t < a->n_tokens; t++) {
		float *out = (float *)a->out + t * stride;

		if (a->from && a->from[t])
			memcpy(out, a->from[t], cols * sizeof(float));
		else
			weight_to_f32(out, &a->table,
				clamp_index(a->ids[t], a->table.rows) * cols, cols);
	}
}

static void silu_mul_run(const void *args, void *workspace)
{
	const struct op_silu_mul *a = args;
	size_t cols = a->cols;

	(void)workspace;
	for (size_t r = 0; r < a->n_rows; r++) {
		const float *gate = (const float *)a->gate_up + r * 2 * cols, *up = gate + cols;
		float *out = (float *)a->out + r * cols;

		for (size_t i = 0; i < cols; i++)
			out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
	}
}

static void gather_rows_run(const void *args, void *workspace)
{
	const struct op_gather_rows *a = args;
	size_t cols = a->cols, stride = a->out_stride ? a->out_stride : cols;

	(void)workspace;
	for (size_t r = 0; r < a->n_rows; r++) {
		int32_t index = a->index ? a->index[r] : (int32_t)r;

		memcpy((float *)a->out + r * stride,
			(const float *)a->x + clamp_index(index, a->x_rows) * cols,
			cols * sizeof(float));
	}
}

static void to_f32_run(const void *args, void *workspace)
{
	const struct op_to_f32 *a = args;

	(void)workspace;
	memcpy(a->out, a->x, a->n * sizeof(float));
}

static void copy_pages_run(const void *args, void *workspace)
{
	const struct op_copy_pages *a = args;

	(void)workspace;
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

	(void)workspace;
	memcpy(a->out, a->sampled, a->n_rows * sizeof(*a->out));
	if (a->ended)
		*a->ended = cpu_clock_ns();
	__atomic_store_n(a->flag, a->step, __ATOMIC_RELEASE);
}

static const struct cpu_op embed_op = {.name = "embed", .run = embed_run};
static const struct cpu_op silu_mul_op = {.name = "silu_mul", .run = silu_mul_run};
static const struct cpu_op gather_rows_op = {.name = "gather_rows", .run = gather_rows_run};
static const struct cpu_op to_f32_op = {.name = "to_f32", .run = to_f32_run};
static const struct cpu_op copy_pages_op = {.name = "copy_pages", .run = copy_pages_run};
static const struct cpu_op outbox_op = {.name = "outbox", .run = outbox_run};

int cpu_embed(struct stream *stream, const struct op_embed *a)
{
	if (!a->ids || !a->out || !weight_is(&a->table, a->table.rows, a->table.cols))
		return -EINVAL;
	if (a->out_stride && a->out_stride < a->table.cols)
		return -EINVAL;
	return CPU_LAUNCH(stream, &embed_op, a, 0);
}

int cpu_silu_mul(struct stream *stream, const struct op_silu_mul *a)
{
	if (!a->gate_up || !a->out || !a->cols)
		return -EINVAL;
	return CPU_LAUNCH(stream, &silu_mul_op, a, 0);
}

int cpu_gather_rows(struct stream *stream, const struct op_gather_rows *a)
{
	if (!a->x || !a->out || !a->x_rows || !a->cols || a->n_rows > INT32_MAX)
		return -EINVAL;
	if (a->out_stride && a->out_stride < a->cols)
		return -EINVAL;
	return CPU_LAUNCH(stream, &gather_rows_op, a, 0);
}

int cpu_to_f32(struct stream *stream, const struct op_to_f32 *a)
{
	if (!a->x || !a->out || a->n > SIZE_MAX / sizeof(float))
		return -EINVAL;
	return CPU_LAUNCH(stream, &to_f32_op, a, 0);
}

int cpu_copy_pages(struct stream *stream, const struct op_copy_pages *a)
{
	if (!a->kv || !a->page_bytes || (a->n_pairs && !a->pairs))
		return -EINVAL;
	return CPU_LAUNCH(stream, &copy_pages_op, a, 0);
}

int cpu_outbox(struct stream *stream, const struct op_outbox *a)
{
	if (!a->sampled || !a->out || !a->flag)
		return -EINVAL;
	return CPU_LAUNCH(stream, &outbox_op, a, 0);
}
