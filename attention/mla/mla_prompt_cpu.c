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
#include "kernels/cpu/cpu.h"

/* One piece's. */
struct mla_prompt_cpu_args {
	const float *q, *kv;
	float *out;
	const int32_t *pages;
	struct mla_prompt_workspace work;
	uint32_t q_stride, page_tokens, n_pages, n_heads, rank, nope, rope, v;
	float scale;
	struct mla_prompt_piece piece;
};

_Static_assert(sizeof(struct mla_prompt_cpu_args) <= CPU_ARGS_MAX, "they outgrow a queue node");

/* The first element of key k of the piece, expanded. */
static const float *mla_prompt_cpu_key(const struct mla_prompt_cpu_args *a, size_t k, size_t head)
{
	return (const float *)a->work.expanded +
	       ((a->piece.key_row + k) * a->n_heads + head) * (a->nope + a->v);
}

/* ---- gather ---- */

static void mla_prompt_cpu_gather_piece(const void *args, void *workspace)
{
	const struct mla_prompt_cpu_args *a = args;

	for (uint32_t k = 0; k < a->piece.n_keys; k++) {
		uint32_t position = a->piece.first_key + k;
		size_t page = attention_page(a->pages[position / a->page_tokens], a->n_pages);
		const float *cached = a->kv +
			(page * a->page_tokens + position % a->page_tokens) * (a->rank + a->rope);
		size_t to = a->piece.key_row + k;

		memcpy((float *)a->work.latents + to * a->rank, cached, a->rank * sizeof(float));
		memcpy((float *)a->work.ropes + to * a->rope, cached + a->rank,
			a->rope * sizeof(float));
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
			(const float *)a->work.ropes + (a->piece.key_row + k) * a->rope;
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
		scores[i] = a->scale * (vector_dot(q, tile->keys[i], a->nope) +
					       vector_dot(q + a->nope, tile->ropes[i], a->rope));
	softmax_take(run, scores, n, tile->keys, a->nope, sums, a->v);
}

static float *mla_prompt_cpu_sums(const struct mla_prompt_cpu_args *a, size_t query, size_t head)
{
	return a->out + ((a->piece.query + query) * a->n_heads + head) * a->v;
}

_Static_assert(sizeof(struct running_softmax) == 2 * sizeof(float), "stats hold one a head");

static struct running_softmax *mla_prompt_cpu_stats(
	const struct mla_prompt_cpu_args *a, size_t query, size_t head)
{
	return (struct running_softmax *)a->work.stats +
	       (a->piece.state + query) * a->n_heads + head;
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
	const float *q = a->q + (size_t)p->query * a->q_stride + head * (a->nope + a->rope);
	struct mla_prompt_tile tile;

	for (uint32_t j = 0; !p->first_key && j < p->n_query; j++) {
		memset(mla_prompt_cpu_sums(a, j, head), 0, a->v * sizeof(float));
		*mla_prompt_cpu_stats(a, j, head) = RUNNING_SOFTMAX_NONE;
	}
	for (uint32_t first = 0; first < p->n_keys; first += MLA_TILE) {
		mla_prompt_cpu_tile_load(&tile, a, first, head);
		for (uint32_t j = 0; j < p->n_query; j++) {
			uint32_t n = mla_prompt_cpu_visible(a, &tile, j);

			if (n)
				mla_prompt_cpu_tile_attend(&tile, n, a, q + (size_t)j * a->q_stride,
					mla_prompt_cpu_stats(a, j, head),
					mla_prompt_cpu_sums(a, j, head));
		}
	}
	for (uint32_t j = 0; j < p->n_query && p->position + j < p->first_key + p->n_keys; j++)
		vector_scale(mla_prompt_cpu_sums(a, j, head),
			1.0f / mla_prompt_cpu_stats(a, j, head)->sum, a->v);
}

static void mla_prompt_cpu_attend_piece(const void *args, void *workspace)
{
	const struct mla_prompt_cpu_args *a = args;

	for (size_t h = 0; h < a->n_heads; h++)
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
	uint32_t i = 0;
	int rc;

	do {
		const struct mla_prompt_piece none = { 0 };
		const struct mla_prompt_piece *piece = a->n_pieces ? &a->pieces[i] : &none;
		size_t pages = (size_t)piece->row * a->max_pages;

		rc = cpu_launch(stream, op, &(struct mla_prompt_cpu_args){
			.q = a->q,
			.kv = a->kv,
			.out = a->out,
			.pages = a->n_pieces ? a->block_table + pages : NULL,
			.work = a->work,
			.q_stride = a->q_stride,
			.page_tokens = a->page_tokens,
			.n_pages = a->n_pages,
			.n_heads = a->n_heads,
			.rank = a->rank,
			.nope = a->nope,
			.rope = a->rope,
			.v = a->v,
			.scale = a->scale,
			.piece = *piece,
		}, sizeof(struct mla_prompt_cpu_args), 0);
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
