/* SPDX-License-Identifier: MIT */
/*
 * Latent attention beside a whole layer of it: what absorbed queries attend to, without the products
 * that absorb queries and expand values. Prompts, of more tokens than a graph holds, are not absorbed
 * and are measured as whole layers alone.
 */
#include "attention/mla/mla.h"
#include "tests/bench/scene.h"

#define RUNS_MIN 16u

struct attend {
	struct scene *scene;
	const struct mla_kernels *kernels;
	struct mla_args args; /* of a layer; its cache to be set */
	uint32_t n_runs;
	bool planned;
};

static int attend_take_workspace(struct attend *a)
{
	struct scene *s = a->scene;
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
	struct scene *s = a->scene;
	int rc = 0;

	for (uint32_t i = 0; i < a->n_runs && !rc; i++) {
		a->args.kv = s->kv + i % s->config.n_layers * s->layer_bytes;
		rc = a->kernels->split(s->probe->stream, &a->args, a->planned);
		if (!rc)
			rc = a->kernels->merge(s->probe->stream, &a->args, a->planned);
	}
	return rc;
}

int latent_attend(struct scene *s, double *ret_seconds)
{
	const struct attention_config *c = &s->config;
	struct attend a = {
		.scene = s,
		.kernels = mla_kernels_for(s->probe->info.kind),
		.n_runs = c->n_layers < RUNS_MIN ? RUNS_MIN : c->n_layers,
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
			.scale = c->scale,
		},
	};
	int rc;

	*ret_seconds = NAN;
	if (mla_sizes(c, a.kernels, c->max_tokens).chunk_tokens < c->max_tokens)
		return 0;
	rc = attend_take_workspace(&a);
	if (rc)
		return rc;
	a.args.sizes = mla_sizes(c, a.kernels, c->max_tokens);
	if (a.planned)
		rc = a.kernels->plan(s->probe->stream, &a.args);
	return rc ? rc : probe_time(s->probe, true, attend_queue, &a, a.n_runs, ret_seconds);
}

struct results_cost latent_attend_cost(const struct scene *s)
{
	const struct attention_latent *l = &s->config.latent;
	double keys = (double)s->n_rows * s->context;

	return (struct results_cost){
		.bytes = keys * (l->rank + l->rope) * dtype_bytes(s->config.kv_dtype),
		.flop = keys * s->n_query * s->config.n_heads * (2.0 * l->rank + l->rope) * 2,
	};
}

struct results_cost latent_layer_cost(const struct scene *s)
{
	const struct attention_latent *l = &s->config.latent;
	double n = s->n_query, heads = s->config.n_heads, wide = l->nope + l->v;
	double pairs = s->n_rows * (n * (s->context - n) + n * (n + 1) / 2);
	struct results_cost cost = latent_attend_cost(s);

	cost.bytes += (double)s->weight_bytes;
	if (s->n_query <= MLA_MAX_UNIFORM_QUERY)
		cost.flop += s->n_rows * n * heads * l->rank * wide * 2;
	else
		cost.flop = pairs * heads * 2 * (wide + l->rope) +
			    (double)s->n_rows * s->context * heads * wide * l->rank * 2;
	return cost;
}
