/* SPDX-License-Identifier: MIT */

/*
 * The reference: the host knows each row's lengths and queues one op for each row of each layer,
 * with the lengths as scalars. A graph would replay the lengths of its capture for ever, hence the
 * level NEVER: a run on a capturing stream is refused.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/manager.h"
#include "attention/naive/naive.h"

struct naive_metadata {
	struct attention_metadata base;
	uint32_t n_rows;
	uint32_t *query_lens, *seq_lens; /* [max_rows] */
};

static enum attention_support naive_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = 0;
	return ATTENTION_NEVER;
}

/* Only the cpu device has kernels for this backend, and its activations are float32. */
static int naive_check(const struct attention_config *config, char *why, size_t size)
{
	int rc = config->latent.rank ? attention_check_latent(config, why, size)
				     : attention_check_gqa(config, why, size);

	if (rc || config->activation_dtype == DTYPE_F32)
		return rc;
	snprintf(why, size, "it runs on the cpu device alone, and activations are not float32");
	return -ENOTSUP;
}

static int naive_manager_fill(struct attention_manager *manager)
{
	return strcmp(manager->kind, "cpu") ? -ENOTSUP : 0;
}

static int naive_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return attention_manager_new(&attention_naive, sizeof(struct attention_manager), device,
		config, inputs, naive_manager_fill, ret);
}

static void naive_metadata_free(struct attention_metadata *base)
{
	struct naive_metadata *metadata = (struct naive_metadata *)base;

	if (!metadata)
		return;
	free(metadata->seq_lens);
	free(metadata->query_lens);
	free(metadata);
}

static int naive_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	uint32_t max_rows = manager->config.max_rows;
	struct attention_metadata *base;
	struct naive_metadata *metadata;
	int rc = attention_metadata_new(manager, sizeof(*metadata), &base);

	if (rc)
		return rc;
	metadata = (struct naive_metadata *)base;
	metadata->query_lens = calloc(max_rows, sizeof(*metadata->query_lens));
	metadata->seq_lens = calloc(max_rows, sizeof(*metadata->seq_lens));
	if (!metadata->query_lens || !metadata->seq_lens) {
		naive_metadata_free(base);
		return -ENOMEM;
	}
	*ret = base;
	return 0;
}

static int naive_build(struct attention_metadata *base, const struct attention_batch *batch,
	struct stream *stream)
{
	struct naive_metadata *metadata = (struct naive_metadata *)base;
	int rc = attention_metadata_begin(base, batch, ATTENTION_NEVER, 0);

	if (rc)
		return rc;
	for (uint32_t r = 0; r < batch->n_rows; r++) {
		metadata->query_lens[r] = batch->query_lens[r];
		metadata->seq_lens[r] = batch->seq_lens[r];
	}
	metadata->n_rows = batch->n_rows;
	base->built = true;
	return 0;
}

/* n_query tokens from `first` on, of row `index`. */
static int naive_queue_row(const struct attention_manager *manager, struct stream *stream,
	const struct attention_args *args, uint32_t index, uint32_t first, uint32_t n_query,
	uint32_t seq_len)
{
	const struct attention_config *c = &manager->config;
	size_t width = (size_t)c->n_heads * (c->latent.rank ? c->latent.v : c->head_dim);

	return naive_cpu_run(stream, &(struct naive_args){
		.q = (const float *)args->q + (size_t)first * args->q_stride,
		.kv = args->kv,
		.fp8 = attention_fp8(c),
		.factors = args->factors,
		.out = (float *)args->out + first * width,
		.block_table = attention_block_table(manager, args) + (size_t)index * c->max_pages,
		.latent = c->latent,
		.kv_b = c->latent.rank ? *args->kv_b : (struct weight){ 0 },
		.q_stride = args->q_stride,
		.n_query = n_query,
		.seq_len = seq_len,
		.window = manager->windows[args->layer],
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.max_seq_len = c->max_seq_len,
		.scale = c->scale,
		.soft_cap = c->soft_cap,
	});
}

static int naive_run(struct attention_metadata *base, struct stream *stream,
	const struct attention_args *args)
{
	const struct naive_metadata *metadata = (struct naive_metadata *)base;
	uint32_t first = 0;
	int rc = attention_run_check(base, stream, args);

	if (rc)
		return rc;
	for (uint32_t r = 0; r < metadata->n_rows; r++) {
		rc = naive_queue_row(base->manager, stream, args, r, first,
			metadata->query_lens[r], metadata->seq_lens[r]);
		if (rc)
			return rc;
		first += metadata->query_lens[r];
	}
	assert(first <= base->padded_tokens);
	/* The padding is an empty row. It is queued even without a token, so that a warm-up of any
	 * batch loads the op. */
	return naive_queue_row(
		base->manager, stream, args, 0, first, base->padded_tokens - first, 0);
}

const struct attention_backend attention_naive = {
	.name = "naive",
	.breaks = true,
	.check = naive_check,
	.support = naive_support,
	.manager_new = naive_manager_new,
	.manager_free = attention_manager_free,
	.metadata_new = naive_metadata_new,
	.metadata_free = naive_metadata_free,
	.build = naive_build,
	.run = naive_run,
};
