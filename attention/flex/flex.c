/* SPDX-License-Identifier: MIT */

/*
 * The host side of attention under a block mask. All that depends on the batch is worked out by the
 * plan's op, on the device, from the persistent inputs; the host keeps the padded counts, which
 * belong to the graph. So any batch may be captured, and one family of graphs serves mixed batches:
 * level ALWAYS. A build queues the plan, and one is queued ahead of every replay.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/flex/flex.h"
#include "kernels/arena.h"

struct attention_manager {
	struct gqa_model model;
	struct device *device;
	const struct flex_kernels *kernels;
	struct flex_state *state; /* the kernels' own */
	struct flex_inputs in;
	void *memory;
	uint32_t *windows; /* [n_plans] of the layers, each once */
	struct flex_plan *plans; /* [n_plans] */
	uint32_t n_plans;
};

struct attention_metadata {
	struct attention_manager *manager;
	bool built;
	uint32_t padded_rows, padded_tokens;
};

static enum attention_support flex_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = config->max_tokens;
	return ATTENTION_ALWAYS;
}

static int flex_check(const struct attention_config *config, char *why, size_t size)
{
	int rc = gqa_check(config, why, size);

	if (rc != 0)
		return rc;
	if (config->kv_dtype == DTYPE_BF16 && config->head_dim > FLEX_BF16_HEAD_DIM)
		snprintf(why, size, "heads of %u elements in bfloat16 are larger than %u",
			(unsigned int)config->head_dim, FLEX_BF16_HEAD_DIM);
	else if ((uint64_t)config->max_pages * config->page_tokens > INT32_MAX)
		snprintf(why, size, "%u pages of %u tokens a sequence are too many",
			(unsigned int)config->max_pages, (unsigned int)config->page_tokens);
	else
		return 0;
	return -ENOTSUP;
}

/* ---- the manager ---- */

const struct flex_kernels *flex_kernels_for(const char *kind)
{
#ifdef MIMEO_HAVE_CUDA
	if (strcmp(kind, "cuda") == 0)
		return &flex_cuda_kernels;
#endif
	return strcmp(kind, "cpu") == 0 ? &flex_cpu_kernels : NULL;
}

static uint32_t plan_index(const struct attention_manager *manager, uint32_t window)
{
	uint32_t i = 0;

	while (i < manager->n_plans && manager->windows[i] != window)
		i++;
	return i;
}

static int plans_find(struct attention_manager *manager)
{
	const struct gqa_model *model = &manager->model;
	uint32_t n_layers = model->config.n_layers;

	manager->windows = calloc(n_layers, sizeof(*manager->windows));
	manager->plans = calloc(n_layers, sizeof(*manager->plans));
	if (!manager->windows || !manager->plans)
		return -ENOMEM;
	for (uint32_t layer = 0; layer < n_layers; layer++)
		if (plan_index(manager, model->windows[layer]) == manager->n_plans)
			manager->windows[manager->n_plans++] = model->windows[layer];
	return 0;
}

static void carve(void *userdata, struct arena *arena)
{
	struct attention_manager *manager = userdata;
	size_t n = manager->in.max_blocks, stride = (size_t)manager->in.max_keys + 1;

	for (uint32_t i = 0; i < manager->n_plans; i++) {
		struct flex_plan *plan = &manager->plans[i];

		plan->blocks = arena_take(arena, n, sizeof(*plan->blocks));
		plan->counts = arena_take(arena, n, sizeof(*plan->counts));
		plan->indices = arena_take(arena, n, stride * sizeof(*plan->indices));
	}
}

/* Empty blocks: a run without a build finds no work rather than garbage. */
static int plans_empty(struct attention_manager *manager, size_t bytes)
{
	const struct device_ops *ops = manager->device->ops;
	struct stream *stream;
	int rc = ops->stream_new(manager->device, &stream);

	if (rc != 0)
		return rc;
	rc = ops->fill_async(stream, manager->memory, 0, bytes);
	if (rc == 0)
		rc = ops->stream_sync(stream);
	ops->stream_free(stream);
	return rc;
}

static int plans_new(struct attention_manager *manager)
{
	size_t bytes;
	int rc = arena_alloc(manager->device, carve, manager, &manager->memory, &bytes);

	return rc != 0 ? rc : plans_empty(manager, bytes);
}

static void flex_manager_free(struct attention_manager *manager)
{
	if (!manager)
		return;
	if (manager->kernels->state_free)
		manager->kernels->state_free(manager->state);
	if (manager->memory)
		manager->device->ops->mem_free(manager->device, manager->memory);
	free(manager->plans);
	free(manager->windows);
	gqa_model_deinit(&manager->model);
	free(manager);
}

struct flex_inputs flex_inputs_of(const struct flex_kernels *kernels,
	const struct attention_config *c, const struct step_inputs *inputs)
{
	uint32_t capacity = c->max_pages * c->page_tokens;
	struct flex_inputs in = {
		.query_start = inputs->query_start,
		.seq_lens = inputs->seq_lens,
		.row_slot = inputs->row_slot,
		.slot_mask = inputs->slot_mask,
		.mask_words = inputs->mask_words,
		.max_slots = inputs->max_slots,
		.capacity = capacity,
	};

	kernels->geometry(c, &in.n_queries, &in.n_keys);
	in.max_blocks = (uint32_t)flex_blocks(in.n_queries, c->max_rows, c->max_tokens);
	in.max_keys = (capacity - 1) / in.n_keys + 1;
	return in;
}

static int flex_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	const struct flex_kernels *kernels;
	struct attention_manager *manager;
	struct device_info info;
	int rc;

	rc = device->ops->info(device, &info);
	if (rc != 0)
		return rc;
	kernels = flex_kernels_for(info.kind);
	if (!kernels || flex_check(config, NULL, 0) != 0 || config->kv_dtype != kernels->dtype)
		return -ENOTSUP;
	if (inputs->slot_mask && (!inputs->mask_words || !inputs->row_slot))
		return -EINVAL;
	if (flex_blocks(1, config->max_rows, config->max_tokens) > INT32_MAX)
		return -EOVERFLOW;
	manager = calloc(1, sizeof(*manager));
	if (!manager)
		return -ENOMEM;
	manager->device = device;
	manager->kernels = kernels;
	manager->in = flex_inputs_of(kernels, config, inputs);
	rc = gqa_model_init(&manager->model, config, inputs);
	if (rc == 0)
		rc = plans_find(manager);
	if (rc == 0)
		rc = plans_new(manager);
	if (rc == 0 && kernels->state_new)
		rc = kernels->state_new(
			device, &manager->model, &manager->in, manager->n_plans, &manager->state);
	if (rc != 0) {
		flex_manager_free(manager);
		return rc;
	}
	*ret = manager;
	return 0;
}

/* ---- a step ---- */

static int flex_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	struct attention_metadata *metadata = calloc(1, sizeof(*metadata));

	if (!metadata)
		return -ENOMEM;
	metadata->manager = manager;
	*ret = metadata;
	return 0;
}

static void flex_metadata_free(struct attention_metadata *metadata)
{
	free(metadata);
}

static int flex_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	const struct attention_manager *manager = metadata->manager;
	int rc;

	metadata->built = false;
	rc = gqa_batch_check(&manager->model, batch);
	for (uint32_t i = 0; rc == 0 && i < manager->n_plans; i++)
		rc = manager->kernels->plan(manager->state, stream, &(struct flex_plan_args){
			.in = manager->in,
			.plan = manager->plans[i],
			.index = i,
			.n_rows = batch->padded_rows,
			.n_tokens = batch->padded_tokens,
			.window = manager->windows[i],
		});
	if (rc != 0)
		return rc;
	metadata->padded_rows = batch->padded_rows;
	metadata->padded_tokens = batch->padded_tokens;
	metadata->built = true;
	return 0;
}

static int flex_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	const struct attention_manager *manager = metadata->manager;
	const struct attention_config *c = &manager->model.config;
	uint32_t window, index;
	int rc;

	if (!metadata->built)
		return -EINVAL;
	rc = gqa_args_check(&manager->model, args);
	if (rc != 0)
		return rc;
	window = manager->model.windows[args->layer];
	index = plan_index(manager, window);
	return manager->kernels->run(manager->state, stream, &(struct flex_args){
		.in = manager->in,
		.plan = manager->plans[index],
		.index = index,
		.q = args->q,
		.kv = args->kv,
		.out = args->out,
		.block_table = manager->model.inputs.block_table,
		.q_stride = args->q_stride,
		.max_pages = c->max_pages,
		.n_tokens = metadata->padded_tokens,
		.n_blocks = (uint32_t)flex_blocks(manager->in.n_queries, metadata->padded_rows,
			metadata->padded_tokens),
		.window = window,
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.scale = c->scale,
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
	.metadata_free = flex_metadata_free,
	.build = flex_build,
	.run = flex_run,
};
