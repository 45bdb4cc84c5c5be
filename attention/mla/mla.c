/* SPDX-License-Identifier: MIT */

/*
 * The host side of latent attention, of two backends that differ in how stage 1 finds its work.
 *
 * Rows of more than MLA_MAX_UNIFORM_QUERY query tokens are prompts, and not absorbed where that
 * pays: a build cuts the batch into segments, a run gives each to mla_prompt.h or to the two stages.
 * A uniform batch has no prompts, so graphs hold the two stages alone; prompts run eagerly, or at a
 * break.
 *
 * `mla`: every token has the same number of splits, those past its keys being empty; lengths are read
 * from the persistent inputs by the kernel, and a build keeps the padded counts alone.
 *
 * `mla_planned`: a kernel lists the splits that are not empty, once a step, into a persistent buffer
 * (the pattern of FlashMLA's tile scheduler). The plan is LAZY: it is queued by the first run after a
 * build, and the metadata object remembers that it was. An object that outlives its batch would leave
 * the plan out of a graph, and replays would run on another batch's; hence the rule that objects are
 * made anew for warm-up and for capture, and that every build forgets.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/mla/mla.h"
#include "attention/mla/mla_segments.h"

struct attention_manager {
	struct gqa_model model;
	struct device *device;
	const struct mla_kernels *kernels;
	bool planned;
	bool loaded; /* both ways have been, by the first eager run */
	void *memory;
	struct mla_workspace work;
	struct mla_prompt *prompt;
};

struct attention_metadata {
	struct attention_manager *manager;
	bool built;
	bool uniform;   /* rows of one query length, no longer than a graph may hold; or empty */
	bool planned;   /* the stages take their work from a plan: of a batch that is all theirs */
	bool plan_done; /* queued, or recorded, since the build */
	uint32_t padded_rows, padded_tokens;
	struct mla_segments segments;
};

/* ---- configuration ---- */

int mla_check(const struct attention_config *c, char *why, size_t size)
{
	const struct attention_latent *l = &c->latent;

	if (!l->rank) {
		snprintf(why, size, "its attention is not latent (MLA)");
		return -ENOTSUP;
	}
	if (!l->nope || !l->rope || !l->v || c->n_kv_heads != 1 ||
		c->head_dim != (uint64_t)l->rank + l->rope ||
		(uint64_t)c->n_heads * ((uint64_t)l->nope + l->rope + l->v) > INT32_MAX) {
		snprintf(why, size, "latent attention of rank %u with heads of %u + %u and %u is none",
			(unsigned int)l->rank, (unsigned int)l->nope, (unsigned int)l->rope,
			(unsigned int)l->v);
		return -ENOTSUP;
	}
	for (uint32_t i = 0; c->windows && i < c->n_layers; i++) {
		if (c->windows[i]) {
			snprintf(why, size, "latent attention has no sliding window");
			return -ENOTSUP;
		}
	}
	return gqa_check_sizes(c, why, size);
}

/* float32 is the cpu device's, bf16 cuda's. */
static int mla_device_check(const struct attention_config *config, char *why, size_t size)
{
	int rc = mla_check(config, why, size);

	if (rc != 0 || config->kv_dtype == DTYPE_F32)
		return rc;
#ifdef MIMEO_HAVE_CUDA
	if (config->head_dim <= MLA_CUDA_WIDTH_MAX)
		return 0;
	snprintf(why, size, "cached rows of %u + %u columns are more than the %u of cuda's kernels",
		(unsigned int)config->latent.rank, (unsigned int)config->latent.rope,
		(unsigned int)MLA_CUDA_WIDTH_MAX);
#else
	snprintf(why, size, "it runs on the cpu device alone, and the kv cache is not float32");
#endif
	return -ENOTSUP;
}

static enum attention_support mla_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	(void)config;
	*ret_max_query = MLA_MAX_UNIFORM_QUERY;
	return ATTENTION_UNIFORM_BATCH;
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
	return a / b + (a % b != 0);
}

/* Splits of each of n tokens: as many as the slots have room for at once, because each costs a partial
 * result. Of more tokens than slots, so many that a last round which leaves slots idle is short beside
 * the others; that round takes half of a full one's time at least, a block alone being twice as fast as
 * one of all, and the partial results a part of all (both as measured on an H200). */
static uint32_t splits_for(uint32_t n, uint32_t n_slots, uint32_t most)
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
		uint32_t parts = ceil_div(config->n_heads, kernels->block_heads), n = n_tokens;

		n = n > sizes.chunk_tokens ? sizes.chunk_tokens : n;
		sizes.n_slots = parts < kernels->n_blocks ? kernels->n_blocks / parts : 1;
		n_splits = n ? splits_for(n, sizes.n_slots, kernels->max_splits) : n_splits;
	}
	sizes.split_keys =
		ceil_div(ceil_div(config->max_seq_len, n_splits), MLA_TILE) * MLA_TILE;
	sizes.n_splits = ceil_div(config->max_seq_len, sizes.split_keys);
	return sizes;
}

/* Splits of all tokens of a chunk, at most, whatever number of them there is. Where n_blocks decides,
 * an only split has no part in it: it is the result. A slot has two: the end of one token's keys and
 * the beginning of another's. */
static uint32_t partials_max(
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

static void plan_carve(const struct attention_config *config, const struct mla_sizes *sizes,
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
	size_t partials = (size_t)partials_max(config, kernels, planned) * config->n_heads;

	*ret = (struct mla_workspace){
		.latent = arena_take(arena, heads, rank * dtype_bytes(config->activation_dtype)),
		.partial = arena_take(arena, partials, rank * sizeof(float)),
		.lse = arena_take(arena, partials, sizeof(float)),
	};
	if (planned)
		plan_carve(config, &sizes, arena, &ret->plan);
}

/* ---- managers ---- */

const struct mla_kernels *mla_kernels_for(const char *kind)
{
#ifdef MIMEO_HAVE_CUDA
	if (strcmp(kind, "cuda") == 0)
		return &mla_cuda_kernels;
#endif
	return strcmp(kind, "cpu") == 0 ? &mla_cpu_kernels : NULL;
}

static void carve(void *userdata, struct arena *arena)
{
	struct attention_manager *manager = userdata;

	mla_workspace_carve(&manager->model.config, manager->kernels, manager->planned, arena,
		&manager->work);
}

static void mla_manager_free(struct attention_manager *manager)
{
	if (!manager)
		return;
	mla_prompt_free(manager->prompt);
	if (manager->memory)
		manager->device->ops->mem_free(manager->device, manager->memory);
	gqa_model_deinit(&manager->model);
	free(manager);
}

static int manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, bool planned, struct attention_manager **ret)
{
	struct attention_manager *manager;
	const struct mla_kernels *kernels;
	struct device_info info;
	int rc;

	rc = device->ops->info(device, &info);
	if (rc != 0)
		return rc;
	kernels = mla_kernels_for(info.kind);
	if (!kernels || !device->kernels->head_gemm || mla_device_check(config, NULL, 0) != 0 ||
		config->kv_dtype != kernels->dtype)
		return -ENOTSUP;
	manager = calloc(1, sizeof(*manager));
	if (!manager)
		return -ENOMEM;
	rc = gqa_model_init(&manager->model, config, inputs);
	if (rc != 0) {
		free(manager);
		return rc;
	}
	manager->device = device;
	manager->kernels = kernels;
	manager->planned = planned;
	rc = arena_alloc(device, carve, manager, &manager->memory, NULL);
	if (rc == 0 && kernels->load)
		rc = kernels->load(device);
	if (rc == 0)
		rc = mla_prompt_new(device, &manager->model.config,
			mla_prompt_kernels_for(info.kind), &manager->prompt);
	if (rc != 0) {
		mla_manager_free(manager);
		return rc;
	}
	*ret = manager;
	return 0;
}

static int mla_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return manager_new(device, config, inputs, false, ret);
}

static int mla_planned_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return manager_new(device, config, inputs, true, ret);
}

/* ---- metadata ---- */

static int mla_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	struct attention_metadata *metadata = calloc(1, sizeof(*metadata));

	if (!metadata)
		return -ENOMEM;
	if (mla_segments_init(&metadata->segments, mla_prompt_kernels_of(manager->prompt),
		    manager->model.config.max_rows) != 0) {
		free(metadata);
		return -ENOMEM;
	}
	metadata->manager = manager;
	*ret = metadata;
	return 0;
}

static void mla_metadata_free(struct attention_metadata *metadata)
{
	if (!metadata)
		return;
	mla_segments_deinit(&metadata->segments);
	free(metadata);
}

static int mla_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	int rc;

	(void)stream;
	metadata->built = false;
	rc = gqa_batch_check(&metadata->manager->model, batch);
	if (rc != 0)
		return rc;
	metadata->uniform = gqa_batch_uniform(batch, MLA_MAX_UNIFORM_QUERY);
	metadata->plan_done = false;
	metadata->padded_rows = batch->padded_rows;
	metadata->padded_tokens = batch->padded_tokens;
	mla_segments_cut(&metadata->segments, batch);
	metadata->planned = metadata->manager->planned && metadata->segments.n_prompts == 0;
	metadata->built = true;
	return 0;
}

/* ---- a layer ---- */

int mla_args_check(const struct attention_config *c, const struct attention_args *args)
{
	const struct attention_latent *l = &c->latent;

	if (args->layer >= c->n_layers || !args->q || !args->kv || !args->out || !args->kv_b)
		return -EINVAL;
	if (args->q_stride < c->n_heads * (l->nope + l->rope))
		return -EINVAL;
	return args->kv_b->rows == c->n_heads * (l->nope + l->v) && args->kv_b->cols == l->rank ?
		0 : -EINVAL;
}

/* The chunk's queries into the latent space: q_h W_UK_h. */
static int absorb(const struct kernel_ops *ops, struct stream *stream, const struct mla_args *a,
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
static int expand(const struct kernel_ops *ops, struct stream *stream, const struct mla_args *a,
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

static struct mla_args args_of(
	const struct attention_metadata *metadata, const struct attention_args *args)
{
	const struct attention_manager *manager = metadata->manager;
	const struct attention_config *c = &manager->model.config;
	const struct step_inputs *inputs = &manager->model.inputs;

	return (struct mla_args){
		.q = args->q,
		.kv = args->kv,
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

/* Tokens that are absorbed. */
struct absorbed {
	uint32_t first, end;
	bool planned;
};

/* The first of them, as many as the workspace holds. */
static int run_chunk(const struct attention_manager *manager, struct stream *stream,
	const struct mla_args *all, const struct attention_args *args, struct absorbed tokens)
{
	const struct attention_config *c = &manager->model.config;
	const struct kernel_ops *ops = manager->device->kernels;
	size_t act = dtype_bytes(c->activation_dtype);
	struct mla_args a = *all;
	int rc;

	a.first_token = tokens.first;
	a.n_tokens = tokens.end - tokens.first;
	if (a.n_tokens > a.sizes.chunk_tokens)
		a.n_tokens = a.sizes.chunk_tokens;
	a.sizes = mla_sizes(c, manager->kernels, a.n_tokens);
	a.q = (const uint8_t *)all->q + (size_t)tokens.first * all->q_stride * act;
	rc = absorb(ops, stream, &a, &c->latent, args->kv_b);
	if (rc == 0)
		rc = manager->kernels->split(stream, &a, tokens.planned);
	if (rc == 0)
		rc = manager->kernels->merge(stream, &a, tokens.planned);
	return rc != 0 ? rc : expand(ops, stream, &a, &c->latent, args->kv_b,
		(uint8_t *)args->out + (size_t)tokens.first * c->n_heads * c->latent.v * act);
}

static int plan(
	struct attention_metadata *metadata, struct stream *stream, const struct mla_args *all)
{
	int rc;

	if (!metadata->planned || metadata->plan_done)
		return 0;
	rc = metadata->manager->kernels->plan(stream, all);
	metadata->plan_done = rc == 0;
	return rc;
}

/* The first eager run, whatever its batch, loads what any later one may need. */
static int load(struct attention_metadata *metadata, struct stream *stream,
	const struct mla_args *all, const struct attention_args *args)
{
	struct attention_manager *manager = metadata->manager;
	struct mla_args none = *all;
	int rc = 0;

	if (manager->loaded || manager->device->ops->capturing(stream))
		return 0;
	none.n_tokens = 0;
	if (manager->planned)
		rc = manager->kernels->plan(stream, &none);
	if (rc == 0 && manager->planned)
		rc = run_chunk(manager, stream, &none, args, (struct absorbed){ .planned = true });
	if (rc == 0)
		rc = run_chunk(manager, stream, &none, args, (struct absorbed){ 0 });
	if (rc == 0)
		rc = mla_prompt_load(manager->prompt, stream, args->kv_b);
	manager->loaded = rc == 0;
	return rc;
}

static int run_segment(struct attention_metadata *metadata, struct stream *stream,
	const struct mla_args *all, const struct attention_args *args,
	const struct mla_segment *segment)
{
	struct attention_manager *manager = metadata->manager;
	struct absorbed tokens = { segment->first, segment->end, metadata->planned };
	int rc;

	if (segment->n_prompts)
		return mla_prompt_run(manager->prompt, stream, args, all->block_table,
			metadata->segments.prompts + segment->first_prompt, segment->n_prompts);
	do {
		rc = run_chunk(manager, stream, all, args, tokens);
		tokens.first += all->sizes.chunk_tokens;
	} while (rc == 0 && tokens.first < tokens.end);
	return rc;
}

static int mla_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	struct attention_manager *manager = metadata->manager;
	struct mla_args all;
	int rc;

	if (!metadata->built)
		return -EINVAL;
	/* a graph of any other batch is more than the level promises */
	if (!metadata->uniform && manager->device->ops->capturing(stream))
		return -ENOTSUP;
	rc = mla_args_check(&manager->model.config, args);
	if (rc != 0)
		return rc;
	all = args_of(metadata, args);
	rc = load(metadata, stream, &all, args);
	if (rc == 0)
		rc = plan(metadata, stream, &all);
	for (uint32_t i = 0; rc == 0 && i < metadata->segments.n; i++)
		rc = run_segment(metadata, stream, &all, args, &metadata->segments.segments[i]);
	return rc;
}

const struct attention_backend attention_mla = {
	.name = "mla",
	.breaks = true,
	.check = mla_device_check,
	.support = mla_support,
	.manager_new = mla_manager_new,
	.manager_free = mla_manager_free,
	.metadata_new = mla_metadata_new,
	.metadata_free = mla_metadata_free,
	.build = mla_build,
	.run = mla_run,
};

const struct attention_backend attention_mla_planned = {
	.name = "mla_planned",
	.breaks = true,
	.check = mla_device_check,
	.support = mla_support,
	.manager_new = mla_planned_manager_new,
	.manager_free = mla_manager_free,
	.metadata_new = mla_metadata_new,
	.metadata_free = mla_metadata_free,
	.build = mla_build,
	.run = mla_run,
};
