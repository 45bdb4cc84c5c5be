/* SPDX-License-Identifier: MIT */

/*
 * The two stages and the plan on the host, float32. A token's bits are its own: its splits begin at
 * multiples of split_keys in the sequence, its tiles at multiples of MLA_TILE, and its keys alone
 * decide the order of all sums. So decodes, prompts in any chunks of at most MLA_MAX_UNIFORM_QUERY
 * tokens and both backends agree bitwise; larger chunks are computed by mla_prompt_cpu.c.
 *
 * All heads take a tile before the next one: they share its keys.
 */

#include <assert.h>
#include <string.h>

#include "attention/attention_cpu.h"
#include "attention/mla/mla.h"
#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

_Static_assert(sizeof(struct mla_args) <= CPU_ARGS_MAX, "mla_args outgrows a queue node");

struct mla_tile {
	const float *keys[MLA_TILE]; /* [rank + rope] each */
	uint32_t n;
};

/* The workspace of stage 1. */
struct mla_cpu_space {
	struct running_softmax *running; /* [n_heads] */
	float *decoded; /* [MLA_TILE, rank + rope], a tile of a cache of codes; else NULL */
};

static size_t mla_cpu_space_bytes(const struct mla_args *a)
{
	return a->n_heads * sizeof(struct running_softmax) +
	       (a->fp8 ? MLA_TILE * ((size_t)a->rank + a->rope) * sizeof(float) : 0);
}

static struct mla_cpu_space mla_cpu_space_of(const struct mla_args *a, void *workspace)
{
	struct mla_cpu_space space = { .running = workspace };

	space.decoded = a->fp8 ? (float *)(space.running + a->n_heads) : NULL;
	return space;
}

/* The keys that the row's token sees, `left` tokens from the row's last one, itself counted in. */
static uint32_t mla_cpu_visible(const struct mla_args *a, uint32_t row, uint32_t left)
{
	uint32_t seq_len = attention_clamp(a->seq_lens[row], 0, a->max_seq_len);

	return seq_len >= left ? seq_len - left + 1 : 0;
}

/* ---- the plan ---- */

/* The token's items behind those before it; returns where they end. */
static int32_t mla_cpu_plan_token(
	const struct mla_args *a, uint32_t row, uint32_t token, uint32_t n_keys, int32_t n_items)
{
	a->work.plan.token_items[token] = n_items;
	for (uint32_t first = 0, split = 0; first < n_keys; first += a->sizes.split_keys, split++) {
		uint32_t end = first + a->sizes.split_keys;

		assert(split < a->sizes.n_splits);
		a->work.plan.items[n_items++] = (struct mla_item){
			.row = (int32_t)row,
			.token = (int32_t)token,
			.split = (int32_t)split,
			.end = (int32_t)(end < n_keys ? end : n_keys),
		};
	}
	return n_items;
}

static void mla_cpu_make_plan(const void *args, void *workspace)
{
	const struct mla_args *a = args;
	uint32_t t = 0;
	int32_t n_items = 0;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		int32_t end = a->query_start[r + 1];

		for (; end > 0 && t < (uint32_t)end && t < a->n_tokens; t++)
			n_items = mla_cpu_plan_token(
				a, r, t, mla_cpu_visible(a, r, (uint32_t)end - t), n_items);
	}
	for (; t <= a->n_tokens; t++)
		a->work.plan.token_items[t] = n_items;
}

/* ---- stage 1 ---- */

/* The cached row of a token, which becomes the tile's i-th. */
static const float *mla_cpu_tile_key(const struct mla_args *a, size_t token, uint32_t i, float *decoded)
{
	size_t row = (size_t)a->rank + a->rope;

	if (!decoded)
		return (const float *)a->kv + token * row;
	kv_decode(decoded + i * row, (const uint8_t *)a->kv + token * row, a->factors.key, row);
	return decoded + i * row;
}

/* Look up the keys of positions [first, end), which are in one tile. */
static void mla_cpu_tile_load(struct mla_tile *tile, const struct mla_args *a, const int32_t *pages,
	uint32_t first, uint32_t end, float *decoded)
{
	assert(first < end && end - first <= MLA_TILE);
	for (tile->n = 0; first < end; first++, tile->n++) {
		size_t page = attention_page(pages[first / a->page_tokens], a->n_pages);

		tile->keys[tile->n] = mla_cpu_tile_key(
			a, page * a->page_tokens + first % a->page_tokens, tile->n, decoded);
	}
}

/* Take the tile into one head's softmax and sum. */
static void mla_cpu_tile_attend(const struct mla_tile *tile, const struct mla_args *a,
	const float *latent, const float *rope, struct running_softmax *run, float *acc)
{
	float scores[MLA_TILE];

	for (uint32_t i = 0; i < tile->n; i++)
		scores[i] = a->scale * (vector_dot(latent, tile->keys[i], a->rank) +
					       vector_dot(rope, tile->keys[i] + a->rank, a->rope));
	softmax_take(run, scores, tile->n, tile->keys, 0, acc, a->rank);
}

/* A split's place in the workspace: token t of the chunk, head h. */
static size_t mla_cpu_split_at(const struct mla_args *a, size_t t, size_t h, size_t split)
{
	return (t * a->n_heads + h) * a->sizes.n_splits + split;
}

/* The keys [split * split_keys, end) of a row, for token t of the chunk; at least one. */
static void mla_cpu_split_attend(const struct mla_args *a, uint32_t row, uint32_t t, uint32_t split,
	uint32_t end, const struct mla_cpu_space *space)
{
	const int32_t *pages = a->block_table + (size_t)row * a->max_pages;
	const float *q = (const float *)a->q + (size_t)t * a->q_stride + a->nope;
	const float *latent = (const float *)a->work.latent + (size_t)t * a->n_heads * a->rank;
	uint32_t first = split * a->sizes.split_keys;
	struct running_softmax *running = space->running;
	struct mla_tile tile;

	for (size_t h = 0; h < a->n_heads; h++) {
		running[h] = RUNNING_SOFTMAX_NONE;
		memset(a->work.partial + mla_cpu_split_at(a, t, h, split) * a->rank, 0,
			a->rank * sizeof(float));
	}
	for (; first < end; first += MLA_TILE) {
		mla_cpu_tile_load(&tile, a, pages, first,
			first + MLA_TILE < end ? first + MLA_TILE : end, space->decoded);
		for (size_t h = 0; h < a->n_heads; h++)
			mla_cpu_tile_attend(&tile, a, latent + h * a->rank,
				q + h * (a->nope + a->rope), &running[h],
				a->work.partial + mla_cpu_split_at(a, t, h, split) * a->rank);
	}
	for (size_t h = 0; h < a->n_heads; h++) {
		vector_scale(a->work.partial + mla_cpu_split_at(a, t, h, split) * a->rank,
			1.0f / running[h].sum, a->rank);
		a->work.lse[mla_cpu_split_at(a, t, h, split)] =
			running[h].highest + logf(running[h].sum);
	}
}

/* Token t of the chunk, which sees n_keys; a split without keys is marked, and not written. */
static void mla_cpu_token_split(const struct mla_args *a, uint32_t row, uint32_t t, uint32_t n_keys,
	const struct mla_cpu_space *space)
{
	for (uint32_t s = 0; s < a->sizes.n_splits; s++) {
		uint32_t first = s * a->sizes.split_keys, end = first + a->sizes.split_keys;

		if (first < n_keys) {
			mla_cpu_split_attend(a, row, t, s, end < n_keys ? end : n_keys, space);
			continue;
		}
		for (size_t h = 0; h < a->n_heads; h++)
			a->work.lse[mla_cpu_split_at(a, t, h, s)] = -INFINITY;
	}
}

static void mla_cpu_split_lengths(const void *args, void *workspace)
{
	const struct mla_args *a = args;
	const struct mla_cpu_space space = mla_cpu_space_of(a, workspace);
	uint32_t last = a->first_token + a->n_tokens, begin = 0;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		uint32_t end = attention_clamp(a->query_start[r + 1], begin, INT32_MAX);

		for (uint32_t t = begin > a->first_token ? begin : a->first_token;
			t < end && t < last; t++)
			mla_cpu_token_split(a, r, t - a->first_token,
				mla_cpu_visible(a, r, end - t), &space);
		begin = end;
	}
	for (uint32_t t = begin > a->first_token ? begin : a->first_token; t < last; t++)
		mla_cpu_token_split(a, 0, t - a->first_token, 0, &space);
}

/* The plan's items of the chunk's tokens. */
static void mla_cpu_split_items(const void *args, void *workspace)
{
	const struct mla_args *a = args;
	const int32_t *token_items = a->work.plan.token_items + a->first_token;
	const struct mla_cpu_space space = mla_cpu_space_of(a, workspace);

	for (int32_t i = token_items[0]; i < token_items[a->n_tokens]; i++) {
		const struct mla_item *item = &a->work.plan.items[i];

		assert((uint32_t)item->row < a->n_rows && (uint32_t)item->token >= a->first_token);
		mla_cpu_split_attend(a, (uint32_t)item->row, (uint32_t)item->token - a->first_token,
			(uint32_t)item->split, (uint32_t)item->end, &space);
	}
}

/* ---- stage 2 ---- */

/* A head's average over all keys, from its first n splits; those marked empty are not looked at. */
static void mla_cpu_merge_head(
	const struct mla_args *a, const float *partial, const float *lse, uint32_t n, float *out)
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

static void mla_cpu_merge_all(const struct mla_args *a, const int32_t *token_items)
{
	for (size_t t = 0; t < a->n_tokens; t++) {
		uint32_t n = token_items ? (uint32_t)(token_items[t + 1] - token_items[t])
					 : a->sizes.n_splits;

		for (size_t h = 0; h < a->n_heads; h++)
			mla_cpu_merge_head(a,
				a->work.partial + mla_cpu_split_at(a, t, h, 0) * a->rank,
				a->work.lse + mla_cpu_split_at(a, t, h, 0), n,
				(float *)a->work.latent + (t * a->n_heads + h) * a->rank);
	}
}

static void mla_cpu_merge_lengths(const void *args, void *workspace)
{
	mla_cpu_merge_all(args, NULL);
}

static void mla_cpu_merge_items(const void *args, void *workspace)
{
	const struct mla_args *a = args;

	mla_cpu_merge_all(a, a->work.plan.token_items + a->first_token);
}

static const struct cpu_op mla_plan_op = { .name = "mla_plan", .run = mla_cpu_make_plan };
static const struct cpu_op mla_split_op = { .name = "mla_split", .run = mla_cpu_split_lengths };
static const struct cpu_op mla_merge_op = { .name = "mla_merge", .run = mla_cpu_merge_lengths };
static const struct cpu_op mla_split_planned_op = {
	.name = "mla_split", .run = mla_cpu_split_items };
static const struct cpu_op mla_merge_planned_op = {
	.name = "mla_merge", .run = mla_cpu_merge_items };

static int mla_cpu_plan(struct stream *stream, const struct mla_args *a)
{
	assert(a->query_start && a->seq_lens && a->work.plan.token_items && a->work.plan.items);
	return cpu_launch(stream, &mla_plan_op, a, sizeof(*a), 0);
}

static int mla_cpu_split(struct stream *stream, const struct mla_args *a, bool planned)
{
	assert(a->query_start && a->seq_lens && a->block_table);
	assert(a->n_tokens <= a->sizes.chunk_tokens && a->sizes.split_keys % MLA_TILE == 0);
	return cpu_launch(stream, planned ? &mla_split_planned_op : &mla_split_op, a, sizeof(*a),
		mla_cpu_space_bytes(a));
}

static int mla_cpu_merge(struct stream *stream, const struct mla_args *a, bool planned)
{
	return cpu_launch(
		stream, planned ? &mla_merge_planned_op : &mla_merge_op, a, sizeof(*a), 0);
}

const struct mla_kernels mla_cpu_kernels = {
	.dtype = DTYPE_F32,
	.max_splits = 8,
	.chunk_tokens = 64,
	.plan = mla_cpu_plan,
	.split = mla_cpu_split,
	.merge = mla_cpu_merge,
};
