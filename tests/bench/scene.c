/* SPDX-License-Identifier: MIT */
#include "tests/bench/scene.h"

#include <errno.h>

#include "attention/mla/mla.h"

#define COLD_BYTES (768ull << 20)
#define COLD_BYTES_HOST (1ull << 20)
#define COPIES_MAX 64u
#define RUNS_MIN 16u
#define PLANS 8u /* in one measurement */

/* Copies that take turns, of something of so many bytes: so many that they exceed any L2. */
static uint32_t scene_copies(const struct scene *scene, uint64_t bytes)
{
	uint64_t cold = scene->probe->is_host ? COLD_BYTES_HOST : COLD_BYTES;
	uint64_t n = cold / bytes;

	return n < 2 ? 2 : n > COPIES_MAX ? COPIES_MAX : (uint32_t)n;
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
	s->n_runs = c->n_layers < RUNS_MIN ? RUNS_MIN : c->n_layers;
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

static int scene_take(struct scene *s)
{
	const struct attention_config *c = &s->config;
	const struct attention_latent *l = &c->latent;
	uint64_t heads = c->max_tokens * (uint64_t)c->n_heads * dtype_bytes(c->activation_dtype);
	uint64_t q_width = l->rank ? l->nope + l->rope : c->head_dim;
	const struct cost_memory memory[] = {
		{&s->kv, s->layer_bytes * c->n_layers, c->kv_dtype},
		{&s->q, heads * q_width, c->activation_dtype},
		{&s->out, heads * (l->rank ? l->v : c->head_dim), c->activation_dtype},
		{&s->weights, s->weight_bytes * s->n_weights, c->kv_dtype},
	};
	int rc = scene_take_tables(s);

	return rc ? rc : cost_take(s->probe, memory, 3u + (s->n_weights > 0));
}

int scene_init(struct scene *s)
{
	int rc = scene_take(s);

	if (rc)
		return rc;
	rc = s->backend->manager_new(s->probe->device, &s->config, &s->inputs, &s->manager);
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

/* ---- time ---- */

static int scene_queue(void *arg)
{
	const struct scene *s = arg;
	const struct attention_config *c = &s->config;
	uint32_t width = c->latent.rank ? c->latent.nope + c->latent.rope : c->head_dim;
	int rc = 0;

	for (uint32_t i = 0; i < s->n_runs && !rc; i++) {
		struct weight kv_b = {
			.dtype = c->kv_dtype,
			.rows = c->n_heads * (c->latent.nope + c->latent.v),
			.cols = c->latent.rank,
		};
		struct attention_args args = {
			.layer = i % c->n_layers,
			.q = s->q,
			.q_stride = c->n_heads * width,
			.kv = s->kv + i % c->n_layers * s->layer_bytes,
			.out = s->out,
		};

		if (s->n_weights) {
			kv_b.data = s->weights + i % s->n_weights * s->weight_bytes;
			args.kv_b = &kv_b;
		}
		rc = s->backend->run(s->metadata, s->probe->stream, &args);
	}
	return rc;
}

int scene_time(struct scene *s, bool captured, double *ret_seconds)
{
	return probe_time(s->probe, captured, scene_queue, s, s->n_runs, ret_seconds);
}

static int scene_queue_plans(void *arg)
{
	const struct scene *s = arg;
	int rc = 0;

	for (uint32_t i = 0; i < PLANS && !rc; i++)
		rc = s->backend->build(s->metadata, &s->batch, s->probe->stream);
	return rc;
}

int scene_time_plan(struct scene *s, bool captured, double *ret_seconds)
{
	return probe_time(s->probe, captured, scene_queue_plans, s, PLANS, ret_seconds);
}

struct attend {
	const struct scene *scene;
	const struct mla_kernels *kernels;
	struct mla_args args; /* of a layer; its cache to be set */
	bool planned;
};

static int attend_take_workspace(struct attend *a)
{
	const struct scene *s = a->scene;
	struct arena arena = {0};
	void *memory;

	mla_workspace_carve(&s->config, a->kernels, a->planned, &arena, &a->args.work);
	int rc = probe_take(s->probe, arena.used, s->config.kv_dtype, &memory);
	if (rc)
		return rc;
	arena = (struct arena){.base = memory, .size = arena.used};
	mla_workspace_carve(&s->config, a->kernels, a->planned, &arena, &a->args.work);
	return 0;
}

static int attend_queue(void *arg)
{
	struct attend *a = arg;
	const struct scene *s = a->scene;
	int rc = 0;

	for (uint32_t i = 0; i < s->n_runs && !rc; i++) {
		a->args.kv = s->kv + i % s->config.n_layers * s->layer_bytes;
		rc = a->kernels->split(s->probe->stream, &a->args, a->planned);
		if (!rc)
			rc = a->kernels->merge(s->probe->stream, &a->args, a->planned);
	}
	return rc;
}

int scene_time_attend(struct scene *s, double *ret_seconds)
{
	const struct attention_config *c = &s->config;
	const struct mla_kernels *kernels = mla_kernels_for(s->probe->info.kind);
	struct attend a = {
		.scene = s,
		.kernels = kernels,
		.planned = s->backend == &attention_mla_planned,
		.args = {
			.q = s->q,
			.query_start = s->inputs.query_start,
			.seq_lens = s->inputs.seq_lens,
			.block_table = s->inputs.block_table,
			.q_stride = c->n_heads * (c->latent.nope + c->latent.rope),
			.max_pages = c->max_pages,
			.max_seq_len = c->max_seq_len,
			.n_rows = s->n_rows,
			.n_tokens = c->max_tokens,
			.step_tokens = c->max_tokens,
			.n_heads = c->n_heads,
			.rank = c->latent.rank,
			.nope = c->latent.nope,
			.rope = c->latent.rope,
			.page_tokens = c->page_tokens,
			.n_pages = c->n_kv_pages,
			.sizes = mla_sizes(c, kernels, c->max_tokens),
			.scale = c->scale,
		},
	};

	*ret_seconds = NAN;
	if (a.args.sizes.chunk_tokens < c->max_tokens)
		return 0;
	int rc = attend_take_workspace(&a);
	if (!rc && a.planned)
		rc = kernels->plan(s->probe->stream, &a.args);
	return rc ? rc : probe_time(s->probe, true, attend_queue, &a, s->n_runs, ret_seconds);
}
