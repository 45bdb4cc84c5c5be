/* SPDX-License-Identifier: MIT */
/*
 * A model's attention, through the backend interface: --query tokens of each row for each batch and
 * context, and whole prompts. What is counted is keys and values once, of latent attention with the
 * weights of its products, and the operations of what the causal mask lets be seen. Beside it is what
 * the backend queues once a step for all layers: its plan. Latent attention has a row for a whole layer
 * and, where a graph may hold it, one for what it attends to.
 */
#include "tests/bench/internals.h"

#include "attention/mla/mla.h"
#include "daemon/model/model.h"
#include "tests/bench/scene.h"

#define PAGE_TOKENS 16u
#define GRAPH_QUERY_MAX MLA_MAX_UNIFORM_QUERY /* tokens of a row in a graph */
#define NO_SPACE "the device has no space for it"

struct attention_bench {
	const struct bench_options *options;
	struct results *results;
	struct probe probe;
	struct rates rates;
	struct attention_config heads; /* of the model and the options */
};

/* ---- what there is to read and to compute ---- */

/* A token of a query and one that it sees, of all rows. */
static double attention_pairs(const struct scene *s)
{
	double n = s->n_query;

	return s->n_rows * (n * (s->context - n) + n * (n + 1) / 2);
}

static struct cost attention_cost(const struct scene *s)
{
	const struct attention_config *c = &s->config;

	return (struct cost){
		.bytes = (double)s->n_rows * s->context * 2 * c->n_kv_heads * c->head_dim *
			 dtype_bytes(c->kv_dtype),
		/* multiplications and additions of scores and sums */
		.flop = attention_pairs(s) * c->n_heads * c->head_dim * 4,
	};
}

/* What absorbed queries attend to. */
static struct cost attention_attend_cost(const struct scene *s)
{
	const struct attention_latent *l = &s->config.latent;
	double keys = (double)s->n_rows * s->context;

	return (struct cost){
		.bytes = keys * (l->rank + l->rope) * dtype_bytes(s->config.kv_dtype),
		.flop = keys * s->n_query * s->config.n_heads * (2.0 * l->rank + l->rope) * 2,
	};
}

/* With the products of queries and values, absorbed or, of prompts, with keys and values expanded. */
static struct cost attention_latent_cost(const struct scene *s)
{
	const struct attention_latent *l = &s->config.latent;
	double n = s->n_query, heads = s->config.n_heads, wide = l->nope + l->v;
	struct cost cost = attention_attend_cost(s);

	cost.bytes += (double)s->weight_bytes;
	if (s->n_query <= MLA_MAX_UNIFORM_QUERY)
		cost.flop += s->n_rows * n * heads * l->rank * wide * 2;
	else
		cost.flop = attention_pairs(s) * heads * 2 * (wide + l->rope) +
			    (double)s->n_rows * s->context * heads * wide * l->rank * 2;
	return cost;
}

/* ---- rows ---- */

/* part: of latent attention; NULL of all others. */
static void attention_row(struct attention_bench *bench, const struct scene *s, const char *part,
	const struct cost *cost, double plan)
{
	struct results *results = bench->results;
	const struct attention_config *c = &s->config;

	results_row(results);
	results_text(results, "backend", NULL, s->backend ? s->backend->name : NULL);
	results_count(results, "heads", NULL, c->n_heads);
	results_count(results, "kv_heads", NULL, c->n_kv_heads);
	results_count(results, "head_dim", NULL, c->head_dim);
	if (part) {
		results_count(results, "rank", NULL, c->latent.rank);
		results_count(results, "rope", NULL, c->latent.rope);
		results_text(results, "part", "PART", part);
	}
	results_count(results, "batch", "BATCH", s->n_rows);
	results_count(results, "query", "QUERY", s->n_query);
	results_count(results, "context", "CONTEXT", s->context);
	cost_values(results, &bench->rates, cost);
	results_seconds(results, "plan_s", "PLAN", plan);
	results_note(results, isfinite(cost->seconds) ? NULL : NO_SPACE);
}

struct attention_times {
	double layer, plan, attend; /* NAN: not measured */
};

static void attention_rows(
	struct attention_bench *bench, const struct scene *s, const struct attention_times *times)
{
	bool latent = s->config.latent.rank;
	struct cost layer = latent ? attention_latent_cost(s) : attention_cost(s);
	struct cost attend = attention_attend_cost(s);

	layer.seconds = times->layer;
	attend.seconds = times->attend;
	if (isfinite(attend.seconds))
		attention_row(bench, s, "attend", &attend, NAN);
	attention_row(bench, s, latent ? "layer" : NULL, &layer, times->plan);
}

static int attention_time(struct attention_bench *bench, struct scene *s,
	struct attention_times *ret, struct model_error *error)
{
	bool in_graph = s->n_query <= GRAPH_QUERY_MAX;
	enum attention_support support;
	int rc = attention_choose(bench->options->attention, &s->config, &s->backend, &support,
		error->text, sizeof(error->text));

	if (rc)
		return rc;
	error->text[0] = '\0'; /* it says why that one */
	rc = scene_init(s);
	if (rc)
		return rc;
	rc = s->config.latent.rank && in_graph ? scene_time_attend(s, &ret->attend) : 0;
	if (rc)
		return rc;
	bool captured = support == ATTENTION_ALWAYS ||
			(in_graph && support == ATTENTION_UNIFORM_BATCH) ||
			(s->n_query == 1 && support > ATTENTION_NEVER);
	rc = scene_time(s, captured, &ret->layer);
	return rc ? rc : scene_time_plan(s, support > ATTENTION_NEVER, &ret->plan);
}

static int attention_measure(struct attention_bench *bench, uint32_t n_rows, uint32_t n_query,
	uint32_t context, struct model_error *error)
{
	struct scene scene = {.probe = &bench->probe,
		.n_rows = n_rows,
		.n_query = n_query < context ? n_query : context,
		.context = context};
	struct attention_times times = {NAN, NAN, NAN};
	uint32_t mark = bench->probe.n_held;
	int rc = 0;

	scene_size(&scene, &bench->heads);
	if (!scene_has_no_space(&scene))
		rc = attention_time(bench, &scene, &times, error);
	if (!rc)
		attention_rows(bench, &scene, &times);
	scene_deinit(&scene);
	probe_release(&bench->probe, mark);
	return rc;
}

/* ---- all of them ---- */

static int attention_all(struct attention_bench *bench, struct model_error *error)
{
	const struct bench_options *o = bench->options;
	const struct attention_config *c = &bench->heads;
	int rc = cost_rates(&bench->probe, bench->results, &bench->rates);

	if (c->latent.rank)
		results_explain(bench->results, "%u heads of %u + %u and %u, rank %u", c->n_heads,
			c->latent.nope, c->latent.rope, c->latent.v, c->latent.rank);
	else
		results_explain(bench->results, "%u heads, %u of keys and values, head size %u",
			c->n_heads, c->n_kv_heads, c->head_dim);
	for (uint32_t i = 0; i < o->batches.n * o->contexts.n && !rc; i++)
		rc = attention_measure(bench, o->batches.at[i / o->contexts.n], o->query,
			o->contexts.at[i % o->contexts.n], error);
	for (uint32_t i = 0; i < o->prompts.n && !rc; i++)
		rc = attention_measure(bench, 1, o->prompts.at[i], o->prompts.at[i], error);
	return rc;
}

static int attention_heads(const char *dir, struct attention_config *ret, struct model_error *error)
{
	struct model_config config;
	int rc = model_config_load(dir, &config, error);

	if (rc)
		return rc;
	*ret = (struct attention_config){
		.n_heads = config.n_heads,
		.n_kv_heads = config.n_kv_heads,
		.head_dim = config.head_dim,
		.latent = config.latent,
		.page_tokens = PAGE_TOKENS,
		.scale = 0.1f,
	};
	model_config_deinit(&config);
	if (ret->latent.rank) {
		ret->n_kv_heads = 1;
		ret->head_dim = ret->latent.rank + ret->latent.rope;
		ret->scale = 1.0f / sqrtf((float)(ret->latent.nope + ret->latent.rope));
	}
	return 0;
}

int bench_attention(const struct bench_options *options, struct results *results)
{
	struct attention_bench bench = {.options = options, .results = results};
	struct model_error error = {""};
	int rc = attention_heads(options->model_dir, &bench.heads, &error);

	if (!rc)
		rc = probe_open(&bench.probe, options->device, error.text, sizeof(error.text));
	if (!rc)
		rc = attention_all(&bench, &error);
	probe_close(&bench.probe);
	return bench_fail_device(rc, "attention", error.text);
}
