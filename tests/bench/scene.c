/* SPDX-License-Identifier: MIT */
#include "tests/bench/scene.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/bench/stats.h"

uint32_t scene_copies(const struct scene *scene, uint64_t bytes)
{
	uint64_t cold = scene->probe->is_host ? SCENE_COLD_BYTES_HOST : SCENE_COLD_BYTES;
	uint64_t n = cold / bytes;

	return n < 2 ? 2 : n > SCENE_LAYERS_MAX ? SCENE_LAYERS_MAX : (uint32_t)n;
}

void scene_size(struct scene *s, const struct attention_config *heads)
{
	struct attention_config *c = &s->config;
	uint32_t per_row = (s->context + heads->page_tokens - 1) / heads->page_tokens;
	uint32_t planes = heads->latent.rank ? 1 : 2; /* keys and values, or latents */

	*c = *heads;
	c->max_rows = s->n_rows;
	c->max_tokens = s->n_rows * s->n_query;
	c->max_pages = per_row;
	c->max_seq_len = s->context;
	c->max_decode_query = 1;
	c->activation_dtype = s->probe->info.activation_dtype;
	c->kv_dtype = s->probe->info.kv_dtype;
	c->n_kv_pages = s->n_rows * per_row + 1;
	s->layer_bytes = (uint64_t)c->n_kv_pages * planes * c->page_tokens * c->n_kv_heads *
			 c->head_dim * dtype_bytes(c->kv_dtype);
	c->n_layers = scene_copies(s, s->layer_bytes);
	s->weight_bytes = (uint64_t)c->n_heads * (c->latent.nope + c->latent.v) * c->latent.rank *
			  dtype_bytes(c->kv_dtype);
	s->n_weights = s->weight_bytes ? scene_copies(s, s->weight_bytes) : 0;
}

bool scene_has_no_space(const struct scene *s)
{
	struct device_info now;

	return s->probe->device->ops->info(s->probe->device, &now) == 0 &&
	       s->layer_bytes * s->config.n_layers > now.free_bytes / 2;
}

static void scene_shuffle(int32_t *pages, uint32_t n)
{
	uint64_t state = 88172645463325252u;

	for (uint32_t i = 0; i < n; i++)
		pages[i] = (int32_t)(i + 1);
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = stats_random(&state) % i;
		int32_t page = pages[i - 1];

		pages[i - 1] = pages[j];
		pages[j] = page;
	}
}

/* One array each begins where any vector load may. */
static int scene_take_tables(struct scene *s)
{
	uint32_t n = s->n_rows * s->config.max_pages, lens = (n + 63) / 64 * 64;
	uint32_t starts = lens + (s->n_rows + 63) / 64 * 64, n_all = starts + s->n_rows + 1;
	CLEANUP(cleanup_free) int32_t *all = calloc(n_all, sizeof(*all));
	int32_t *tables;

	if (!all)
		return -ENOMEM;
	scene_shuffle(all, n);
	for (uint32_t i = 0; i < s->n_rows; i++)
		all[lens + i] = (int32_t)s->context;
	for (uint32_t i = 0; i <= s->n_rows; i++)
		all[starts + i] = (int32_t)(i * s->n_query);
	int rc = probe_take(s->probe, n_all * sizeof(*all), DTYPE_F32, &tables);
	if (!rc)
		rc = s->probe->device->ops->copy(s->probe->device, tables, all, n_all * sizeof(*all));
	s->inputs = (struct step_inputs){
		.max_rows = s->n_rows,
		.max_tokens = s->config.max_tokens,
		.max_pages = s->config.max_pages,
		.page_tokens = s->config.page_tokens,
		.block_table = tables,
		.seq_lens = tables + lens,
		.query_start = tables + starts,
	};
	return rc;
}

int scene_take(struct scene *s)
{
	const struct attention_config *c = &s->config;
	const struct attention_latent *l = &c->latent;
	uint64_t heads = c->max_tokens * (uint64_t)c->n_heads * dtype_bytes(c->activation_dtype);
	uint64_t q_width = l->rank ? l->nope + l->rope : c->head_dim;
	const struct probe_memory memory[] = {
		{&s->kv, s->layer_bytes * c->n_layers, c->kv_dtype},
		{&s->q, heads * q_width, c->activation_dtype},
		{&s->out, heads * (l->rank ? l->v : c->head_dim), c->activation_dtype},
		{&s->weights, s->weight_bytes * s->n_weights, c->kv_dtype},
	};
	int rc = scene_take_tables(s);

	return rc ? rc : probe_take_all(s->probe, memory, 3u + (s->n_weights > 0));
}

struct weight scene_weight(const struct scene *s, uint32_t i)
{
	const struct attention_config *c = &s->config;

	return (struct weight){
		.data = s->weights + i % s->n_weights * s->weight_bytes,
		.dtype = c->kv_dtype,
		.rows = c->n_heads * (c->latent.nope + c->latent.v),
		.cols = c->latent.rank,
	};
}

int scene_build(struct scene *s)
{
	int rc = s->backend->manager_new(s->probe->device, &s->config, &s->inputs, &s->manager);

	if (rc)
		return rc;
	rc = s->backend->metadata_new(s->manager, &s->metadata);
	if (rc)
		return rc;
	s->lens = calloc(2 * (size_t)s->n_rows, sizeof(*s->lens));
	if (!s->lens)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->n_rows; i++) {
		s->lens[i] = s->n_query;
		s->lens[s->n_rows + i] = s->context;
	}
	s->batch = (struct attention_batch){
		.phase = ATTENTION_CAPTURE,
		.n_rows = s->n_rows,
		.n_tokens = s->config.max_tokens,
		.padded_rows = s->n_rows,
		.padded_tokens = s->config.max_tokens,
		.max_query = s->n_query,
		.query_lens = s->lens,
		.seq_lens = s->lens + s->n_rows,
	};
	return s->backend->build(s->metadata, &s->batch, s->probe->stream);
}

void scene_deinit(struct scene *s)
{
	if (s->metadata)
		s->backend->metadata_free(s->metadata);
	if (s->manager)
		s->backend->manager_free(s->manager);
	free(s->lens);
}
