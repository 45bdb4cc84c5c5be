/* SPDX-License-Identifier: MIT */

/*
 * The two stages on the host, float32. A token's bits are its own: its splits lie at multiples of
 * split_keys in the sequence, its tiles at multiples of MLA_TILE, and all sums have an order that its
 * keys alone decide. So prompts in any chunks, decodes and both backends agree bitwise.
 *
 * All heads pass over a tile before the next one: they share its keys.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "attention/mla/mla.h"
#include "attention/vector_cpu.h"
#include "kernels/cpu/cpu.h"

_Static_assert(sizeof(struct mla_args) <= CPU_ARGS_MAX, "mla_args outgrows a queue node");

/* A head's softmax so far: the highest score, and the sum of weights relative to it. */
struct running {
	float highest, sum;
};

struct tile {
	const float *keys[MLA_TILE]; /* [rank + rope] each */
	uint32_t n;
};

/* ---- stage 1 ---- */

/* Look up the keys of positions [first, end), which lie in one tile. */
static void tile_load(struct tile *tile, const struct mla_args *a, const int32_t *pages,
	uint32_t first, uint32_t end)
{
	size_t row = (size_t)a->rank + a->rope;

	for (tile->n = 0; first < end; first++) {
		int32_t page = pages[first / a->page_tokens];

		if (page < 0 || (a->n_pages && (uint32_t)page >= a->n_pages))
			page = 0;
		tile->keys[tile->n++] = (const float *)a->kv +
			((size_t)page * a->page_tokens + first % a->page_tokens) * row;
	}
}

/* Bring one head from the tiles before this one to the end of this one. */
static void tile_attend(const struct tile *tile, const struct mla_args *a, const float *latent,
	const float *rope, struct running *run, float *acc)
{
	float scores[MLA_TILE], highest = run->highest, keep, sum;

	for (uint32_t i = 0; i < tile->n; i++) {
		scores[i] = a->scale * (vector_dot(latent, tile->keys[i], a->rank) +
					       vector_dot(rope, tile->keys[i] + a->rank, a->rope));
		highest = scores[i] > highest ? scores[i] : highest;
	}
	keep = expf(run->highest - highest); /* 0 at the first tile, whose past is -inf */
	if (keep != 1.0f)
		vector_scale(acc, keep, a->rank);
	sum = run->sum * keep;
	for (uint32_t i = 0; i < tile->n; i++) {
		scores[i] = expf(scores[i] - highest);
		sum += scores[i];
	}
	vector_add_weighted(acc, tile->keys, 0, scores, tile->n, a->rank);
	run->highest = highest;
	run->sum = sum;
}

/* A split's place in the workspace: token t of the chunk, head h. */
static size_t split_at(const struct mla_args *a, size_t t, size_t h, size_t split)
{
	return (t * a->n_heads + h) * a->sizes.n_splits + split;
}

/* The keys [split * split_keys, end) of a row, for token t of the chunk; at least one. */
static void split_attend(const struct mla_args *a, uint32_t row, uint32_t t, uint32_t split,
	uint32_t end, struct running *running)
{
	const int32_t *pages = a->block_table + (size_t)row * a->max_pages;
	const float *q = (const float *)a->q + (size_t)t * a->q_stride + a->nope;
	const float *latent = (const float *)a->work.latent + (size_t)t * a->n_heads * a->rank;
	uint32_t first = split * a->sizes.split_keys;
	struct tile tile;

	for (size_t h = 0; h < a->n_heads; h++) {
		running[h] = (struct running){ .highest = -INFINITY };
		memset(a->work.partial + split_at(a, t, h, split) * a->rank, 0,
			a->rank * sizeof(float));
	}
	for (; first < end; first += MLA_TILE) {
		tile_load(&tile, a, pages, first, first + MLA_TILE < end ? first + MLA_TILE : end);
		for (size_t h = 0; h < a->n_heads; h++)
			tile_attend(&tile, a, latent + h * a->rank, q + h * (a->nope + a->rope),
				&running[h],
				a->work.partial + split_at(a, t, h, split) * a->rank);
	}
	for (size_t h = 0; h < a->n_heads; h++) {
		vector_scale(a->work.partial + split_at(a, t, h, split) * a->rank,
			1.0f / running[h].sum, a->rank);
		a->work.lse[split_at(a, t, h, split)] = running[h].highest + logf(running[h].sum);
	}
}

/* Token t of the chunk, which sees n_keys; a split without keys is marked, and not written. */
static void token_split(const struct mla_args *a, uint32_t row, uint32_t t, uint32_t n_keys,
	struct running *running)
{
	for (uint32_t s = 0; s < a->sizes.n_splits; s++) {
		uint32_t first = s * a->sizes.split_keys, end = first + a->sizes.split_keys;

		if (first < n_keys) {
			split_attend(a, row, t, s, end < n_keys ? end : n_keys, running);
			continue;
		}
		for (size_t h = 0; h < a->n_heads; h++)
			a->work.lse[split_at(a, t, h, s)] = -INFINITY;
	}
}

static uint32_t clamp_index(int32_t value, uint32_t low, uint32_t high)
{
	if (value < 0 || (uint32_t)value < low)
		return low;
	return (uint32_t)value < high ? (uint32_t)value : high;
}

static void split_run(const void *args, void *workspace)
{
	const struct mla_args *a = args;
	uint32_t last = a->first_token + a->n_tokens, begin = 0;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		uint32_t end = clamp_index(a->query_start[r + 1], begin, INT32_MAX);

		for (uint32_t t = begin > a->first_token ? begin : a->first_token;
			t < end && t < last; t++)
			token_split(a, r, t - a->first_token, mla_visible(a, r, end - t), workspace);
		begin = end;
	}
	for (uint32_t t = begin > a->first_token ? begin : a->first_token; t < last; t++)
		token_split(a, 0, t - a->first_token, 0, workspace);
}

/* The plan's items of the chunk's tokens. */
static void split_planned_run(const void *args, void *workspace)
{
	const struct mla_args *a = args;
	const int32_t *token_items = a->work.plan.token_items + a->first_token;

	for (int32_t i = token_items[0]; i < token_items[a->n_tokens]; i++) {
		const struct mla_item *item = &a->work.plan.items[i];

		split_attend(a, (uint32_t)item->row, (uint32_t)item->token - a->first_token,
			(uint32_t)item->split, (uint32_t)item->end, workspace);
	}
}

/* ---- stage 2 ---- */

/* A head's average over all keys, from its first n splits; those marked empty are not looked at. */
static void merge_head(const struct mla_args *a, const float *partial, const float *lse, uint32_t n,
	float *out)
{
	float highest = -INFINITY, sum = 0;

	memset(out, 0, a->rank * sizeof(*out));
	for (uint32_t s = 0; s < n; s++)
		highest = lse[s] > highest ? lse[s] : highest;
	for (uint32_t s = 0; s < n; s++) {
		float weight;

		if (lse[s] == -INFINITY)
			continue;
		weight = expf(lse[s] - highest);
		sum += weight;
		for (uint32_t i = 0; i < a->rank; i++)
			out[i] += weight * partial[(size_t)s * a->rank + i];
	}
	if (sum != 0.0f)
		vector_scale(out, 1.0f / sum, a->rank);
}

static void merge(const struct mla_args *a, const int32_t *token_items)
{
	for (size_t t = 0; t < a->n_tokens; t++) {
		uint32_t n = token_items ? (uint32_t)(token_items[t + 1] - token_items[t])
					 : a->sizes.n_splits;

		for (size_t h = 0; h < a->n_heads; h++)
			merge_head(a, a->work.partial + split_at(a, t, h, 0) * a->rank,
				a->work.lse + split_at(a, t, h, 0), n,
				(float *)a->work.latent + (t * a->n_heads + h) * a->rank);
	}
}

static void merge_run(const void *args, void *workspace)
{
	(void)workspace;
	merge(args, NULL);
}

static void merge_planned_run(const void *args, void *workspace)
{
	const struct mla_args *a = args;

	(void)workspace;
	merge(a, a->work.plan.token_items + a->first_token);
}

static const struct cpu_op split_op = { .name = "mla_split", .run = split_run };
static const struct cpu_op split_planned_op = { .name = "mla_split", .run = split_planned_run };
static const struct cpu_op merge_op = { .name = "mla_merge", .run = merge_run };
static const struct cpu_op merge_planned_op = { .name = "mla_merge", .run = merge_planned_run };

static int mla_cpu_split(struct stream *stream, const struct mla_args *a, bool planned)
{
	if (!a->query_start || !a->seq_lens || !a->block_table)
		return -EINVAL;
	return cpu_launch(stream, planned ? &split_planned_op : &split_op, a, sizeof(*a),
		a->n_heads * sizeof(struct running));
}

static int mla_cpu_merge(struct stream *stream, const struct mla_args *a, bool planned)
{
	return cpu_launch(stream, planned ? &merge_planned_op : &merge_op, a, sizeof(*a), 0);
}

const struct mla_kernels mla_cpu_kernels = {
	.dtype = DTYPE_F32,
	.max_splits = 8,
	.chunk_tokens = 64,
	.plan = mla_cpu_plan,
	.split = mla_cpu_split,
	.merge = mla_cpu_merge,
};
