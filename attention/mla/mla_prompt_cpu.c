/* SPDX-License-Identifier: MIT */

/*
 * Prompts that are not absorbed, on the host, float32. A token's bits are its own: tiles begin at
 * multiples of MLA_TILE in the sequence, the state passes from chunk to chunk unrounded, and a
 * token's keys alone decide the order of all sums, in the gemm that expands them as well. Neither
 * the batch nor the way in which a prompt was cut into chunks of more than MLA_MAX_UNIFORM_QUERY
 * tokens changes them.
 *
 * The unnormalised sums are kept in the output. Head by head, all queries take a tile of keys
 * before the next one.
 */

#include <assert.h>
#include <string.h>

#include "attention/attention_cpu.h"
#include "attention/mla/mla.h"
#include "attention/mla/mla_prompt.h"
#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

struct mla_prompt_cpu_args {
	struct mla_prompt_layer l;
	struct mla_prompt_piece piece;
};

_Static_assert(sizeof(struct mla_prompt_cpu_args) <= CPU_ARGS_MAX, "they outgrow a queue node");

/* The first element of key k of the piece, expanded. */
static const float *mla_prompt_cpu_key(const struct mla_prompt_cpu_args *a, size_t k, size_t head)
{
	return (const float *)a->l.work.expanded +
	       ((a->piece.key_row + k) * a->l.n_heads + head) * (a->l.nope + a->l.v);
}

/* ---- gather ---- */

/* n elements of the cache from `at` on. */
static void mla_prompt_cpu_read(const struct mla_prompt_layer *l, size_t at, float *ret, size_t n)
{
	if (l->fp8)
		kv_decode(ret, (const uint8_t *)l->kv + at, l->factors.key, n);
	else
		memcpy(ret, (const float *)l->kv + at, n * sizeof(*ret));
}

static void mla_prompt_cpu_gather_piece(const void *args, void *workspace)
{
	const struct mla_prompt_cpu_args *a = args;
	const int32_t *pages = a->l.block_table + (size_t)a->piece.row * a->l.max_pages;

	for (uint32_t k = 0; k < a->piece.n_keys; k++) {
		uint32_t position = a->piece.first_key + k;
		size_t page = attention_page(pages[position / a->l.page_tokens], a->l.n_pages);
		size_t at = (page * a->l.page_tokens + position % a->l.page_tokens) * (a->l.rank + a->l.rope);
		size_t to = a->piece.key_row + k;

		mla_prompt_cpu_read(&a->l, at, (float *)a->l.work.latents + to * a->l.rank, a->l.rank);
		mla_prompt_cpu_read(
			&a->l, at + a->l.rank, (float *)a->l.work.ropes + to * a->l.rope, a->l.rope);
	}
}

/* ---- attend ---- */

struct mla_prompt_tile {
	const float *keys[MLA_TILE], *ropes[MLA_TILE];
	uint32_t first, n; /* in the piece */
};

static void mla_prompt_cpu_tile_load(struct mla_prompt_tile *tile,
	const struct mla_prompt_cpu_args *a, uint32_t first, size_t head)
{
	tile->first = first;
	for (tile->n = 0; tile->n < MLA_TILE && first + tile->n < a->piece.n_keys; tile->n++) {
		size_t k = first + tile->n;

		tile->keys[tile->n] = mla_prompt_cpu_key(a, k, head);
		tile->ropes[tile->n] =
			(const float *)a->l.work.ropes + (a->piece.key_row + k) * a->l.rope;
	}
}

/* Take the first n keys of the tile into one query's softmax and sum. */
static void mla_prompt_cpu_tile_attend(const struct mla_prompt_tile *tile, uint32_t n,
	const struct mla_prompt_cpu_args *a, const float *q, struct running_softmax *run,
	float *sums)
{
	float scores[MLA_TILE];

	assert(n > 0 && n <= tile->n);
	for (uint32_t i = 0; i < n; i++)
		scores[i] = a->l.scale * (vector_dot(q, tile->keys[i], a->l.nope) +
					       vector_dot(q + a->l.nope, tile->ropes[i], a->l.rope));
	softmax_take(run, scores, n, tile->keys, a->l.nope, sums, a->l.v);
}

static float *mla_prompt_cpu_sums(const struct mla_prompt_cpu_args *a, size_t query, size_t head)
{
	return (float *)a->l.out + ((a->piece.query + query) * a->l.n_heads + head) * a->l.v;
}

_Static_assert(sizeof(struct running_softmax) == 2 * sizeof(float), "stats hold one a head");

static struct running_softmax *mla_prompt_cpu_stats(
	const struct mla_prompt_cpu_args *a, size_t query, size_t head)
{
	return (struct running_softmax *)a->l.work.stats +
	       (a->piece.state + query) * a->l.n_heads + head;
}

/* A tile's keys that a query of the piece sees. */
static uint32_t mla_prompt_cpu_visible(
	const struct mla_prompt_cpu_args *a, const struct mla_prompt_tile *tile, uint32_t query)
{
	uint32_t end = a->piece.position - a->piece.first_key + query + 1;

	if (end <= tile->first)
		return 0;
	return end - tile->first < tile->n ? end - tile->first : tile->n;
}

static void mla_prompt_cpu_head(const struct mla_prompt_cpu_args *a, size_t head)
{
	const struct mla_prompt_piece *p = &a->piece;
	const float *q = (const float *)a->l.q + (size_t)p->query * a->l.q_stride + head * (a->l.nope + a->l.rope);
	struct mla_prompt_tile tile;

	for (uint32_t j = 0; !p->first_key && j < p->n_query; j++) {
		memset(mla_prompt_cpu_sums(a, j, head), 0, a->l.v * sizeof(float));
		*mla_prompt_cpu_stats(a, j, head) = RUNNING_SOFTMAX_NONE;
	}
	for (uint32_t first = 0; first < p->n_keys; first += MLA_TILE) {
		mla_prompt_cpu_tile_load(&tile, a, first, head);
		for (uint32_t j = 0; j < p->n_query; j++) {
			uint32_t n = mla_prompt_cpu_visible(a, &tile, j);

			if (n)
				mla_prompt_cpu_tile_attend(&tile, n, a, q + (size_t)j * a->l.q_stride,
					mla_prompt_cpu_stats(a, j, head),
					mla_prompt_cpu_sums(a, j, head));
		}
	}
	for (uint32_t j = 0; j < p->n_query && p->position + j < p->first_key + p->n_keys; j++)
		vector_scale(mla_prompt_cpu_sums(a, j, head),
			1.0f / mla_prompt_cpu_stats(a, j, head)->sum, a->l.v);
}

static void mla_prompt_cpu_attend_piece(const void *args, void *workspace)
{
	const struct mla_prompt_cpu_args *a = args;

	for (size_t h = 0; h < a->l.n_heads; h++)
		mla_prompt_cpu_head(a, h);
}

/* ---- launching ---- */

static const struct cpu_op gather_op = {
	.name = "mla_prompt_gather", .run = mla_prompt_cpu_gather_piece};
static const struct cpu_op attend_op = { .name = "mla_prompt", .run = mla_prompt_cpu_attend_piece };

/* A node a piece; without pieces one that finds no work. */
static int mla_prompt_cpu_launch(
	struct stream *stream, const struct cpu_op *op, const struct mla_prompt_args *a)
{
	struct mla_prompt_cpu_args args = {.l = a->l};
	uint32_t i = 0;
	int rc;

	do {
		if (a->n_pieces)
			args.piece = a->pieces[i];
		rc = cpu_launch(stream, op, &args, sizeof(args), 0);
	} while (!rc && ++i < a->n_pieces);
	return rc;
}

static int mla_prompt_cpu_gather(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	return mla_prompt_cpu_launch(stream, &gather_op, a);
}

static int mla_prompt_cpu_attend(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	return mla_prompt_cpu_launch(stream, &attend_op, a);
}

const struct mla_prompt_kernels mla_prompt_cpu_kernels = {
	.dtype = DTYPE_F32,
	.granule = 1,
	.max_keys = 256,
	.expanded_bytes = UINT64_MAX,
	.few_keys = UINT32_MAX,
	.gather = mla_prompt_cpu_gather,
	.attend = mla_prompt_cpu_attend,
};
