/* SPDX-License-Identifier: MIT */

/*
 * The host side of paged attention. There is little of it, and that is the point: the kernel finds
 * a batch's lengths and pages in the persistent inputs when it runs, so a build keeps nothing but
 * the padded counts, which belong to the graph. What a device wants to work out once a step, from
 * the same inputs, for all layers, it queues in the build; there, a replay needs the step's build
 * before it.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/gqa.h"
#include "attention/paged/paged.h"

struct attention_manager {
	struct gqa_model model;
	struct device *device;
	const struct paged_kernels *kernels;
	struct paged_state *state; /* the kernels' own */
};

struct attention_metadata {
	struct attention_manager *manager;
	bool built;
	bool uniform; /* rows of one query length, no longer than a graph may hold; or empty */
	uint32_t padded_rows, padded_tokens;
	uint32_t n_long, max_long_query, max_query; /* as in struct paged_args */
};

static enum attention_support paged_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	(void)config;
	*ret_max_query = PAGED_MAX_UNIFORM_QUERY;
	return ATTENTION_UNIFORM_BATCH;
}

static const struct paged_kernels *kernels_for(const char *kind)
{
#ifdef MIMEO_HAVE_CUDA
	if (strcmp(kind, "cuda") == 0)
		return &paged_cuda_kernels;
#endif
	return strcmp(kind, "cpu") == 0 ? &paged_cpu_kernels : NULL;
}

static int paged_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	struct attention_manager *manager;
	const struct paged_kernels *kernels;
	struct device_info info;
	int rc;

	rc = device->ops->info(device, &info);
	if (rc != 0)
		return rc;
	kernels = kernels_for(info.kind);
	if (!kernels || gqa_check(config, NULL, 0) != 0 || config->kv_dtype != kernels->dtype)
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
	if (kernels->state_new)
		rc = kernels->state_new(device, &manager->model, &manager->state);
	if (rc != 0) {
		gqa_model_deinit(&manager->model);
		free(manager);
		return rc;
	}
	*ret = manager;
	return 0;
}

static void paged_manager_free(struct attention_manager *manager)
{
	if (!manager)
		return;
	if (manager->kernels->state_free)
		manager->kernels->state_free(manager->state);
	gqa_model_deinit(&manager->model);
	free(manager);
}

static int paged_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	struct attention_metadata *metadata = calloc(1, sizeof(*metadata));

	if (!metadata)
		return -ENOMEM;
	metadata->manager = manager;
	*ret = metadata;
	return 0;
}

static void paged_metadata_free(struct attention_metadata *metadata)
{
	free(metadata);
}

static uint32_t longer(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static void count_queries(struct attention_metadata *metadata, const struct attention_batch *batch)
{
	metadata->n_long = metadata->max_long_query = metadata->max_query = 0;
	for (uint32_t r = 0; r < batch->n_rows; r++) {
		uint32_t n = batch->query_lens[r];

		if (n > PAGED_MAX_UNIFORM_QUERY) {
			metadata->n_long++;
			metadata->max_long_query = longer(metadata->max_long_query, n);
		} else {
			metadata->max_query = longer(metadata->max_query, n);
		}
	}
}

static int paged_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	struct attention_manager *manager = metadata->manager;
	int rc;

	metadata->built = false;
	rc = gqa_batch_check(&manager->model, batch);
	if (rc == 0 && manager->kernels->plan)
		rc = manager->kernels->plan(
			manager->state, stream, batch->padded_rows, batch->padded_tokens);
	if (rc != 0)
		return rc;
	count_queries(metadata, batch);
	metadata->uniform = gqa_batch_uniform(batch, PAGED_MAX_UNIFORM_QUERY);
	metadata->padded_rows = batch->padded_rows;
	metadata->padded_tokens = batch->padded_tokens;
	metadata->built = true;
	return 0;
}

static int paged_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	struct attention_manager *manager = metadata->manager;
	const struct attention_config *c = &manager->model.config;
	const struct step_inputs *inputs = &manager->model.inputs;
	int rc;

	if (!metadata->built)
		return -EINVAL;
	/* a graph of any other batch is more than the level promises */
	if (!metadata->uniform && manager->device->ops->capturing(stream))
		return -ENOTSUP;
	rc = gqa_args_check(&manager->model, args);
	if (rc != 0)
		return rc;
	return manager->kernels->run(manager->state, stream, &(struct paged_args){
		.q = args->q,
		.kv = args->kv,
		.out = args->out,
		.query_start = inputs->query_start,
		.seq_lens = inputs->seq_lens,
		.block_table = inputs->block_table,
		.q_stride = args->q_stride,
		.max_pages = c->max_pages,
		.n_rows = metadata->padded_rows,
		.n_tokens = metadata->padded_tokens,
		.window = manager->model.windows[args->layer],
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.scale = c->scale,
		.n_long = metadata->n_long,
		.max_long_query = metadata->max_long_query,
		.max_query = metadata->max_query,
	});
}

const struct attention_backend attention_paged = {
	.name = "paged",
	.breaks = true,
	.check = gqa_check,
	.support = paged_support,
	.manager_new = paged_manager_new,
	.manager_free = paged_manager_free,
	.metadata_new = paged_metadata_new,
	.metadata_free = paged_metadata_free,
	.build = paged_build,
	.run = paged_run,
};
