/* SPDX-License-Identifier: MIT */

/*
 * The host side of prompts that are not absorbed: cuts rows into pieces, collects pieces in chunks,
 * and queues gather, gemm and attention of each chunk. All chunks share one workspace and one
 * stream: a chunk's gather is queued behind the attention of the chunk before it.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/manager.h"
#include "attention/mla/mla_prompt.h"

#define LEAST 256u /* keys and queries that a chunk has at least, whatever bytes they need */

struct mla_prompt {
	struct device *device;
	const struct attention_config *config;
	const struct mla_prompt_kernels *kernels;
	struct mla_prompt_sizes sizes;
	struct mla_prompt_workspace work;
	struct mla_prompt_state *state;
	void *memory;
};

/* ---- sizes ---- */

/* The largest power of two that is not above n. */
static uint32_t mla_prompt_power_below(uint32_t n)
{
	assert(n > 0);
	return 0x80000000u >> __builtin_clz(n);
}

uint32_t mla_prompt_rows(const struct mla_prompt_kernels *kernels, uint32_t n)
{
	uint32_t step = kernels->granule;

	if (step == 1 || n <= step)
		return n ? (n + step - 1) / step * step : 0;
	if (mla_prompt_power_below(n) / 4 > step)
		step = mla_prompt_power_below(n) / 4;
	return (n + step - 1) / step * step;
}

/* How many items of `each` bytes fit into `bytes`, at least LEAST and at most `most`. */
static uint32_t mla_prompt_fitting(uint64_t bytes, uint64_t each, uint32_t most)
{
	uint64_t n = bytes / each;

	if (n < LEAST)
		n = LEAST;
	return n < most ? (uint32_t)n : most;
}

struct mla_prompt_sizes mla_prompt_sizes(
	const struct attention_config *c, const struct mla_prompt_kernels *kernels)
{
	uint64_t key = (uint64_t)c->n_heads * (c->latent.nope + c->latent.v) *
		       dtype_bytes(c->activation_dtype);
	uint64_t sums = (uint64_t)c->n_heads * c->latent.v * sizeof(float);
	uint64_t all = (uint64_t)c->max_rows * c->max_seq_len;
	struct mla_prompt_sizes sizes = {
		.n_keys = mla_prompt_power_below(
			mla_prompt_fitting(kernels->expanded_bytes, key, kernels->max_keys)),
		.n_queries = c->max_tokens,
	};

	if (all < sizes.n_keys)
		sizes.n_keys = mla_prompt_rows(kernels, (uint32_t)all);
	if (sizes.n_keys < c->max_seq_len && kernels->sums_bytes) {
		sizes.n_queries = mla_prompt_fitting(kernels->sums_bytes, sums, c->max_tokens);
		sizes.sums = true;
	}
	assert(sizes.n_keys > 0 && sizes.n_queries > 0 && sizes.n_keys % kernels->granule == 0);
	return sizes;
}

static void mla_prompt_carve(void *userdata, struct arena *arena)
{
	struct mla_prompt *prompt = userdata;
	const struct attention_config *c = prompt->config;
	const struct mla_prompt_sizes *s = &prompt->sizes;
	size_t act = dtype_bytes(c->activation_dtype);

	prompt->work = (struct mla_prompt_workspace){
		.latents = arena_take(arena, s->n_keys, c->latent.rank * act),
		.ropes = arena_take(arena, s->n_keys, c->latent.rope * act),
		.expanded = arena_take(arena, (size_t)s->n_keys * c->n_heads,
			(c->latent.nope + c->latent.v) * act),
		.stats = arena_take(
			arena, (size_t)c->max_tokens * c->n_heads, 2 * sizeof(float)),
	};
	if (s->sums)
		prompt->work.sums = arena_take(arena, (size_t)s->n_queries * c->n_heads,
			c->latent.v * sizeof(float));
}

/* ---- making ---- */

const struct mla_prompt_kernels *mla_prompt_kernels_for(const char *kind)
{
	return ATTENTION_KERNELS(mla_prompt, kind);
}

int mla_prompt_new(struct device *device, const struct attention_config *config,
	const struct mla_prompt_kernels *kernels, struct mla_prompt **ret)
{
	struct mla_prompt *prompt;
	int rc;

	if (config->activation_dtype != kernels->dtype)
		return -ENOTSUP;
	prompt = calloc(1, sizeof(*prompt));
	if (!prompt)
		return -ENOMEM;
	prompt->device = device;
	prompt->config = config;
	prompt->kernels = kernels;
	prompt->sizes = mla_prompt_sizes(config, kernels);
	rc = arena_alloc(device, mla_prompt_carve, prompt, &prompt->memory, NULL);
	if (!rc && kernels->state_new)
		rc = kernels->state_new(
			device, config, &prompt->sizes, &prompt->work, &prompt->state);
	if (rc) {
		mla_prompt_free(prompt);
		return rc;
	}
	*ret = prompt;
	return 0;
}

void mla_prompt_free(struct mla_prompt *prompt)
{
	if (!prompt)
		return;
	if (prompt->state)
		prompt->kernels->state_free(prompt->state);
	if (prompt->memory)
		prompt->device->ops->mem_free(prompt->device, prompt->memory);
	free(prompt);
}

const struct mla_prompt_kernels *mla_prompt_kernels_of(const struct mla_prompt *prompt)
{
	return prompt->kernels;
}

/* ---- chunks ---- */

static int mla_prompt_expand(struct mla_prompt *prompt, struct stream *stream,
	const struct weight *kv_b, uint32_t n_rows)
{
	return prompt->device->kernels->gemm(stream, &(struct op_gemm){
		.x = prompt->work.latents,
		.w = *kv_b,
		.y = prompt->work.expanded,
		.y_dtype = prompt->config->activation_dtype,
		.n_rows = n_rows,
	});
}

static struct mla_prompt_args mla_prompt_args_of(const struct mla_prompt *prompt,
	const struct attention_args *args, const int32_t *block_table)
{
	const struct attention_config *c = prompt->config;

	return (struct mla_prompt_args){.l = {
		.q = args->q,
		.kv = args->kv,
		.fp8 = attention_fp8(c),
		.factors = args->factors,
		.out = args->out,
		.block_table = block_table,
		.work = prompt->work,
		.q_stride = args->q_stride,
		.max_pages = c->max_pages,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.n_heads = c->n_heads,
		.rank = c->latent.rank,
		.nope = c->latent.nope,
		.rope = c->latent.rope,
		.v = c->latent.v,
		.scale = c->scale,
	}};
}

int mla_prompt_load(struct mla_prompt *prompt, struct stream *stream, const struct weight *kv_b)
{
	const struct mla_prompt_kernels *kernels = prompt->kernels;
	const struct mla_prompt_args args =
		mla_prompt_args_of(prompt, &(struct attention_args){0}, NULL);
	uint32_t most = prompt->sizes.n_keys, n = kernels->granule > 1 ? kernels->granule : most;
	int rc = kernels->gather(prompt->state, stream, &args);

	if (rc)
		return rc;
	while (n <= most) {
		rc = mla_prompt_expand(prompt, stream, kv_b, n);
		if (rc)
			return rc;
		n = mla_prompt_rows(kernels, n + 1);
	}
	return kernels->attend(prompt->state, stream, &args);
}

/* ---- a run ---- */

/* The state of one run, and the pieces that it has collected for the next chunk. */
struct mla_prompt_run {
	struct mla_prompt *prompt;
	struct stream *stream;
	const struct weight *kv_b;
	struct mla_prompt_args args;
};

/* Rows of the chunk that its pieces occupy. */
static uint32_t mla_prompt_chunk_rows(const struct mla_prompt_run *run)
{
	const struct mla_prompt_args *a = &run->args;
	uint32_t granule = run->prompt->kernels->granule, n;

	if (!a->n_pieces)
		return 0;
	n = a->pieces[a->n_pieces - 1].key_row + a->pieces[a->n_pieces - 1].n_keys;
	return (n + granule - 1) / granule * granule;
}

/* Queue the chunk and empty it. */
static int mla_prompt_flush(struct mla_prompt_run *run)
{
	struct mla_prompt *prompt = run->prompt;
	const struct mla_prompt_kernels *kernels = prompt->kernels;
	uint32_t n_rows = mla_prompt_rows(kernels, mla_prompt_chunk_rows(run));
	int rc;

	if (!run->args.n_pieces)
		return 0;
	assert(run->args.n_pieces <= MLA_PROMPT_PIECES && n_rows <= prompt->sizes.n_keys);
	rc = kernels->gather(prompt->state, run->stream, &run->args);
	if (rc)
		return rc;
	rc = mla_prompt_expand(prompt, run->stream, run->kv_b, n_rows);
	if (rc)
		return rc;
	rc = kernels->attend(prompt->state, run->stream, &run->args);
	run->args.n_pieces = 0;
	return rc;
}

static uint32_t mla_prompt_smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Some queries of a row that has more keys than a chunk holds, one chunk after the other. */
static int mla_prompt_queue_chunks(
	struct mla_prompt_run *run, const struct mla_prompt_piece *all)
{
	uint32_t end = all->position + all->n_query, n_keys = run->prompt->sizes.n_keys;
	int rc;

	assert(run->args.n_pieces == 0 && all->n_query <= run->prompt->sizes.n_queries);
	for (uint32_t first = 0; first < end; first += n_keys) {
		struct mla_prompt_piece *piece = &run->args.pieces[0];
		uint32_t done = first > all->position ? first - all->position : 0;

		*piece = *all;
		piece->query += done;
		piece->n_query -= done;
		piece->position += done;
		piece->state += done;
		piece->first_key = first;
		piece->n_keys = mla_prompt_smaller(end - first, n_keys);
		run->args.n_pieces = 1;
		rc = mla_prompt_flush(run);
		if (rc)
			return rc;
	}
	return 0;
}

static int mla_prompt_queue_long(struct mla_prompt_run *run, const struct mla_prompt_piece *all)
{
	uint32_t n_queries = run->prompt->sizes.n_queries;
	int rc = mla_prompt_flush(run);

	if (rc)
		return rc;
	for (uint32_t done = 0; done < all->n_query; done += n_queries) {
		struct mla_prompt_piece some = *all;

		some.query += done;
		some.position += done;
		some.n_query = mla_prompt_smaller(all->n_query - done, n_queries);
		rc = mla_prompt_queue_chunks(run, &some);
		if (rc)
			return rc;
	}
	return 0;
}

/* Into the chunk, if it is full the next one. */
static int mla_prompt_queue_short(struct mla_prompt_run *run, const struct mla_prompt_piece *all)
{
	uint32_t rows = mla_prompt_chunk_rows(run), n_keys = run->prompt->sizes.n_keys;
	struct mla_prompt_args *a = &run->args;
	int rc;

	assert(rows <= n_keys && all->n_keys <= n_keys);
	if (a->n_pieces == MLA_PROMPT_PIECES || n_keys - rows < all->n_keys) {
		rc = mla_prompt_flush(run);
		if (rc)
			return rc;
		rows = 0;
	}
	a->pieces[a->n_pieces] = *all;
	a->pieces[a->n_pieces++].key_row = rows;
	return 0;
}

/* The tokens before the sequence's first; no sequence that is served has any. */
static int mla_prompt_zero(const struct mla_prompt_run *run, uint32_t first, uint32_t n)
{
	const struct attention_config *c = run->prompt->config;
	size_t token = (size_t)c->n_heads * c->latent.v * dtype_bytes(c->activation_dtype);

	return run->prompt->device->ops->fill_async(
		run->stream, (uint8_t *)run->args.l.out + first * token, 0, n * token);
}

static int mla_prompt_queue(struct mla_prompt_run *run, const struct mla_prompt_row *r)
{
	uint32_t before = r->n_query > r->seq_len ? r->n_query - r->seq_len : 0;
	const struct mla_prompt_piece piece = {
		.row = r->row,
		.query = r->first_token + before,
		.n_query = r->n_query - before,
		.position = r->seq_len - (r->n_query - before),
		.n_keys = r->seq_len,
	};
	int rc;

	if (before) {
		rc = mla_prompt_zero(run, r->first_token, before);
		if (rc)
			return rc;
	}
	if (!piece.n_query)
		return 0;
	if (r->seq_len > run->prompt->sizes.n_keys)
		return mla_prompt_queue_long(run, &piece);
	return mla_prompt_queue_short(run, &piece);
}

int mla_prompt_run(struct mla_prompt *prompt, struct stream *stream,
	const struct attention_args *args, const int32_t *block_table,
	const struct mla_prompt_row *rows, uint32_t n_rows)
{
	struct mla_prompt_run run = {
		.prompt = prompt,
		.stream = stream,
		.kv_b = args->kv_b,
		.args = mla_prompt_args_of(prompt, args, block_table),
	};
	int rc;

	for (uint32_t i = 0; i < n_rows; i++) {
		rc = mla_prompt_queue(&run, &rows[i]);
		if (rc)
			return rc;
	}
	return mla_prompt_flush(&run);
}
