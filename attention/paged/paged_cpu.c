/* SPDX-License-Identifier: MIT */

/*
 * Paged attention on the host: one pass over a token's keys with a running softmax, float32.
 *
 * A token's result depends on its own query, keys and values only, to the last bit: each token is
 * computed alone, its keys are taken in tiles whose edges lie at multiples of TILE in the sequence,
 * whatever the page size, the chunk of the prompt that the token came with or the batch around it,
 * and every sum inside a tile has an order that the tile's keys alone decide. So prefill, chunked
 * prefill and decode agree bitwise.
 *
 * All heads pass over a tile before the next one, so that its keys are looked up in the block table
 * once, and heads of one group find them in the cache.
 *
 * Sums over head_dim are written with vectors: left to itself, -O2 keeps partial sums in memory.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "attention/paged/paged.h"
#include "kernels/cpu/cpu.h"

#define TILE 32u
#define VEC 4u
#define LANES (4 * VEC)

/* What every machine has registers for; at any float's address. */
typedef float vec __attribute__((vector_size(VEC * sizeof(float)), aligned(4), may_alias));

_Static_assert(sizeof(struct paged_args) <= CPU_ARGS_MAX, "paged_args outgrows a queue node");

/* A head's softmax so far: the highest score, and the sum of weights relative to it. */
struct running {
	float highest, sum;
};

struct tile {
	const float *keys[TILE]; /* [n_kv_heads, head_dim] each; values are to_value further */
	size_t to_value;
	uint32_t n;
};

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

/* Look up the keys of positions [first, end), which lie in one tile. */
static void tile_load(struct tile *tile, const struct paged_args *a, const int32_t *pages,
	uint32_t first, uint32_t end)
{
	size_t row = (size_t)a->n_kv_heads * a->head_dim;
	uint32_t index = first / a->page_tokens, offset = first % a->page_tokens;

	tile->n = 0;
	tile->to_value = a->page_tokens * row;
	while (first < end) {
		int32_t page = pages[index++];

		if (page < 0 || (a->n_pages && (uint32_t)page >= a->n_pages))
			page = 0;
		for (; offset < a->page_tokens && first < end; offset++, first++)
			tile->keys[tile->n++] =
				(const float *)a->kv +
				((size_t)page * 2 * a->page_tokens + offset) * row;
		offset = 0;
	}
}

/* Bring one head from the tiles before this one to the end of this one. */
static void tile_attend(const struct tile *tile, const struct paged_args *a, const float *q,
	size_t kv_head, struct running *run, float *acc)
{
	size_t n = a->head_dim, first = kv_head * n;
	float scores[TILE], highest = run->highest, keep, sum;

	for (uint32_t i = 0; i < tile->n; i++) {
		scores[i] = a->scale * dot(q, tile->keys[i] + first, n);
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

/* The token at `position` sees the positions from the window's first to its own. */
static void token_attend(const struct paged_args *a, const float *q, const int32_t *pages,
	uint32_t position, struct running *running, float *out)
{
	uint32_t group = a->n_heads / a->n_kv_heads;
	uint32_t first = 0, end = position + 1;
	struct tile tile;

	if (a->window && end > a->window)
		first = end - a->window;
	for (uint32_t h = 0; h < a->n_heads; h++)
		running[h] = (struct running){ .highest = -INFINITY };
	memset(out, 0, (size_t)a->n_heads * a->head_dim * sizeof(*out));
	while (first < end) {
		uint32_t edge = (first / TILE + 1) * TILE;

		tile_load(&tile, a, pages, first, edge < end ? edge : end);
		for (size_t h = 0; h < a->n_heads; h++)
			tile_attend(&tile, a, q + h * a->head_dim, h / group, &running[h],
				out + h * a->head_dim);
		first = edge;
	}
	for (size_t h = 0; h < a->n_heads; h++)
		scale_by(out + h * a->head_dim, 1.0f / running[h].sum, a->head_dim);
}

static uint32_t clamp_index(int32_t value, uint32_t low, uint32_t high)
{
	if (value < 0 || (uint32_t)value < low)
		return low;
	return (uint32_t)value < high ? (uint32_t)value : high;
}

/* The tokens [begin, end) of row r. */
static void row_attend(const struct paged_args *a, uint32_t r, uint32_t begin, uint32_t end,
	struct running *running)
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
		stream, &paged_op, a, sizeof(*a), a->n_heads * sizeof(struct running));
}

const struct paged_kernels paged_cpu_kernels = { .dtype = DTYPE_F32, .run = paged_cpu_run };
