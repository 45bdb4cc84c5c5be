/* SPDX-License-Identifier: MIT */

/*
 * The host side of attention under a block mask. An op, the plan, computes on the device everything that
 * depends on the batch, from the persistent inputs; the host knows only the padded counts, which belong to
 * the graph. Therefore any batch can be captured, and one family of graphs serves mixed batches: support
 * level ALWAYS. Building the metadata queues the plan, and so does every replay.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/flex/flex.h"

struct flex_manager {
	struct attention_manager base;
	const struct flex_kernels *kernels;
	struct flex_state *state;
	struct flex_inputs in;
	void *memory;            /* of the plans */
	struct flex_plan *plans; /* [base.n_plans] */
};

static enum attention_support flex_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = config->max_tokens;
	return ATTENTION_ALWAYS;
}

static int flex_check(const struct attention_config *config, char *why, size_t size)
{
	int rc = attention_check_gqa(config, why, size);

	if (rc)
		return rc;
	if (config->activation_dtype == DTYPE_BF16 && config->head_dim > FLEX_BF16_HEAD_DIM)
		snprintf(why, size, "heads of %u elements in bfloat16 are larger than %u",
			config->head_dim, FLEX_BF16_HEAD_DIM);
	else if ((uint64_t)config->max_pages * config->page_tokens > INT32_MAX)
		snprintf(why, size, "%u pages of %u tokens a sequence are too many",
			config->max_pages, config->page_tokens);
	else
		return 0;
	return -ENOTSUP;
}

/* ---- the manager ---- */

const struct flex_kernels *flex_kernels_for(const char *kind)
{
	return ATTENTION_KERNELS(flex, kind);
}

static void flex_carve(void *userdata, struct arena *arena)
{
	struct flex_manager *manager = userdata;
	size_t n = manager->in.max_blocks, stride = (size_t)manager->in.max_keys + 1;

	for (uint32_t i = 0; i < manager->base.n_plans; i++) {
		struct flex_plan *plan = &manager->plans[i];

		plan->blocks = arena_take(arena, n, sizeof(*plan->blocks));
		plan->counts = arena_take(arena, n, sizeof(*plan->counts));
		plan->indices = arena_take(arena, n, stride * sizeof(*plan->indices));
	}
}

static void flex_manager_free(struct attention_manager *base)
{
	struct flex_manager *manager = (struct flex_manager *)base;

	if (!manager)
		return;
	if (manager->state)
		manager->kernels->state_free(manager->state);
	if (manager->memory)
		base->device->ops->mem_free(base->device, manager->memory);
	free(manager->plans);
	attention_manager_free(base);
}

struct flex_inputs flex_inputs_of(const struct flex_kernels *kernels,
	const struct attention_config *c, const struct step_inputs *inputs)
{
	struct flex_inputs in = {
		.query_start = inputs->query_start,
		.seq_lens = inputs->seq_lens,
		.row_slot = inputs->row_slot,
		.slot_mask = inputs->slot_mask,
		.mask_words = inputs->mask_words,
		.max_slots = inputs->max_slots,
		.capacity = c->max_pages * c->page_tokens,
	};

	kernels->geometry(c, &in.n_queries, &in.n_keys);
	assert(in.n_queries > 0 && in.n_keys > 0 && in.capacity > 0);
	in.max_blocks = (uint32_t)flex_blocks(in.n_queries, c->max_rows, c->max_tokens);
	in.max_keys = (in.capacity - 1) / in.n_keys + 1;
	return in;
}

static int flex_manager_fill(struct attention_manager *base)
{
	struct flex_manager *manager = (struct flex_manager *)base;
	const struct flex_kernels *kernels = flex_kernels_for(base->kind);
	const struct step_inputs *inputs = &base->inputs;
	int rc;

	if (!kernels || base->config.activation_dtype != kernels->dtype)
		return -ENOTSUP;
	if (inputs->slot_mask && (!inputs->mask_words || !inputs->row_slot))
		return -EINVAL;
	if (flex_blocks(1, base->config.max_rows, base->config.max_tokens) > INT32_MAX)
		return -EOVERFLOW;
	manager->kernels = kernels;
	manager->in = flex_inputs_of(kernels, &base->config, inputs);
	manager->plans = calloc(base->n_plans, sizeof(*manager->plans));
	if (!manager->plans)
		return -ENOMEM;
	rc = attention_alloc_zeroed(base->device, flex_carve, manager, &manager->memory);
	if (rc || !kernels->state_new)
		return rc;
	return kernels->state_new(base, &manager->in, &manager->state);
}

static int flex_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return attention_manager_new(&attention_flex, sizeof(struct flex_manager), device, config,
		inputs, flex_manager_fill, ret);
}

/* ---- a step ---- */

static int flex_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	return attention_metadata_new(manager, sizeof(struct attention_metadata), ret);
}

/* The largest number of query blocks of the batch, at most the plan's capacity. */
static uint32_t flex_batch_blocks(
	const struct flex_manager *manager, const struct attention_metadata *metadata)
{
	uint64_t n = flex_blocks(
		manager->in.n_queries, metadata->padded_rows, metadata->padded_tokens);

	assert(n <= manager->in.max_blocks);
	return (uint32_t)n;
}

static int flex_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	const struct flex_manager *manager = (struct flex_manager *)metadata->manager;
	int rc = attention_metadata_begin(metadata, batch, ATTENTION_ALWAYS, 0);

	if (rc)
		return rc;
	flex_batch_blocks(manager, metadata);
	for (uint32_t i = 0; i < manager->base.n_plans; i++) {
		rc = manager->kernels->plan(manager->state, stream, &(struct flex_plan_args){
			.in = manager->in,
			.plan = manager->plans[i],
			.index = i,
			.n_rows = batch->padded_rows,
			.n_tokens = batch->padded_tokens,
			.window = manager->base.plan_windows[i],
		});
		if (rc)
			return rc;
	}
	metadata->built = true;
	return 0;
}

static int flex_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	const struct flex_manager *manager = (struct flex_manager *)metadata->manager;
	const struct attention_config *c = &manager->base.config;
	uint32_t window, index;
	int rc = attention_run_check(metadata, stream, args);

	if (rc)
		return rc;
	window = manager->base.windows[args->layer];
	index = attention_plan_index(&manager->base, window);
	return manager->kernels->run(manager->state, stream, &(struct flex_args){
		.in = manager->in,
		.plan = manager->plans[index],
		.q = args->q,
		.kv = args->kv,
		.fp8 = attention_fp8(c),
		.factors = args->factors,
		.out = args->out,
		.block_table = attention_block_table(&manager->base, args),
		.q_stride = args->q_stride,
		.max_pages = c->max_pages,
		.index = index,
		.n_tokens = metadata->padded_tokens,
		.n_blocks = flex_batch_blocks(manager, metadata),
		.window = window,
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.scale = c->scale,
		.soft_cap = c->soft_cap,
	});
}

const struct attention_backend attention_flex = {
	.name = "flex",
	.breaks = true,
	.masks = true,
	.check = flex_check,
	.support = flex_support,
	.manager_new = flex_manager_new,
	.manager_free = flex_manager_free,
	.metadata_new = flex_metadata_new,
	.metadata_free = attention_metadata_free,
	.build = flex_build,
	.run = flex_run,
};
