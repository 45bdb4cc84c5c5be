/* SPDX-License-Identifier: MIT */

/*
 * Prompts that are not absorbed, on the host, float32. A token's bits are its own: tiles lie at
 * multiples of MLA_TILE in the sequence, the state passes from chunk to chunk unrounded, and all
 * sums have an order that its keys alone decide; so does the gemm that expands them. The batch
 * around a prompt, and how it was cut into chunks of more than MLA_MAX_UNIFORM_QUERY tokens, leave
 * no trace.
 *
 * The unnormalised sums lie in the output. Head by head, a tile of keys passes all queries before
 * the next one.
 */

#include <math.h>
#include <string.h>

#include "attention/mla/mla.h"
#include "attention/mla/mla_prompt.h"
#include "attention/vector_cpu.h"
#include "kernels/cpu/cpu.h"

/* One piece's. */
struct prompt_cpu_args {
	const float *q, *kv;
	float *out;
	const int32_t *pages;
	struct mla_prompt_workspace work;
	uint32_t q_stride, page_tokens, n_pages, n_heads, rank, nope, rope, v;
	float scale;
	struct mla_prompt_piece piece;
};

_Static_assert(sizeof(struct prompt_cpu_args) <= CPU_ARGS_MAX, "they outgrow a queue node");

/* The first element of key k of the piece, expanded. */
static const float *key_at(const struct prompt_cpu_args *a, size_t k, size_t head)
{
	return (const float *)a->work.expanded +
	       ((a->piece.key_row + k) * a->n_heads + head) * (a->nope + a->v);
}

/* ---- gather ---- */

static void gather_run(const void *args, void *workspace)
{
	const struct prompt_cpu_args *a = args;

	(void)workspace;
	for (uint32_t k = 0; k < a->piece.n_keys; k++) {
		uint32_t position = a->piece.first_key + k;
		int32_t page = a->pages[position / a->page_tokens];
		const float *cached;
		size_t to = a->piece.key_row + k;

		if (page < 0 || (a->n_pages && (uint32_t)page >= a->n_pages))
			page = 0;
		cached = a->kv + ((size_t)page * a->page_tokens + position % a->page_tokens) *
			(a->rank + a->rope);
		memcpy((float *)a->work.latents + to * a->rank, cached, a->rank * sizeof(float));
		memcpy((float *)a->work.ropes + to * a->rope, cached + a->rank,
			a->rope * sizeof(float));
	}
}

/* ---- attend ---- */

struct tile {
	const float *keys[MLA_TILE], *ropes[MLA_TILE];
	uint32_t first, n; /* in the piece */
};

static void tile_load(
	struct tile *tile, const struct prompt_cpu_args *a, uint32_t first, size_t head)
{
	tile->first = first;
	for (tile->n = 0; tile->n < MLA_TILE && first + tile->n < a->piece.n_keys; tile->n++) {
		size_t k = first + tile->n;

		tile->keys[tile->n] = key_at(a, k, head);
		tile->ropes[tile->n] =
			(const float *)a->work.ropes + (a->piece.key_row + k) * a->rope;
	}
}

/* Bring one query from the tiles before this one to the end of its first n keys. */
static void tile_attend(const struct tile *tile, uint32_t n, const struct prompt_cpu_args *a,
	const float *q, float stats[2], float *sums)
{
	float scores[MLA_TILE], highest = stats[0], keep, sum;

	for (uint32_t i = 0; i < n; i++) {
		scores[i] = a->scale * (vector_dot(q, tile->keys[i], a->nope) +
					       vector_dot(q + a->nope, tile->ropes[i], a->rope));
		highest = scores[i] > highest ? scores[i] : highest;
	}
	keep = expf(stats[0] - highest); /* 0 at the first tile, whose past is -inf */
	if (keep != 1.0f)
		vector_scale(sums, keep, a->v);
	sum = stats[1] * keep;
	for (uint32_t i = 0; i < n; i++) {
		scores[i] = expf(scores[i] - highest);
		sum += scores[i];
	}
	vector_add_weighted(sums, tile->keys, a->nope, scores, n, a->v);
	stats[0] = highest;
	stats[1] = sum;
}

static float *sums_at(const struct prompt_cpu_args *a, size_t query, size_t head)
{
	return a->out + ((a->piece.query + query) * a->n_heads + head) * a->v;
}

static float *stats_at(const struct prompt_cpu_args *a, size_t query, size_t head)
{
	return a->work.stats + ((a->piece.state + query) * a->n_heads + head) * 2;
}

/* A tile's keys that a query of the piece sees. */
static uint32_t tile_visible(
	const struct prompt_cpu_args *a, const struct tile *tile, uint32_t query)
{
	uint32_t end = a->piece.position - a->piece.first_key + query + 1;

	if (end <= tile->first)
		return 0;
	return end - tile->first < tile->n ? end - tile->first : tile->n;
}

static void attend_head(const struct prompt_cpu_args *a, size_t head)
{
	const struct mla_prompt_piece *p = &a->piece;
	const float *q = a->q + (size_t)p->query * a->q_stride + head * (a->nope + a->rope);
	struct tile tile;

	for (uint32_t j = 0; !p->first_key && j < p->n_query; j++) {
		memset(sums_at(a, j, head), 0, a->v * sizeof(float));
		stats_at(a, j, head)[0] = -INFINITY;
		stats_at(a, j, head)[1] = 0.0f;
	}
	for (uint32_t first = 0; first < p->n_keys; first += MLA_TILE) {
		tile_load(&tile, a, first, head);
		for (uint32_t j = 0; j < p->n_query; j++) {
			uint32_t n = tile_visible(a, &tile, j);

			if (n)
				tile_attend(&tile, n, a, q + (size_t)j * a->q_stride,
					stats_at(a, j, head), sums_at(a, j, head));
		}
	}
	for (uint32_t j = 0; j < p->n_query && p->position + j < p->first_key + p->n_keys; j++)
		vector_scale(sums_at(a, j, head), 1.0f / stats_at(a, j, head)[1], a->v);
}

static void attend_run(const void *args, void *workspace)
{
	const struct prompt_cpu_args *a = args;

	(void)workspace;
	for (size_t h = 0; h < a->n_heads; h++)
		attend_head(a, h);
}

/* ---- launching ---- */

static const struct cpu_op gather_op = { .name = "mla_prompt_gather", .run = gather_run };
static const struct cpu_op attend_op = { .name = "mla_prompt", .run = attend_run };

/* A node a piece; without pieces one that finds no work. */
static int launch(struct stream *stream, const struct cpu_op *op, const struct mla_prompt_args *a)
{
	uint32_t i = 0;
	int rc;

	do {
		const struct mla_prompt_piece none = { 0 };
		const struct mla_prompt_piece *piece = a->n_pieces ? &a->pieces[i] : &none;
		size_t pages = (size_t)piece->row * a->max_pages;

		rc = cpu_launch(stream, op, &(struct prompt_cpu_args){
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
		}, sizeof(struct prompt_cpu_args), 0);
	} while (rc == 0 && ++i < a->n_pieces);
	return rc;
}

static int gather(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	(void)state;
	return launch(stream, &gather_op, a);
}

static int attend(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	(void)state;
	return launch(stream, &attend_op, a);
}

const struct mla_prompt_kernels mla_prompt_cpu_kernels = {
	.dtype = DTYPE_F32,
	.granule = 1,
	.max_keys = 256,
	.expanded_bytes = UINT64_MAX,
	.few_keys = UINT32_MAX,
	.gather = gather,
	.attend = attend,
};
