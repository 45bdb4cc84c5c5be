/* SPDX-License-Identifier: MIT */

/*
 * Paged attention on the host: one pass over a token's keys with a running softmax, float32.
 *
 * A token's result depends on its own query, keys and values only, to the last bit: each token is
 * computed alone, its keys are taken in tiles (attention/gqa_cpu.h) whose edges do not depend on the
 * chunk of the prompt that the token came with or on the batch around it. So prefill, chunked prefill
 * and decode agree bitwise.
 */

#include <errno.h>
#include <string.h>

#include "attention/gqa_cpu.h"
#include "attention/paged/paged.h"
#include "kernels/cpu/cpu.h"

_Static_assert(sizeof(struct paged_args) <= CPU_ARGS_MAX, "paged_args outgrows a queue node");

/* The token at `position` sees the positions from the window's first to its own. */
static void token_attend(const struct paged_args *a, const float *q, const int32_t *pages,
	uint32_t position, struct gqa_running *running, float *out)
{
	const struct gqa_cache cache = {
		.kv = a->kv,
		.page_tokens = a->page_tokens,
		.n_kv_heads = a->n_kv_heads,
		.head_dim = a->head_dim,
		.n_pages = a->n_pages,
	};
	uint32_t first = 0, end = position + 1;
	struct gqa_tile tile;

	if (a->window && end > a->window)
		first = end - a->window;
	gqa_begin(running, a->n_heads, out, a->head_dim);
	while (first < end) {
		uint32_t edge = (first / GQA_TILE + 1) * GQA_TILE;

		gqa_tile_load(&tile, &cache, pages, first, edge < end ? edge : end);
		gqa_tile_attend(&tile, &cache, a->scale, q, a->n_heads, running, out);
		first = edge;
	}
	gqa_end(running, a->n_heads, out, a->head_dim);
}

static uint32_t clamp_index(int32_t value, uint32_t low, uint32_t high)
{
	if (value < 0 || (uint32_t)value < low)
		return low;
	return (uint32_t)value < high ? (uint32_t)value : high;
}

/* The tokens [begin, end) of row r. */
static void row_attend(const struct paged_args *a, uint32_t r, uint32_t begin, uint32_t end,
	struct gqa_running *running)
{
	uint64_t capacity = (uint64_t)a->max_pages * a->page_tokens;
	const int32_t *pages = a->block_table + (size_t)r * a->max_pages;
	size_t width = (size_t)a->n_heads * a->head_dim;
	uint32_t seq_len = clamp_index(a->seq_lens[r], 0,
		capacity < INT32_MAX ? (uint32_t)capacity : INT32_MAX);

	for (uint32_t t = begin; t < end; t++) {
		const float *q = (const float *)a->q + (size_t)t * a->q_stride;
		float *out = (float *)a->out + t * width;

		if (seq_len >= end - t)
			token_attend(a, q, pages, seq_len - (end - t), running, out);
		else
			memset(out, 0, width * sizeof(*out));
	}
}

static void paged_cpu_op_run(const void *args, void *workspace)
{
	const struct paged_args *a = args;
	size_t width = (size_t)a->n_heads * a->head_dim;
	uint32_t begin = 0;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		uint32_t end = clamp_index(a->query_start[r + 1], begin, a->n_tokens);

		row_attend(a, r, begin, end, workspace);
		begin = end;
	}
	memset((float *)a->out + begin * width, 0, (a->n_tokens - begin) * width * sizeof(float));
}

static const struct cpu_op paged_op = { .name = "paged_attention", .run = paged_cpu_op_run };

static int paged_cpu_run(
	struct paged_state *state, struct stream *stream, const struct paged_args *a)
{
	(void)state;
	if (!a->query_start || !a->seq_lens || !a->block_table)
		return -EINVAL;
	return cpu_launch(
		stream, &paged_op, a, sizeof(*a), a->n_heads * sizeof(struct gqa_running));
}

const struct paged_kernels paged_cpu_kernels = { .dtype = DTYPE_F32, .run = paged_cpu_run };
