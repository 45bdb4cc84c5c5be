/* SPDX-License-Identifier: MIT */
#include "attention/manager.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/checks.h"

/* ---- configuration ---- */

static int manager_check_sizes(const struct attention_config *c, char *why, size_t size)
{
	if (!c->n_layers || !c->n_heads || !c->head_dim || !c->max_rows || !c->max_tokens)
		snprintf(why, size, "layers, heads, head_dim, rows and tokens must not be 0");
	else if (!c->n_kv_heads || c->n_heads % c->n_kv_heads)
		snprintf(why, size, "%u query heads do not divide among %u kv heads", c->n_heads,
			c->n_kv_heads);
	else if ((uint64_t)c->n_heads * c->head_dim > INT32_MAX)
		snprintf(why, size, "%u heads of %u elements are too large", c->n_heads,
			c->head_dim);
	else if (!c->page_tokens || !c->max_seq_len ||
		 (uint64_t)c->max_pages * c->page_tokens < c->max_seq_len)
		snprintf(why, size, "%u pages of %u tokens do not hold a sequence of %u",
			c->max_pages, c->page_tokens, c->max_seq_len);
	else if ((c->activation_dtype != DTYPE_F32 && c->activation_dtype != DTYPE_BF16) ||
		 (c->kv_dtype != c->activation_dtype && c->kv_dtype != DTYPE_E4M3))
		snprintf(why, size,
			"activations must be float32 or bfloat16, and the kv cache likewise, or fp8");
	else
		return 0;
	return -ENOTSUP;
}

int attention_check_gqa(const struct attention_config *c, char *why, size_t size)
{
	if (!c->latent.rank)
		return manager_check_sizes(c, why, size);
	snprintf(why, size, "its attention is latent (MLA), and the cache holds no values");
	return -ENOTSUP;
}

int attention_check_latent(const struct attention_config *c, char *why, size_t size)
{
	const struct attention_latent *l = &c->latent;

	if (!l->rank) {
		snprintf(why, size, "its attention is not latent (MLA)");
		return -ENOTSUP;
	}
	if (!l->nope || !l->rope || !l->v || c->n_kv_heads != 1 ||
		c->head_dim != (uint64_t)l->rank + l->rope ||
		(uint64_t)c->n_heads * ((uint64_t)l->nope + l->rope + l->v) > INT32_MAX) {
		snprintf(why, size,
			"sizes of latent attention do not fit: rank %u, heads of %u + %u and %u", l->rank,
			l->nope, l->rope, l->v);
		return -ENOTSUP;
	}
	for (uint32_t i = 0; c->windows && i < c->n_layers; i++) {
		if (c->windows[i]) {
			snprintf(why, size, "latent attention has no sliding window");
			return -ENOTSUP;
		}
	}
	if (c->soft_cap != 0) {
		snprintf(why, size, "latent attention has no soft cap of scores, and that is %g", (double)c->soft_cap);
		return -ENOTSUP;
	}
	return manager_check_sizes(c, why, size);
}

/* ---- managers ---- */

static void manager_find_plans(struct attention_manager *m)
{
	for (uint32_t layer = 0; layer < m->config.n_layers; layer++) {
		uint32_t i = 0;

		while (i < m->n_plans && m->plan_windows[i] != m->windows[layer])
			i++;
		if (i == m->n_plans)
			m->plan_windows[m->n_plans++] = m->windows[layer];
	}
	assert(m->n_plans > 0 && m->n_plans <= m->config.n_layers);
}

static int manager_init(struct attention_manager *m, struct device *device,
	const struct attention_config *config, const struct step_inputs *inputs)
{
	struct device_info info;
	int rc = device->ops->info(device, &info);

	if (rc)
		return rc;
	memcpy(m->kind, info.kind, sizeof(m->kind));
	m->device = device;
	m->config = *config;
	m->inputs = *inputs;
	m->windows = calloc(config->n_layers, sizeof(*m->windows));
	m->plan_windows = calloc(config->n_layers, sizeof(*m->plan_windows));
	if (!m->windows || !m->plan_windows)
		return -ENOMEM;
	if (config->windows)
		memcpy(m->windows, config->windows, config->n_layers * sizeof(*m->windows));
	m->config.windows = m->windows;
	manager_find_plans(m);
	return 0;
}

int attention_manager_new(const struct attention_backend *backend, size_t size,
	struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, int (*fill)(struct attention_manager *manager),
	struct attention_manager **ret)
{
	struct attention_manager *m;
	int rc;

	assert(size >= sizeof(*m));
	if (backend->check(config, NULL, 0))
		return -ENOTSUP;
	if (inputs->max_rows < config->max_rows || inputs->max_tokens < config->max_tokens)
		return -EINVAL;
	if (inputs->max_pages != config->max_pages || inputs->page_tokens != config->page_tokens)
		return -EINVAL;
	if (!inputs->query_start || !inputs->seq_lens || !inputs->block_table)
		return -EINVAL;
	m = calloc(1, size);
	if (!m)
		return -ENOMEM;
	rc = manager_init(m, device, config, inputs);
	if (rc) {
		attention_manager_free(m);
		return rc;
	}
	rc = fill(m);
	if (rc) {
		backend->manager_free(m);
		return rc;
	}
	*ret = m;
	return 0;
}

void attention_manager_free(struct attention_manager *m)
{
	if (!m)
		return;
	free(m->plan_windows);
	free(m->windows);
	free(m);
}

uint32_t attention_plan_index(const struct attention_manager *m, uint32_t window)
{
	uint32_t i = 0;

	while (i < m->n_plans && m->plan_windows[i] != window)
		i++;
	assert(i < m->n_plans);
	return i;
}

uint32_t attention_capacity(const struct attention_config *c)
{
	uint64_t capacity = (uint64_t)c->max_pages * c->page_tokens;

	return capacity < INT32_MAX ? (uint32_t)capacity : INT32_MAX;
}

/* ---- device memory ---- */

int attention_alloc_zeroed(struct device *device,
	void (*carve)(void *userdata, struct arena *arena), void *userdata, void **ret)
{
	const struct device_ops *ops = device->ops;
	struct stream *stream;
	size_t bytes;
	int rc = arena_alloc(device, carve, userdata, ret, &bytes);

	if (rc)
		return rc;
	rc = ops->stream_new(device, &stream);
	if (rc)
		return rc;
	rc = ops->fill_async(stream, *ret, 0, bytes);
	if (!rc)
		rc = ops->stream_sync(stream);
	ops->stream_free(stream);
	return rc;
}

/* ---- metadata ---- */

int attention_metadata_new(
	struct attention_manager *manager, size_t size, struct attention_metadata **ret)
{
	struct attention_metadata *metadata;

	assert(size >= sizeof(*metadata));
	metadata = calloc(1, size);
	if (!metadata)
		return -ENOMEM;
	metadata->manager = manager;
	*ret = metadata;
	return 0;
}

void attention_metadata_free(struct attention_metadata *metadata)
{
	free(metadata);
}

static int manager_check_batch(
	const struct attention_config *c, const struct attention_batch *batch)
{
	uint64_t n_tokens = 0;

	if (batch->n_rows > batch->padded_rows || batch->padded_rows > c->max_rows)
		return -EINVAL;
	if (batch->n_tokens > batch->padded_tokens || batch->padded_tokens > c->max_tokens)
		return -EINVAL;
	for (uint32_t r = 0; r < batch->n_rows; r++) {
		if (batch->seq_lens[r] > c->max_seq_len || batch->query_lens[r] > batch->max_query)
			return -EINVAL;
		n_tokens += batch->query_lens[r];
	}
	return n_tokens == batch->n_tokens ? 0 : -EINVAL;
}

/* Rows of one query length, max_query at most, or empty. */
static bool manager_is_uniform(const struct attention_batch *batch, uint32_t max_query)
{
	if (batch->max_query > max_query)
		return false;
	for (uint32_t r = 0; r < batch->n_rows; r++)
		if (batch->query_lens[r] && batch->query_lens[r] != batch->max_query)
			return false;
	return true;
}

int attention_metadata_begin(struct attention_metadata *metadata,
	const struct attention_batch *batch, enum attention_support level, uint32_t max_query)
{
	int rc;

	assert(level != ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE); /* no backend has that level */
	metadata->built = false;
	rc = manager_check_batch(&metadata->manager->config, batch);
	if (rc)
		return rc;
	metadata->capturable = level == ATTENTION_ALWAYS ||
			       (level == ATTENTION_UNIFORM_BATCH &&
				       manager_is_uniform(batch, max_query));
	metadata->padded_rows = batch->padded_rows;
	metadata->padded_tokens = batch->padded_tokens;
	return 0;
}

static int manager_check_args(
	const struct attention_config *c, const struct attention_args *args)
{
	const struct attention_latent *l = &c->latent;
	uint32_t query = l->rank ? l->nope + l->rope : c->head_dim;

	if (args->layer >= c->n_layers || !args->q || !args->kv || !args->out)
		return -EINVAL;
	if (args->q_stride < c->n_heads * query)
		return -EINVAL;
	if (attention_fp8(c) && !kv_factors_fit(&args->factors))
		return -EINVAL;
	if (!l->rank)
		return 0;
	if (!args->kv_b || args->kv_b->rows != c->n_heads * (l->nope + l->v) ||
		args->kv_b->cols != l->rank)
		return -EINVAL;
	return 0;
}

int attention_run_check(const struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	const struct attention_manager *manager = metadata->manager;

	if (!metadata->built)
		return -EINVAL;
	if (!metadata->capturable && manager->device->ops->capturing(stream))
		return -ENOTSUP;
	assert(metadata->padded_rows <= manager->config.max_rows);
	assert(metadata->padded_tokens <= manager->config.max_tokens);
	return manager_check_args(&manager->config, args);
}
