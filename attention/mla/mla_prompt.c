/* SPDX-License-Identifier: MIT */

/*
 * The host side of prompts that are not absorbed: cuts rows into pieces and pieces into chunks, and
 * queues gather, gemm and attention of each chunk. The workspace is one, and so is the stream:
 * a chunk's gather comes behind the attention of the chunk before it.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/mla/mla_prompt.h"

#define LEAST 256u /* keys and queries that a chunk has, whatever they take */

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

static uint32_t power_below(uint32_t n)
{
	return 0x80000000u >> __builtin_clz(n);
}

uint32_t mla_prompt_rows(const struct mla_prompt_kernels *kernels, uint32_t n)
{
	uint32_t step = kernels->granule;

	if (step == 1 || n <= step)
		return n ? (n + step - 1) / step * step : 0;
	if (power_below(n) / 4 > step)
		step = power_below(n) / 4;
	return (n + step - 1) / step * step;
}

/* As many of `each` bytes as there is room for, LEAST at least. */
static uint32_t fitting(uint64_t bytes, uint64_t each, uint32_t most)
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
		.n_keys = power_below(fitting(kernels->expanded_bytes, key, kernels->max_keys)),
		.n_queries = c->max_tokens,
	};

	if (all < sizes.n_keys)
		sizes.n_keys = mla_prompt_rows(kernels, (uint32_t)all);
	if (sizes.n_keys < c->max_seq_len && kernels->sums_bytes) {
		sizes.n_queries = fitting(kernels->sums_bytes, sums, c->max_tokens);
		sizes.sums = true;
	}
	return sizes;
}

static void carve(void *userdata, struct arena *arena)
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
#ifdef MIMEO_HAVE_CUDA
	if (strcmp(kind, "cuda") == 0)
		return &mla_prompt_cuda_kernels;
#endif
	return strcmp(kind, "cpu") == 0 ? &mla_prompt_cpu_kernels : NULL;
}

int mla_prompt_new(struct device *device, const struct attention_config *config,
	const struct mla_prompt_kernels *kernels, struct mla_prompt **ret)
{
	struct mla_prompt *prompt;
	int rc;

	if (config->kv_dtype != kernels->dtype || config->activation_dtype != kernels->dtype)
		return -ENOTSUP;
	prompt = calloc(1, sizeof(*prompt));
	if (!prompt)
		return -ENOMEM;
	prompt->device = device;
	prompt->config = config;
	prompt->kernels = kernels;
	prompt->sizes = mla_prompt_sizes(config, kernels);
	rc = arena_alloc(device, carve, prompt, &prompt->memory, NULL);
	if (rc == 0 && kernels->state_new)
		rc = kernels->state_new(
			device, config, &prompt->sizes, &prompt->work, &prompt->state);
	if (rc != 0) {
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

static int expand(struct mla_prompt *prompt, struct stream *stream, const struct weight *kv_b,
	uint32_t n_rows)
{
	return prompt->device->kernels->gemm(stream, &(struct op_gemm){
		.x = prompt->work.latents,
		.w = *kv_b,
		.y = prompt->work.expanded,
		.y_dtype = prompt->config->activation_dtype,
		.n_rows = n_rows,
	});
}

static struct mla_prompt_args args_of(const struct mla_prompt *prompt,
	const struct attention_args *args, const int32_t *block_table)
{
	const struct attention_config *c = prompt->config;

	return (struct mla_prompt_args){
		.q = args->q,
		.kv = args->kv,
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
	};
}

int mla_prompt_load(struct mla_prompt *prompt, struct stream *stream, const struct weight *kv_b)
{
	const struct mla_prompt_kernels *kernels = prompt->kernels;
	const struct mla_prompt_args args = args_of(prompt, &(struct attention_args){ 0 }, NULL);
	uint32_t most = prompt->sizes.n_keys, n = kernels->granule > 1 ? kernels->granule : most;
	int rc = kernels->gather(prompt->state, stream, &args);

	for (; rc == 0 && n <= most; n = mla_prompt_rows(kernels, n + 1))
		rc = expand(prompt, stream, kv_b, n);
	return rc != 0 ? rc : kernels->attend(prompt->state, stream, &args);
}

/* The chunk's rows that its pieces take. */
static uint32_t chunk_rows(const struct mla_prompt *prompt, const struct mla_prompt_args *a)
{
	const struct mla_prompt_piece *last = &a->pieces[a->n_pieces - 1];
	uint32_t granule = prompt->kernels->granule, n;

	if (!a->n_pieces)
		return 0;
	n = last->key_row + last->n_keys;
	return (n + granule - 1) / granule * granule;
}

/* What is in the chunk, for good. */
static int flush(struct mla_prompt *prompt, struct stream *stream, const struct weight *kv_b,
	struct mla_prompt_args *a)
{
	const struct mla_prompt_kernels *kernels = prompt->kernels;
	int rc;

	if (!a->n_pieces)
		return 0;
	rc = kernels->gather(prompt->state, stream, a);
	if (rc == 0)
		rc = expand(prompt, stream, kv_b,
			mla_prompt_rows(kernels, chunk_rows(prompt, a)));
	if (rc == 0)
		rc = kernels->attend(prompt->state, stream, a);
	a->n_pieces = 0;
	return rc;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Some queries of a row of more keys than a chunk has, with a chunk after the other. */
static int run_long(struct mla_prompt *prompt, struct stream *stream, const struct weight *kv_b,
	struct mla_prompt_args *a, const struct mla_prompt_piece *all)
{
	uint32_t end = all->position + all->n_query;
	int rc = 0;

	for (uint32_t first = 0; rc == 0 && first < end; first += prompt->sizes.n_keys) {
		struct mla_prompt_piece *piece = &a->pieces[0];
		uint32_t done = first > all->position ? first - all->position : 0;

		*piece = *all;
		piece->query += done;
		piece->n_query -= done;
		piece->position += done;
		piece->state += done;
		piece->first_key = first;
		piece->n_keys = smaller(end - first, prompt->sizes.n_keys);
		a->n_pieces = 1;
		rc = flush(prompt, stream, kv_b, a);
	}
	return rc;
}

static int queue_long(struct mla_prompt *prompt, struct stream *stream, const struct weight *kv_b,
	struct mla_prompt_args *a, const struct mla_prompt_piece *all)
{
	int rc = flush(prompt, stream, kv_b, a);

	for (uint32_t done = 0; rc == 0 && done < all->n_query; done += prompt->sizes.n_queries) {
		struct mla_prompt_piece some = *all;

		some.query += done;
		some.position += done;
		some.n_query = smaller(all->n_query - done, prompt->sizes.n_queries);
		rc = run_long(prompt, stream, kv_b, a, &some);
	}
	return rc;
}

/* Into the chunk, if need be the next one. */
static int queue_short(struct mla_prompt *prompt, struct stream *stream,
	const struct weight *kv_b, struct mla_prompt_args *a, const struct mla_prompt_piece *all)
{
	uint32_t rows = chunk_rows(prompt, a);
	int rc = 0;

	if (a->n_pieces == MLA_PROMPT_PIECES || prompt->sizes.n_keys - rows < all->n_keys) {
		rc = flush(prompt, stream, kv_b, a);
		rows = 0;
	}
	a->pieces[a->n_pieces] = *all;
	a->pieces[a->n_pieces++].key_row = rows;
	return rc;
}

/* Tokens before the sequence's first; no sequence that is served has any. */
static int zero_tokens(const struct mla_prompt *prompt, struct stream *stream, void *out,
	uint32_t first, uint32_t n)
{
	const struct attention_config *c = prompt->config;
	size_t token = (size_t)c->n_heads * c->latent.v * dtype_bytes(c->activation_dtype);

	return prompt->device->ops->fill_async(
		stream, (uint8_t *)out + first * token, 0, n * token);
}

int mla_prompt_run(struct mla_prompt *prompt, struct stream *stream,
	const struct attention_args *args, const int32_t *block_table,
	const struct mla_prompt_row *rows, uint32_t n_rows)
{
	struct mla_prompt_args a = args_of(prompt, args, block_table);
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < n_rows; i++) {
		const struct mla_prompt_row *r = &rows[i];
		uint32_t before = r->n_query > r->seq_len ? r->n_query - r->seq_len : 0;
		const struct mla_prompt_piece piece = {
			.row = r->row,
			.query = r->first_token + before,
			.n_query = r->n_query - before,
			.position = r->seq_len - (r->n_query - before),
			.n_keys = r->seq_len,
		};

		if (before)
			rc = zero_tokens(prompt, stream, args->out, r->first_token, before);
		if (rc != 0 || !piece.n_query)
			continue;
		if (r->seq_len > prompt->sizes.n_keys)
			rc = queue_long(prompt, stream, args->kv_b, &a, &piece);
		else
			rc = queue_short(prompt, stream, args->kv_b, &a, &piece);
	}
	return rc != 0 ? rc : flush(prompt, stream, args->kv_b, &a);
}
