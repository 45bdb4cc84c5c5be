/* SPDX-License-Identifier: MIT */

/*
 * The host side of latent attention, of two backends that differ in how stage 1 finds its work.
 *
 * Rows of more than MLA_MAX_UNIFORM_QUERY query tokens are prompts, and not absorbed where that
 * pays: a build cuts the batch into segments, a run gives each to mla_prompt.h or to the two
 * stages. A uniform batch has no prompts, so graphs hold the two stages alone; prompts run eagerly,
 * or at a break.
 *
 * `mla`: every token has the same number of splits, and those past its keys are empty; the kernels
 * read lengths from the persistent inputs, and a build keeps only the padded counts.
 *
 * `mla_planned`: once a step, a kernel lists the splits that are not empty in a persistent buffer
 * (the pattern of FlashMLA's tile scheduler). The plan is LAZY: the first run after a build queues
 * it, and the metadata object remembers that. With an object that outlives its batch, the plan
 * would be missing from a graph, whose replays would then use another batch's; hence objects are
 * made for each warm-up and each capture, and every build forgets. What graphs keep of a plan, its
 * strides and its sizes, is that of the worst case (mla_check_strides).
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/mla/mla.h"
#include "attention/mla/mla_segments.h"

struct mla_manager {
	struct attention_manager base;
	const struct mla_kernels *kernels;
	bool planned; /* the manager is mla_planned's */
	bool loaded; /* all that any run may need, by the first eager run */
	void *memory;
	struct mla_workspace work;
	struct mla_prompt *prompt;
};

struct mla_metadata {
	struct attention_metadata base;
	bool planned;   /* the stages read their work from a plan: the batch has no prompts */
	bool plan_done; /* queued, or recorded, since the build */
	struct mla_segments segments;
};

/* ---- configuration ---- */

/* The cpu device's activations are float32, CUDA's bf16. */
static int mla_check(const struct attention_config *config, char *why, size_t size)
{
	int rc = attention_check_latent(config, why, size);

	if (rc || config->activation_dtype == DTYPE_F32)
		return rc;
#ifdef MIMEO_HAVE_CUDA
	if (config->head_dim <= MLA_CUDA_WIDTH_MAX)
		return 0;
	snprintf(why, size, "cached rows of %u + %u columns are more than the %u of cuda's kernels",
		config->latent.rank, config->latent.rope, MLA_CUDA_WIDTH_MAX);
#else
	snprintf(why, size, "it runs on the cpu device alone, and activations are not float32");
#endif
	return -ENOTSUP;
}

static enum attention_support mla_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = MLA_MAX_UNIFORM_QUERY;
	return ATTENTION_UNIFORM_BATCH;
}

static uint32_t mla_ceil_div(uint32_t a, uint32_t b)
{
	return a / b + (a % b != 0);
}

/* Splits of each of n tokens: as many as the slots hold at once, because each costs a partial
 * result. With more tokens than slots, choose the number that costs least: the last round leaves
 * slots idle, but takes at least half of a full round's time, because a block alone is twice as
 * fast as one of all; each partial result costs a share of the whole (both measured on an H200). */
static uint32_t mla_splits_for(uint32_t n, uint32_t n_slots, uint32_t most)
{
	uint32_t best = n_slots / n;
	double least = INFINITY;

	if (best >= 1)
		return best < most ? best : most;
	for (uint32_t s = 1; s <= 8 && s <= most; s++) {
		double rounds = (double)n * s / n_slots, last = rounds - floor(rounds), cost;

		cost = (floor(rounds) + (last > 0 ? fmax(last, 0.5) : 0)) / rounds;
		cost += s > 1 ? 0.06 + 0.01 * s : 0;
		if (cost < least) {
			least = cost;
			best = s;
		}
	}
	assert(best >= 1 && best <= most);
	return best;
}

struct mla_sizes mla_sizes(const struct attention_config *config, const struct mla_kernels *kernels,
	uint32_t n_tokens)
{
	struct mla_sizes sizes = {
		.chunk_tokens = config->max_tokens < kernels->chunk_tokens ?
			config->max_tokens : kernels->chunk_tokens,
	};
	uint32_t n_splits = kernels->max_splits;

	if (kernels->n_blocks) {
		uint32_t parts = mla_ceil_div(config->n_heads, kernels->block_heads), n = n_tokens;

		n = n > sizes.chunk_tokens ? sizes.chunk_tokens : n;
		sizes.n_slots = parts < kernels->n_blocks ? kernels->n_blocks / parts : 1;
		n_splits = n ? mla_splits_for(n, sizes.n_slots, kernels->max_splits) : n_splits;
	}
	sizes.split_keys =
		mla_ceil_div(mla_ceil_div(config->max_seq_len, n_splits), MLA_TILE) * MLA_TILE;
	sizes.n_splits = mla_ceil_div(config->max_seq_len, sizes.split_keys);
	assert(sizes.n_splits >= 1 && sizes.n_splits <= kernels->max_splits);
	assert((uint64_t)sizes.n_splits * sizes.split_keys >= config->max_seq_len);
	return sizes;
}

/* Splits of all tokens of a chunk, at most, whatever number of them there is. With n_blocks, a
 * token's only split needs no partial: it is the result. A slot has two: the end of one token's
 * keys and the beginning of another's. */
static uint32_t mla_partials_max(
	const struct attention_config *config, const struct mla_kernels *kernels, bool planned)
{
	struct mla_sizes sizes = mla_sizes(config, kernels, 0);
	uint32_t most = planned ? 2 * sizes.n_slots : 0;

	for (uint32_t n = 1; n <= sizes.chunk_tokens; n++) {
		uint32_t n_splits = mla_sizes(config, kernels, n).n_splits;

		if ((n_splits > 1 || !kernels->n_blocks) && n * n_splits > most)
			most = n * n_splits;
	}
	return most;
}

static void mla_plan_carve(const struct attention_config *config, const struct mla_sizes *sizes,
	struct arena *arena, struct mla_plan *ret)
{
	if (sizes->n_slots) {
		ret->tokens = arena_take(arena, sizes->chunk_tokens, sizeof(*ret->tokens));
		ret->slots = arena_take(arena, sizes->n_slots, sizeof(*ret->slots));
		return;
	}
	ret->token_items =
		arena_take(arena, (size_t)config->max_tokens + 1, sizeof(*ret->token_items));
	ret->items = arena_take(arena, config->max_tokens, sizes->n_splits * sizeof(*ret->items));
}

void mla_workspace_carve(const struct attention_config *config, const struct mla_kernels *kernels,
	bool planned, struct arena *arena, struct mla_workspace *ret)
{
	const struct mla_sizes sizes = mla_sizes(config, kernels, 0);
	size_t heads = (size_t)sizes.chunk_tokens * config->n_heads, rank = config->latent.rank;
	size_t partials = (size_t)mla_partials_max(config, kernels, planned) * config->n_heads;

	*ret = (struct mla_workspace){
		.latent = arena_take(arena, heads, rank * dtype_bytes(config->activation_dtype)),
		.partial = arena_take(arena, partials, rank * sizeof(float)),
		.lse = arena_take(arena, partials, sizeof(float)),
	};
	if (planned)
		mla_plan_carve(config, &sizes, arena, &ret->plan);
}

/* ---- managers ---- */

const struct mla_kernels *mla_kernels_for(const char *kind)
{
	return ATTENTION_KERNELS(mla, kind);
}

static void mla_carve(void *userdata, struct arena *arena)
{
	struct mla_manager *manager = userdata;

	mla_workspace_carve(&manager->base.config, manager->kernels, manager->planned, arena,
		&manager->work);
}

static void mla_manager_free(struct attention_manager *base)
{
	struct mla_manager *manager = (struct mla_manager *)base;

	if (!manager)
		return;
	mla_prompt_free(manager->prompt);
	if (manager->memory)
		base->device->ops->mem_free(base->device, manager->memory);
	attention_manager_free(base);
}

static int mla_manager_fill(struct attention_manager *base)
{
	struct mla_manager *manager = (struct mla_manager *)base;
	const struct mla_kernels *kernels = mla_kernels_for(base->kind);
	struct device *device = base->device;
	int rc;

	if (!kernels || !device->kernels->head_gemm || base->config.activation_dtype != kernels->dtype)
		return -ENOTSUP;
	manager->kernels = kernels;
	rc = arena_alloc(device, mla_carve, manager, &manager->memory, NULL);
	if (rc)
		return rc;
	rc = kernels->load ? kernels->load(device) : 0;
	if (rc)
		return rc;
	return mla_prompt_new(
		device, &base->config, mla_prompt_kernels_for(base->kind), &manager->prompt);
}

static int mla_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return attention_manager_new(&attention_mla, sizeof(struct mla_manager), device, config,
		inputs, mla_manager_fill, ret);
}

static int mla_planned_manager_fill(struct attention_manager *base)
{
	((struct mla_manager *)base)->planned = true;
	return mla_manager_fill(base);
}

static int mla_planned_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return attention_manager_new(&attention_mla_planned, sizeof(struct mla_manager), device,
		config, inputs, mla_planned_manager_fill, ret);
}

/* ---- metadata ---- */

static int mla_metadata_new(struct attention_manager *base, struct attention_metadata **ret)
{
	const struct mla_manager *manager = (struct mla_manager *)base;
	struct attention_metadata *metadata;
	int rc = attention_metadata_new(base, sizeof(struct mla_metadata), &metadata);

	if (rc)
		return rc;
	rc = mla_segments_init(&((struct mla_metadata *)metadata)->segments,
		mla_prompt_kernels_of(manager->prompt), base->config.max_rows);
	if (rc) {
		free(metadata);
		return rc;
	}
	*ret = metadata;
	return 0;
}

static void mla_metadata_free(struct attention_metadata *metadata)
{
	if (!metadata)
		return;
	mla_segments_deinit(&((struct mla_metadata *)metadata)->segments);
	free(metadata);
}

static int mla_build(struct attention_metadata *base, const struct attention_batch *batch,
	struct stream *stream)
{
	const struct mla_manager *manager = (struct mla_manager *)base->manager;
	struct mla_metadata *metadata = (struct mla_metadata *)base;
	int rc = attention_metadata_begin(
		base, batch, ATTENTION_UNIFORM_BATCH, MLA_MAX_UNIFORM_QUERY);

	if (rc)
		return rc;
	metadata->plan_done = false;
	mla_segments_cut(&metadata->segments, batch);
	metadata->planned = manager->planned && metadata->segments.n_prompts == 0;
	assert(!base->capturable || metadata->segments.n_prompts == 0);
	base->built = true;
	return 0;
}

/* ---- a layer ---- */

/* The chunk's queries into the latent space: q_h W_UK_h. */
static int mla_absorb(const struct kernel_ops *ops, struct stream *stream, const struct mla_args *a,
	const struct attention_latent *l, const struct weight *kv_b)
{
	return ops->head_gemm(stream, &(struct op_head_gemm){
		.x = a->q,
		.w = *kv_b,
		.y = a->work.latent,
		.x_stride = a->q_stride,
		.x_head_stride = l->nope + l->rope,
		.y_stride = a->n_heads * l->rank,
		.y_head_stride = l->rank,
		.head_rows = l->nope + l->v,
		.head_n = l->nope,
		.n_rows = a->n_tokens,
		.n_heads = a->n_heads,
		.transposed = true,
	});
}

/* The chunk's averages into values: W_UV_h o_h. */
static int mla_expand(const struct kernel_ops *ops, struct stream *stream, const struct mla_args *a,
	const struct attention_latent *l, const struct weight *kv_b, void *out)
{
	return ops->head_gemm(stream, &(struct op_head_gemm){
		.x = a->work.latent,
		.w = *kv_b,
		.y = out,
		.x_stride = a->n_heads * l->rank,
		.x_head_stride = l->rank,
		.y_stride = a->n_heads * l->v,
		.y_head_stride = l->v,
		.head_rows = l->nope + l->v,
		.head_first = l->nope,
		.head_n = l->v,
		.n_rows = a->n_tokens,
		.n_heads = a->n_heads,
	});
}

static struct mla_args mla_args_of(
	const struct attention_metadata *metadata, const struct attention_args *args)
{
	const struct mla_manager *manager = (struct mla_manager *)metadata->manager;
	const struct attention_config *c = &manager->base.config;
	const struct step_inputs *inputs = &manager->base.inputs;

	return (struct mla_args){
		.q = args->q,
		.kv = args->kv,
		.fp8 = attention_fp8(c),
		.factors = args->factors,
		.work = manager->work,
		.query_start = inputs->query_start,
		.seq_lens = inputs->seq_lens,
		.block_table = inputs->block_table,
		.q_stride = args->q_stride,
		.max_pages = c->max_pages,
		.max_seq_len = c->max_seq_len,
		.n_rows = metadata->padded_rows,
		.n_tokens = metadata->padded_tokens,
		.step_tokens = metadata->padded_tokens,
		.n_heads = c->n_heads,
		.rank = c->latent.rank,
		.nope = c->latent.nope,
		.rope = c->latent.rope,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.sizes = mla_sizes(c, manager->kernels, metadata->padded_tokens),
		.scale = c->scale,
	};
}

/* A graph replays the sizes of its capture on the plan of another batch: they are the worst case's.
 * A list of splits also depends on the size of a split; slots do not. */
static void mla_check_strides(const struct mla_manager *manager, const struct mla_sizes *sizes)
{
	const struct mla_sizes worst = mla_sizes(&manager->base.config, manager->kernels, 0);

	assert(sizes->n_slots == worst.n_slots && sizes->chunk_tokens == worst.chunk_tokens);
	assert(sizes->n_slots || (sizes->n_splits == worst.n_splits &&
					 sizes->split_keys == worst.split_keys));
}

/* Absorbed tokens [first, end): the first of them, as many as the workspace holds. */
static int mla_run_chunk(const struct mla_manager *manager, struct stream *stream,
	const struct mla_args *all, const struct attention_args *args, bool planned, uint32_t first,
	uint32_t end)
{
	const struct attention_config *c = &manager->base.config;
	const struct kernel_ops *ops = manager->base.device->kernels;
	size_t act = dtype_bytes(c->activation_dtype);
	struct mla_args a = *all;
	int rc;

	assert(first <= end && end <= c->max_tokens);
	a.first_token = first;
	a.n_tokens = end - first;
	if (a.n_tokens > a.sizes.chunk_tokens)
		a.n_tokens = a.sizes.chunk_tokens;
	a.sizes = mla_sizes(c, manager->kernels, a.n_tokens);
	if (planned)
		mla_check_strides(manager, &a.sizes);
	a.q = (const uint8_t *)all->q + (size_t)first * all->q_stride * act;
	rc = mla_absorb(ops, stream, &a, &c->latent, args->kv_b);
	if (rc)
		return rc;
	rc = manager->kernels->split(stream, &a, planned);
	if (rc)
		return rc;
	rc = manager->kernels->merge(stream, &a, planned);
	if (rc)
		return rc;
	return mla_expand(ops, stream, &a, &c->latent, args->kv_b,
		(uint8_t *)args->out + (size_t)first * c->n_heads * c->latent.v * act);
}

static int mla_plan(
	struct mla_metadata *metadata, struct stream *stream, const struct mla_args *all)
{
	const struct mla_manager *manager = (struct mla_manager *)metadata->base.manager;
	int rc;

	if (!metadata->planned || metadata->plan_done)
		return 0;
	mla_check_strides(manager, &all->sizes);
	rc = manager->kernels->plan(stream, all);
	metadata->plan_done = !rc;
	return rc;
}

/* The first eager run, whatever its batch, loads what any later one may need. */
static int mla_load(struct mla_manager *manager, struct stream *stream, const struct mla_args *all,
	const struct attention_args *args)
{
	struct mla_args none = *all;
	int rc;

	if (manager->loaded || manager->base.device->ops->capturing(stream))
		return 0;
	none.n_tokens = 0;
	if (manager->planned) {
		rc = manager->kernels->plan(stream, &none);
		if (rc)
			return rc;
		rc = mla_run_chunk(manager, stream, &none, args, true, 0, 0);
		if (rc)
			return rc;
	}
	rc = mla_run_chunk(manager, stream, &none, args, false, 0, 0);
	if (rc)
		return rc;
	rc = mla_prompt_load(manager->prompt, stream, args->kv_b);
	manager->loaded = !rc;
	return rc;
}

static int mla_run_segment(const struct mla_metadata *metadata, struct stream *stream,
	const struct mla_args *all, const struct attention_args *args,
	const struct mla_segment *segment)
{
	const struct mla_manager *manager = (struct mla_manager *)metadata->base.manager;
	uint32_t first = segment->first;
	int rc;

	if (segment->n_prompts)
		return mla_prompt_run(manager->prompt, stream, args, all->block_table,
			metadata->segments.prompts + segment->first_prompt, segment->n_prompts);
	assert(all->sizes.chunk_tokens > 0);
	do { /* once even without a token: a warm-up of any batch loads the ops */
		rc = mla_run_chunk(
			manager, stream, all, args, metadata->planned, first, segment->end);
		if (rc)
			return rc;
		first += all->sizes.chunk_tokens;
	} while (first < segment->end);
	return 0;
}

static int mla_run(struct attention_metadata *base, struct stream *stream,
	const struct attention_args *args)
{
	struct mla_metadata *metadata = (struct mla_metadata *)base;
	struct mla_args all;
	int rc = attention_run_check(base, stream, args);

	if (rc)
		return rc;
	all = mla_args_of(base, args);
	rc = mla_load((struct mla_manager *)base->manager, stream, &all, args);
	if (rc)
		return rc;
	rc = mla_plan(metadata, stream, &all);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < metadata->segments.n; i++) {
		rc = mla_run_segment(
			metadata, stream, &all, args, &metadata->segments.segments[i]);
		if (rc)
			return rc;
	}
	return 0;
}

#define MLA_BACKEND(its_name, its_manager_new)                                                     \
	{                                                                                          \
		.name = its_name, .breaks = true, .check = mla_check, .support = mla_support,      \
		.manager_new = its_manager_new, .manager_free = mla_manager_free,                  \
		.metadata_new = mla_metadata_new, .metadata_free = mla_metadata_free,              \
		.build = mla_build, .run = mla_run,                                                \
	}

const struct attention_backend attention_mla = MLA_BACKEND("mla", mla_manager_new);
const struct attention_backend attention_mla_planned =
	MLA_BACKEND("mla_planned", mla_planned_manager_new);
