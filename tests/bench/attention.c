/* SPDX-License-Identifier: MIT */
/*
 * A model's attention, through the backend interface: --query tokens of each row for each batch and
 * context, and whole prompts. What is counted is keys and values once, of latent attention with the
 * weights of its products, and the operations of what the causal mask lets be seen. Beside it is what
 * the backend queues once a step for all layers: its plan. Latent attention has a row for a whole layer
 * and, where a graph may hold it, one for what it attends to.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <string.h>

#include "attention/manager.h"
#include "attention/mla/mla.h"
#include "daemon/model/error.h"
#include "daemon/model/model.h"
#include "tests/bench/cost.h"

#define COLD_BYTES (768ull << 20)
#define COLD_BYTES_HOST (1ull << 20)
#define COPIES_MAX 64u
#define RUNS_MIN 16u
#define PLANS 8u /* in one measurement */
#define PAGE_TOKENS 16u
#define GRAPH_QUERY_MAX MLA_MAX_UNIFORM_QUERY /* tokens of a row in a graph */
#define NO_SPACE "the device has no space for it"

/* One batch for an attention backend: equal rows, pages in no order, random contents, and layers that
 * take turns, so that their caches together exceed any L2. */
struct scene {
	struct probe *probe;
	const struct attention_backend *backend;
	uint32_t n_rows, n_query, context; /* of each row; the query's tokens are the last */
	uint32_t n_runs;                   /* of one measurement: each layer once at least */
	struct attention_config config;
	struct step_inputs inputs;
	struct attention_batch batch;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t *lens; /* [2 n_rows] query, then sequence */
	uint64_t layer_bytes;
	uint64_t weight_bytes; /* of one copy of latent attention's kv_b; 0: none */
	uint32_t n_weights;    /* copies, which runs use in turn */
	char *kv, *weights;
	void *q, *out;
};

/* Copies that take turns, of something of so many bytes: so many that they exceed any L2. */
static uint32_t scene_copies(const struct scene *scene, uint64_t bytes)
{
	uint64_t cold = scene->probe->is_host ? COLD_BYTES_HOST : COLD_BYTES;
	uint64_t n = cold / bytes;

	return n < 2 ? 2 : n > COPIES_MAX ? COPIES_MAX : (uint32_t)n;
}

/* The sizes of a scene whose probe, rows and query are set, from the model's heads: the rest of config is
 * filled in. */
static void scene_size(struct scene *s, const struct attention_config *heads, bool fp8)
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
	c->kv_dtype = fp8 ? DTYPE_E4M3 : s->probe->info.kv_dtype;
	c->n_kv_pages = s->n_rows * per_row + 1;
	s->layer_bytes = (uint64_t)c->n_kv_pages * planes * c->page_tokens * c->n_kv_heads *
			 c->head_dim * dtype_bytes(c->kv_dtype);
	c->n_layers = scene_copies(s, s->layer_bytes);
	s->n_runs = c->n_layers < RUNS_MIN ? RUNS_MIN : c->n_layers;
	s->weight_bytes = (uint64_t)c->n_heads * (c->latent.nope + c->latent.v) * c->latent.rank *
			  dtype_bytes(c->activation_dtype);
	s->n_weights = s->weight_bytes ? scene_copies(s, s->weight_bytes) : 0;
}

static bool scene_has_no_space(const struct scene *s)
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
		{&s->weights, s->weight_bytes * s->n_weights, c->activation_dtype},
	};
	int rc = scene_take_tables(s);

	return rc ? rc : cost_take(s->probe, memory, 3u + (s->n_weights > 0));
}

/* Memory for all of it, and the backend's manager and metadata, built for the batch. To be deinitialised
 * even if it fails; memory is the probe's. */
static int scene_init(struct scene *s)
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

static void scene_deinit(struct scene *s)
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
			.dtype = c->activation_dtype,
			.rows = c->n_heads * (c->latent.nope + c->latent.v),
			.cols = c->latent.rank,
		};
		struct attention_args args = {
			.layer = i % c->n_layers,
			.q = s->q,
			.q_stride = c->n_heads * width,
			.kv = s->kv + i % c->n_layers * s->layer_bytes,
			.out = s->out,
			.factors = {1, 1},
		};

		if (s->n_weights) {
			kv_b.data = s->weights + i % s->n_weights * s->weight_bytes;
			args.kv_b = &kv_b;
		}
		rc = s->backend->run(s->metadata, s->probe->stream, &args);
	}
	return rc;
}

/* Seconds of a layer, in a graph if it can be captured. */
static int scene_time(struct scene *s, bool captured, double *ret_seconds)
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

/* Of what a backend queues once a step for all layers. A graph with a plan of its own changes how layers
 * run: this comes last. */
static int scene_time_plan(struct scene *s, bool captured, double *ret_seconds)
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
	int rc = probe_take(s->probe, arena.used, s->config.activation_dtype, &memory);
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

/* Of what absorbed queries of latent attention attend to: both stages, without the products that absorb
 * queries and expand values. NAN where the tokens do not fit one chunk of the workspace. */
static int scene_time_attend(struct scene *s, double *ret_seconds)
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
			.fp8 = attention_fp8(c),
			.factors = {1, 1},
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

/* ---- the bench ---- */

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

	scene_size(&scene, &bench->heads, strcmp(bench->options->kv_dtype, "fp8") == 0);
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
