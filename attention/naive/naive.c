/* SPDX-License-Identifier: MIT */

/*
 * The reference: the host knows each row's lengths and queues one op for each row of each layer,
 * with the lengths as scalars. A graph would replay the lengths of its capture for ever, hence the
 * level NEVER, and a run on a capturing stream is refused.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/gqa.h"
#include "attention/mla/mla.h"
#include "attention/naive/naive.h"

struct attention_manager {
	struct gqa_model model;
	struct device *device;
	const struct naive_kernels *kernels;
};

struct attention_metadata {
	struct attention_manager *manager;
	bool built;
	uint32_t n_rows, padded_tokens;
	uint32_t *query_lens, *seq_lens; /* [max_rows] */
};

static enum attention_support naive_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	(void)config;
	*ret_max_query = 0;
	return ATTENTION_NEVER;
}

/* float32 is the cpu device's; no other has kernels for this backend. */
static int naive_check(const struct attention_config *config, char *why, size_t size)
{
	int rc = config->latent.rank ? mla_check(config, why, size) : gqa_check(config, why, size);

	if (rc != 0 || config->kv_dtype == DTYPE_F32)
		return rc;
	snprintf(why, size, "it runs on the cpu device alone, and the kv cache is not float32");
	return -ENOTSUP;
}

static int naive_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	struct attention_manager *manager;
	struct device_info info;
	int rc;

	rc = device->ops->info(device, &info);
	if (rc != 0)
		return rc;
	if (strcmp(info.kind, "cpu") != 0 || naive_check(config, NULL, 0) != 0)
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
	manager->kernels = &naive_cpu_kernels;
	*ret = manager;
	return 0;
}

static void naive_manager_free(struct attention_manager *manager)
{
	if (!manager)
		return;
	gqa_model_deinit(&manager->model);
	free(manager);
}

static void naive_metadata_free(struct attention_metadata *metadata)
{
	if (!metadata)
		return;
	free(metadata->seq_lens);
	free(metadata->query_lens);
	free(metadata);
}

static int naive_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	struct attention_metadata *metadata = calloc(1, sizeof(*metadata));
	uint32_t max_rows = manager->model.config.max_rows;

	if (!metadata)
		return -ENOMEM;
	metadata->manager = manager;
	metadata->query_lens = calloc(max_rows, sizeof(*metadata->query_lens));
	metadata->seq_lens = calloc(max_rows, sizeof(*metadata->seq_lens));
	if (!metadata->query_lens || !metadata->seq_lens) {
		naive_metadata_free(metadata);
		return -ENOMEM;
	}
	*ret = metadata;
	return 0;
}

static int naive_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	int rc;

	(void)stream;
	metadata->built = false;
	rc = gqa_batch_check(&metadata->manager->model, batch);
	if (rc != 0)
		return rc;
	for (uint32_t r = 0; r < batch->n_rows; r++) {
		metadata->query_lens[r] = batch->query_lens[r];
		metadata->seq_lens[r] = batch->seq_lens[r];
	}
	metadata->n_rows = batch->n_rows;
	metadata->padded_tokens = batch->padded_tokens;
	metadata->built = true;
	return 0;
}

/* A row as the host knows it; its tokens begin with `first`. */
struct row {
	uint32_t index, first, n_query, seq_len;
};

static int gqa_row(const struct attention_manager *manager, struct stream *stream,
	const struct attention_args *args, const struct row *row)
{
	const struct attention_config *c = &manager->model.config;

	return manager->kernels->run(stream, &(struct naive_args){
		.q = (const float *)args->q + (size_t)row->first * args->q_stride,
		.kv = args->kv,
		.out = (float *)args->out + (size_t)row->first * c->n_heads * c->head_dim,
		.block_table = manager->model.inputs.block_table + (size_t)row->index * c->max_pages,
		.q_stride = args->q_stride,
		.n_query = row->n_query,
		.seq_len = row->seq_len,
		.window = manager->model.windows[args->layer],
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.max_seq_len = c->max_seq_len,
		.scale = c->scale,
	});
}

static int mla_row(const struct attention_manager *manager, struct stream *stream,
	const struct attention_args *args, const struct row *row)
{
	const struct attention_config *c = &manager->model.config;

	return manager->kernels->run_mla(stream, &(struct naive_mla_args){
		.q = (const float *)args->q + (size_t)row->first * args->q_stride,
		.kv = args->kv,
		.out = (float *)args->out + (size_t)row->first * c->n_heads * c->latent.v,
		.block_table = manager->model.inputs.block_table + (size_t)row->index * c->max_pages,
		.kv_b = *args->kv_b,
		.latent = c->latent,
		.q_stride = args->q_stride,
		.n_query = row->n_query,
		.seq_len = row->seq_len,
		.n_heads = c->n_heads,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.max_seq_len = c->max_seq_len,
		.scale = c->scale,
	});
}

static int queue_row(const struct attention_manager *manager, struct stream *stream,
	const struct attention_args *args, const struct row *row)
{
	return manager->model.config.latent.rank ? mla_row(manager, stream, args, row)
						 : gqa_row(manager, stream, args, row);
}

static int args_check(const struct attention_manager *manager, const struct attention_args *args)
{
	const struct attention_config *c = &manager->model.config;

	return c->latent.rank ? mla_args_check(c, args) : gqa_args_check(&manager->model, args);
}

static int naive_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	struct attention_manager *manager = metadata->manager;
	struct row row = { 0 };
	int rc;

	if (!metadata->built)
		return -EINVAL;
	if (manager->device->ops->capturing(stream))
		return -ENOTSUP;
	rc = args_check(manager, args);
	if (rc != 0)
		return rc;
	for (uint32_t r = 0; r < metadata->n_rows; r++) {
		row.index = r;
		row.n_query = metadata->query_lens[r];
		row.seq_len = metadata->seq_lens[r];
		rc = queue_row(manager, stream, args, &row);
		if (rc != 0)
			return rc;
		row.first += row.n_query;
	}
	/* the padding is an empty row; queued even if it has no token, so that the op is loaded by
	 * a warm-up of any batch */
	row = (struct row){ .first = row.first, .n_query = metadata->padded_tokens - row.first };
	return queue_row(manager, stream, args, &row);
}

const struct attention_backend attention_naive = {
	.name = "naive",
	.breaks = true,
	.check = naive_check,
	.support = naive_support,
	.manager_new = naive_manager_new,
	.manager_free = naive_manager_free,
	.metadata_new = naive_metadata_new,
	.metadata_free = naive_metadata_free,
	.build = naive_build,
	.run = naive_run,
};
