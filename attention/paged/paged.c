/* SPDX-License-Identifier: MIT */

/*
 * The host side of paged attention. Kernels read a batch's lengths and pages from the persistent
 * inputs when they run, so a build keeps only the padded counts, which belong to the graph. What a
 * device computes once a step for all layers is queued by the build; such a device needs the step's
 * build before each replay.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/paged/paged.h"

struct paged_manager {
	struct attention_manager base;
	const struct paged_kernels *kernels;
	struct paged_state *state;
};

struct paged_metadata {
	struct attention_metadata base;
	uint32_t n_long, max_long_query, max_query; /* as in struct paged_args */
};

static enum attention_support paged_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = PAGED_MAX_UNIFORM_QUERY;
	return ATTENTION_UNIFORM_BATCH;
}

static void paged_manager_free(struct attention_manager *base)
{
	struct paged_manager *manager = (struct paged_manager *)base;

	if (!manager)
		return;
	if (manager->state)
		manager->kernels->state_free(manager->state);
	attention_manager_free(base);
}

static int paged_manager_fill(struct attention_manager *base)
{
	struct paged_manager *manager = (struct paged_manager *)base;
	const struct paged_kernels *kernels = ATTENTION_KERNELS(paged, base->kind);

	if (!kernels || base->config.activation_dtype != kernels->dtype)
		return -ENOTSUP;
	manager->kernels = kernels;
	return kernels->state_new ? kernels->state_new(base, &manager->state) : 0;
}

static int paged_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return attention_manager_new(&attention_paged, sizeof(struct paged_manager), device, config,
		inputs, paged_manager_fill, ret);
}

static int paged_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	return attention_metadata_new(manager, sizeof(struct paged_metadata), ret);
}

static uint32_t paged_longer(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static void paged_count_queries(struct paged_metadata *m, const struct attention_batch *batch)
{
	m->n_long = m->max_long_query = m->max_query = 0;
	for (uint32_t r = 0; r < batch->n_rows; r++) {
		uint32_t n = batch->query_lens[r];

		if (n > PAGED_MAX_UNIFORM_QUERY) {
			m->n_long++;
			m->max_long_query = paged_longer(m->max_long_query, n);
		} else {
			m->max_query = paged_longer(m->max_query, n);
		}
	}
}

static int paged_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	const struct paged_manager *manager = (struct paged_manager *)metadata->manager;
	int rc = attention_metadata_begin(
		metadata, batch, ATTENTION_UNIFORM_BATCH, PAGED_MAX_UNIFORM_QUERY);

	if (rc)
		return rc;
	if (manager->kernels->plan) {
		rc = manager->kernels->plan(
			manager->state, stream, batch->padded_rows, batch->padded_tokens);
		if (rc)
			return rc;
	}
	paged_count_queries((struct paged_metadata *)metadata, batch);
	metadata->built = true;
	return 0;
}

static int paged_run(struct attention_metadata *base, struct stream *stream,
	const struct attention_args *args)
{
	const struct paged_metadata *metadata = (struct paged_metadata *)base;
	const struct paged_manager *manager = (struct paged_manager *)base->manager;
	const struct attention_config *c = &base->manager->config;
	const struct step_inputs *inputs = &base->manager->inputs;
	int rc = attention_run_check(base, stream, args);

	if (rc)
		return rc;
	return manager->kernels->run(manager->state, stream, &(struct paged_args){
		.q = args->q,
		.kv = args->kv,
		.fp8 = attention_fp8(c),
		.factors = args->factors,
		.out = args->out,
		.query_start = inputs->query_start,
		.seq_lens = inputs->seq_lens,
		.block_table = attention_block_table(base->manager, args),
		.q_stride = args->q_stride,
		.max_pages = c->max_pages,
		.n_rows = base->padded_rows,
		.n_tokens = base->padded_tokens,
		.window = base->manager->windows[args->layer],
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.scale = c->scale,
		.soft_cap = c->soft_cap,
		.n_long = metadata->n_long,
		.max_long_query = metadata->max_long_query,
		.max_query = metadata->max_query,
	});
}

const struct attention_backend attention_paged = {
	.name = "paged",
	.breaks = true,
	.check = attention_check_gqa,
	.support = paged_support,
	.manager_new = paged_manager_new,
	.manager_free = paged_manager_free,
	.metadata_new = paged_metadata_new,
	.metadata_free = attention_metadata_free,
	.build = paged_build,
	.run = paged_run,
};
