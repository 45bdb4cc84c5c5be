/* SPDX-License-Identifier: MIT */

/*
 * Paged attention on the host: one pass over a token's keys with a running softmax, float32.
 *
 * A token's result depends on its own query, keys and values alone, to the last bit: each token is
 * computed alone, in tiles (attention/gqa_cpu.h) whose edges depend neither on the chunk of the
 * prompt nor on the batch. So prefill, chunked prefill and decode agree bitwise.
 */

#include <assert.h>
#include <string.h>

#include "attention/gqa_cpu.h"
#include "attention/paged/paged.h"
#include "kernels/cpu/cpu.h"

_Static_assert(sizeof(struct paged_args) <= CPU_ARGS_MAX, "paged_args outgrows a queue node");

/* The token at `position` sees the positions from the window's first to its own. */
static void paged_cpu_token(const struct paged_args *a, const float *q, const int32_t *pages,
	uint32_t position, struct running_softmax *running, float *out)
{
	const struct gqa_cache cache = {
		.kv = a->kv,
		.page_tokens = a->page_tokens,
		.n_kv_heads = a->n_kv_heads,
		.head_dim = a->head_dim,
		.n_pages = a->n_pages,
		.scale = a->scale,
		.soft_cap = a->soft_cap,
		.decoded = gqa_decoded(running, a->n_heads, a->fp8),
		.factors = a->factors,
	};
	uint32_t first = 0, end = position + 1;
	struct gqa_tile tile;

	if (a->window && end > a->window)
		first = end - a->window;
	gqa_begin(running, a->n_heads, out, a->head_dim);
	while (first < end) {
		uint32_t edge = (first / GQA_TILE + 1) * GQA_TILE;

		gqa_tile_load(&tile, &cache, pages, first, edge < end ? edge : end);
		gqa_tile_attend(&tile, &cache, q, a->n_heads, running, out);
		first = edge;
	}
	gqa_end(running, a->n_heads, out, a->head_dim);
}

/* The tokens [begin, end) of row r. */
static void paged_cpu_row(const struct paged_args *a, uint32_t r, uint32_t begin, uint32_t end,
	struct running_softmax *running)
{
	uint64_t capacity = (uint64_t)a->max_pages * a->page_tokens;
	const int32_t *pages = a->block_table + (size_t)r * a->max_pages;
	size_t width = (size_t)a->n_heads * a->head_dim;
	uint32_t seq_len = attention_clamp(a->seq_lens[r], 0,
		capacity < INT32_MAX ? (uint32_t)capacity : INT32_MAX);

	for (uint32_t t = begin; t < end; t++) {
		const float *q = (const float *)a->q + (size_t)t * a->q_stride;
		float *out = (float *)a->out + t * width;

		if (seq_len >= end - t)
			paged_cpu_token(a, q, pages, seq_len - (end - t), running, out);
		else
			memset(out, 0, width * sizeof(*out));
	}
}

static void paged_cpu_attend(const void *args, void *workspace)
{
	const struct paged_args *a = args;
	size_t width = (size_t)a->n_heads * a->head_dim;
	uint32_t begin = 0;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		uint32_t end = attention_clamp(a->query_start[r + 1], begin, a->n_tokens);

		paged_cpu_row(a, r, begin, end, workspace);
		begin = end;
	}
	memset((float *)a->out + begin * width, 0, (a->n_tokens - begin) * width * sizeof(float));
}

static const struct cpu_op paged_cpu_op = { .name = "paged_attention", .run = paged_cpu_attend };

static int paged_cpu_run(
	struct paged_state *state, struct stream *stream, const struct paged_args *a)
{
	assert(a->query_start && a->seq_lens && a->block_table);
	assert(a->n_heads % a->n_kv_heads == 0);
	return cpu_launch(stream, &paged_cpu_op, a, sizeof(*a),
		gqa_workspace_bytes(a->n_heads, a->n_kv_heads, a->head_dim, a->fp8));
}

const struct paged_kernels paged_cpu_kernels = { .dtype = DTYPE_F32, .run = paged_cpu_run };
