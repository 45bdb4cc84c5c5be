/* SPDX-License-Identifier: MIT */
#include "tests/daemon/always.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/paged/paged.h"

struct attention_manager {
	struct gqa_model model;
};

struct attention_metadata {
	struct attention_manager *manager;
	bool built;
	uint32_t padded_rows, padded_tokens;
};

static int always_check(const struct attention_config *config, char *why, size_t size)
{
	int rc = gqa_check(config, why, size);

	if (rc || config->kv_dtype == DTYPE_F32)
		return rc;
	snprintf(why, size, "it runs on the cpu device alone");
	return -ENOTSUP;
}

static enum attention_support always_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = config->max_tokens;
	return ATTENTION_ALWAYS;
}

static int always_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	struct attention_manager *manager;
	struct device_info info;
	int rc = device->ops->info(device, &info);

	if (rc)
		return rc;
	if (strcmp(info.kind, "cpu"))
		return -ENOTSUP;
	manager = calloc(1, sizeof(*manager));
	if (!manager)
		return -ENOMEM;
	rc = gqa_model_init(&manager->model, config, inputs);
	if (rc)
		free(manager);
	else
		*ret = manager;
	return rc;
}

static void always_manager_free(struct attention_manager *manager)
{
	if (!manager)
		return;
	gqa_model_deinit(&manager->model);
	free(manager);
}

static int always_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	struct attention_metadata *metadata = calloc(1, sizeof(*metadata));

	if (!metadata)
		return -ENOMEM;
	metadata->manager = manager;
	*ret = metadata;
	return 0;
}

static void always_metadata_free(struct attention_metadata *metadata)
{
	free(metadata);
}

static int always_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	int rc = gqa_batch_check(&metadata->manager->model, batch);

	(void)stream;
	metadata->built = !rc;
	metadata->padded_rows = batch->padded_rows;
	metadata->padded_tokens = batch->padded_tokens;
	return rc;
}

static int always_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	const struct gqa_model *model = &metadata->manager->model;
	const struct attention_config *c = &model->config;
	int rc = metadata->built ? gqa_args_check(model, args) : -EINVAL;

	if (rc)
		return rc;
	return paged_cpu_kernels.run(NULL, stream, &(struct paged_args){
		.q = args->q,
		.kv = args->kv,
		.out = args->out,
		.query_start = model->inputs.query_start,
		.seq_lens = model->inputs.seq_lens,
		.block_table = model->inputs.block_table,
		.q_stride = args->q_stride,
		.max_pages = c->max_pages,
		.n_rows = metadata->padded_rows,
		.n_tokens = metadata->padded_tokens,
		.window = model->windows[args->layer],
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.scale = c->scale,
		.n_long = c->max_rows,
		.max_long_query = c->max_tokens,
		.max_query = PAGED_MAX_UNIFORM_QUERY,
	});
}

const struct attention_backend attention_always = {
	.name = "always",
	.breaks = true,
	.check = always_check,
	.support = always_support,
	.manager_new = always_manager_new,
	.manager_free = always_manager_free,
	.metadata_new = always_metadata_new,
	.metadata_free = always_metadata_free,
	.build = always_build,
	.run = always_run,
};

void always_register(void)
{
	if (!attention_find(attention_always.name))
		(void)attention_register(&attention_always);
}
