/* SPDX-License-Identifier: MIT */
/*
 * Latent attention, part by part and as a whole. Of decode steps, for each batch and context:
 *
 *	attend   both stages of a layer, the merge among them
 *	layer    a layer as the backend runs it: absorb, both stages, expand
 *	plan     the planner, once a step, where the backend has one
 *	absorb   the queries' product a head, without attention; for each batch
 *	expand   the values'
 *
 * Of prompts (--query of more tokens than a graph holds, and --prompts), which are not absorbed:
 *
 *	layer    a layer: gather, expand, attend, chunk by chunk
 *	gather   keys from the pages; the time that ten more of them add
 *	expand   the product that makes keys and values of them, in one piece
 *	attend   attention; the time that ten more of them add
 *
 * Layers take turns, each with its own cache and, of decodes, its own weights, so that they exceed
 * any L2. The floor is the larger of two times: what has to be read once, at a device copy's
 * bandwidth, operations at the rate of a large product.
 */
#include "tests/bench/latent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/mla/mla.h"
#include "attention/mla/mla_prompt.h"
#include "daemon/model/model.h"
#include "tests/bench/scene.h"

#define RUNS_MIN 16u
#define PROMPT_RUNS 4u
#define MORE 10u
#define FLOOR                                                                                      \
	"cached rows and weights once at the bandwidth of a device copy, or its operations at "    \
	"the rate of a large product, whichever takes longer"
#define NO_SPACE "the device has no space for it"

enum part { ATTEND, LAYER, PLAN, ABSORB, EXPAND, GATHER, N_PARTS };
static const char *const names[N_PARTS] = {
	"attend", "layer", "plan", "absorb", "expand", "gather"};

struct latent_bench {
	const struct bench_options *options;
	struct results *results;
	struct model_error error;
	struct probe probe;
	struct attention_config heads;
};

/* ---- whose sizes ---- */

bool latent_is_named(const struct bench_options *options)
{
	return strcmp(options->attention, attention_mla.name) == 0 ||
	       strcmp(options->attention, attention_mla_planned.name) == 0;
}

/* Of the model that the command line names: 0, and heads 0 if none is named or it is not latent. */
static int latent_sizes(const struct bench_options *options, uint32_t *ret_heads,
	struct attention_latent *ret, struct model_error *error)
{
	struct model_config config;

	*ret_heads = 0;
	if (!options->model_named)
		return 0;
	int rc = model_config_load(options->model_dir, &config, error);
	if (rc)
		return rc;
	*ret_heads = config.latent.rank ? config.n_heads : 0;
	*ret = config.latent;
	model_config_deinit(&config);
	return 0;
}

bool latent_is_meant(const struct bench_options *options)
{
	struct attention_latent latent;
	struct model_error error;
	uint32_t heads;

	return latent_is_named(options) ||
	       (strcmp(options->attention, "auto") == 0 &&
		       latent_sizes(options, &heads, &latent, &error) == 0 && heads);
}

/* What is given, else the model's, else DeepSeek-V2-Lite's. */
static int latent_heads(struct latent_bench *bench)
{
	const struct bench_options *o = bench->options;
	struct attention_config *c = &bench->heads;
	int rc = latent_sizes(o, &c->n_heads, &c->latent, &bench->error);

	if (rc)
		return rc;
	if (!c->n_heads) {
		c->n_heads = 16;
		c->latent = (struct attention_latent){.rank = 512, .nope = 128, .rope = 64, .v = 128};
	}
	c->n_heads = o->heads ? o->heads : c->n_heads;
	c->latent.rank = o->rank ? o->rank : c->latent.rank;
	c->latent.rope = o->rope ? o->rope : c->latent.rope;
	c->n_kv_heads = 1;
	c->head_dim = c->latent.rank + c->latent.rope;
	c->page_tokens = o->page_tokens;
	c->scale = 1.0f / sqrtf((float)(c->latent.nope + c->latent.rope));
	return 0;
}

/* The one that `auto` chooses for latent attention. */
static const struct attention_backend *latent_backend(const struct bench_options *options)
{
	return latent_is_named(options) ? attention_find(options->attention) : &attention_mla_planned;
}

static void latent_row(struct latent_bench *bench, const struct scene *s, enum part part,
	struct results_cost cost)
{
	struct results *results = bench->results;

	results_row(results);
	results_text(results, "backend", NULL, s->backend->name);
	results_count(results, "heads", NULL, s->config.n_heads);
	results_count(results, "rank", NULL, s->config.latent.rank);
	results_count(results, "rope", NULL, s->config.latent.rope);
	results_text(results, "part", "PART", names[part]);
	results_count(results, "batch", "BATCH", s->n_rows);
	results_count(results, "query", "QUERY", s->n_query);
	results_count(results, "context", "CONTEXT", s->context);
	results_cost(results, &bench->probe.rates, &cost);
	results_floor(results, FLOOR);
	results_note(results, isfinite(cost.seconds) ? NULL : NO_SPACE);
}

/* ---- decodes ---- */

struct decode {
	struct scene scene;
	const struct mla_kernels *kernels;
	struct mla_args args; /* of a layer; its cache to be set */
	uint64_t weight_bytes;
	uint32_t n_weights, n_runs;
	char *weights;
	enum part part;
	bool planned;
};

static int decode_take_workspace(struct decode *d)
{
	struct scene *s = &d->scene;
	struct arena arena = {0};
	struct mla_workspace work;
	void *memory;

	mla_workspace_carve(&s->config, d->kernels, d->planned, &arena, &work);
	int rc = probe_take(s->probe, arena.used, s->config.kv_dtype, &memory);
	if (rc)
		return rc;
	arena = (struct arena){.base = memory, .size = arena.used};
	mla_workspace_carve(&s->config, d->kernels, d->planned, &arena, &d->args.work);
	return 0;
}

static void decode_fill_args(struct decode *d)
{
	const struct scene *s = &d->scene;
	const struct attention_config *c = &s->config;

	d->args = (struct mla_args){
		.q = s->q,
		.work = d->args.work,
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
		.sizes = mla_sizes(c, d->kernels, c->max_tokens),
		.scale = c->scale,
	};
}

static int decode_init(struct decode *d, struct model_error *error)
{
	struct scene *s = &d->scene;
	const struct attention_latent *l = &s->config.latent;
	uint64_t heads = s->config.n_heads;
	int rc = s->backend->check(&s->config, error->text, sizeof(error->text));

	if (!rc)
		rc = scene_take(s, heads * (l->nope + l->rope), heads * l->v);
	if (!rc)
		rc = probe_take(s->probe, d->weight_bytes * d->n_weights, s->config.kv_dtype,
			&d->weights);
	if (!rc)
		rc = decode_take_workspace(d);
	if (rc)
		return rc;
	decode_fill_args(d);
	return scene_build(s);
}

static struct weight decode_weight(const struct decode *d, uint32_t i)
{
	const struct attention_config *c = &d->scene.config;

	return (struct weight){
		.data = d->weights + i % d->n_weights * d->weight_bytes,
		.dtype = c->kv_dtype,
		.rows = c->n_heads * (c->latent.nope + c->latent.v),
		.cols = c->latent.rank,
	};
}

static int decode_queue_product(const struct decode *d, uint32_t i)
{
	const struct scene *s = &d->scene;
	const struct attention_latent *l = &s->config.latent;
	struct op_head_gemm a = {
		.x = s->q,
		.w = decode_weight(d, i),
		.y = d->args.work.latent,
		.x_stride = d->args.q_stride,
		.x_head_stride = l->nope + l->rope,
		.y_stride = s->config.n_heads * l->rank,
		.y_head_stride = l->rank,
		.head_rows = l->nope + l->v,
		.head_n = l->nope,
		.n_rows = d->args.n_tokens,
		.n_heads = s->config.n_heads,
		.transposed = true,
	};

	if (d->part == EXPAND) {
		a.x = d->args.work.latent;
		a.y = s->out;
		a.x_stride = a.y_stride;
		a.x_head_stride = a.y_head_stride;
		a.y_stride = s->config.n_heads * l->v;
		a.y_head_stride = l->v;
		a.head_first = l->nope;
		a.head_n = l->v;
		a.transposed = false;
	}
	return s->probe->device->kernels->head_gemm(s->probe->stream, &a);
}

static int decode_queue_one(struct decode *d, uint32_t i)
{
	struct scene *s = &d->scene;
	struct weight weight = decode_weight(d, i);
	uint32_t layer = i % s->config.n_layers;

	d->args.kv = s->kv + layer * s->layer_bytes;
	if (d->part == ABSORB || d->part == EXPAND)
		return decode_queue_product(d, i);
	if (d->part == PLAN)
		return d->kernels->plan(s->probe->stream, &d->args);
	if (d->part == LAYER)
		return s->backend->run(s->metadata, s->probe->stream,
			&(struct attention_args){
				.layer = layer,
				.q = s->q,
				.q_stride = d->args.q_stride,
				.kv = d->args.kv,
				.out = s->out,
				.kv_b = &weight,
			});
	int rc = d->kernels->split(s->probe->stream, &d->args, d->planned);
	return rc ? rc : d->kernels->merge(s->probe->stream, &d->args, d->planned);
}

static int decode_queue(void *arg)
{
	struct decode *d = arg;
	int rc = 0;

	for (uint32_t i = 0; i < d->n_runs && !rc; i++)
		rc = decode_queue_one(d, i);
	return rc;
}

/* What a part reads and writes once, and computes. */
static struct results_cost decode_cost(const struct decode *d, enum part part)
{
	const struct scene *s = &d->scene;
	const struct attention_latent *l = &s->config.latent;
	double width = dtype_bytes(s->config.kv_dtype);
	double heads = (double)s->config.max_tokens * s->config.n_heads;
	double keys = (double)s->n_rows * s->context, weights = (double)d->weight_bytes;
	double products = heads * l->rank * 2; /* operations a column */
	double attend_flop = keys * s->n_query * s->config.n_heads * (2.0 * l->rank + l->rope) * 2;
	double cache = keys * (l->rank + l->rope) * width;

	if (part == PLAN)
		return (struct results_cost){.bytes = 28.0 * s->n_rows};
	if (part == ATTEND)
		return (struct results_cost){.bytes = cache, .flop = attend_flop};
	if (part == LAYER)
		return (struct results_cost){
			.bytes = cache + weights, .flop = attend_flop + products * (l->nope + l->v)};
	double wide = part == EXPAND ? l->v : l->nope;
	return (struct results_cost){
		.bytes = weights / (l->nope + l->v) * wide + heads * (l->rank + wide) * width,
		.flop = products * wide};
}

static int decode_measure(struct latent_bench *bench, struct decode *d, bool products)
{
	struct scene *s = &d->scene;

	for (uint32_t part = ATTEND; part <= EXPAND; part++) {
		struct results_cost cost = decode_cost(d, (enum part)part);
		bool is_product = part == ABSORB || part == EXPAND;
		uint32_t period = is_product ? d->n_weights : s->config.n_layers;

		if ((part == PLAN && !d->planned) || (is_product && !products))
			continue;
		d->part = (enum part)part;
		d->n_runs = period < RUNS_MIN ? RUNS_MIN : period;
		cost.seconds = NAN;
		/* the plan that attention goes by; a layer's run has its own */
		int rc = s->metadata && d->planned ? d->kernels->plan(s->probe->stream, &d->args) : 0;
		if (!rc && s->metadata)
			rc = probe_time(
				s->probe, true, decode_queue, d, d->n_runs, &cost.seconds);
		if (rc)
			return rc;
		latent_row(bench, s, d->part, cost);
	}
	return 0;
}

/* ---- prompts ---- */

/* How often the parts are queued, and the device's own. */
static struct {
	const struct mla_prompt_kernels *kernels;
	uint32_t n_gathers, n_attends;
} repeat;

static int prompt_gather(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	int rc = 0;

	for (uint32_t i = 0; i < repeat.n_gathers && !rc; i++)
		rc = repeat.kernels->gather(state, stream, a);
	return rc;
}

static int prompt_attend(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	int rc = 0;

	for (uint32_t i = 0; i < repeat.n_attends && !rc; i++)
		rc = repeat.kernels->attend(state, stream, a);
	return rc;
}

struct prompt {
	struct scene *scene;
	struct mla_prompt *prompt;
	struct mla_prompt_row *rows;
	struct weight kv_b;
	void *latents, *expanded; /* of the product by itself */
	uint32_t next;            /* layer */
};

static int prompt_queue_layers(void *arg)
{
	struct prompt *p = arg;
	struct scene *s = p->scene;
	int rc = 0;

	for (uint32_t i = 0; i < PROMPT_RUNS && !rc; i++)
		rc = mla_prompt_run(p->prompt, s->probe->stream,
			&(struct attention_args){
				.q = s->q,
				.q_stride = s->config.n_heads *
					    (s->config.latent.nope + s->config.latent.rope),
				.kv = s->kv + p->next++ % s->config.n_layers * s->layer_bytes,
				.out = s->out,
				.kv_b = &p->kv_b,
			},
			s->inputs.block_table, p->rows, s->n_rows);
	return rc;
}

static int prompt_queue_products(void *arg)
{
	struct prompt *p = arg;
	struct scene *s = p->scene;
	int rc = 0;

	for (uint32_t i = 0; i < PROMPT_RUNS && !rc; i++)
		rc = s->probe->device->kernels->gemm(s->probe->stream,
			&(struct op_gemm){
				.x = p->latents,
				.w = p->kv_b,
				.y = p->expanded,
				.y_dtype = s->config.activation_dtype,
				.n_rows = s->n_rows * s->context,
			});
	return rc;
}

static int prompt_time(struct prompt *p, uint32_t n_gathers, uint32_t n_attends, double *ret)
{
	repeat.n_gathers = n_gathers;
	repeat.n_attends = n_attends;
	return probe_time(p->scene->probe, false, prompt_queue_layers, p, PROMPT_RUNS, ret);
}

static int prompt_take(struct prompt *p)
{
	struct scene *s = p->scene;
	const struct attention_latent *l = &s->config.latent;
	enum dtype dtype = s->config.activation_dtype;
	uint64_t heads = s->config.n_heads, keys = (uint64_t)s->n_rows * s->context;
	uint64_t wide = heads * (l->nope + l->v) * dtype_bytes(dtype);
	int rc = scene_take(s, heads * (l->nope + l->rope), heads * l->v);

	if (!rc)
		rc = probe_take(s->probe, wide * l->rank, dtype, &p->kv_b.data);
	if (!rc)
		rc = probe_take(s->probe, keys * l->rank * dtype_bytes(dtype), dtype, &p->latents);
	if (!rc)
		rc = probe_take(s->probe, keys * wide, dtype, &p->expanded);
	p->kv_b.dtype = dtype;
	p->kv_b.rows = s->config.n_heads * (l->nope + l->v);
	p->kv_b.cols = l->rank;
	for (uint32_t i = 0; i < s->n_rows; i++)
		p->rows[i] = (struct mla_prompt_row){i, i * s->n_query, s->n_query, s->context};
	return rc;
}

static int prompt_rows(struct latent_bench *bench, struct prompt *p)
{
	const struct scene *s = p->scene;
	const struct attention_latent *l = &s->config.latent;
	double n = s->n_query, keys = (double)s->n_rows * s->context, heads = s->config.n_heads;
	double pairs = s->n_rows * (n * (s->context - n) + n * (n + 1) / 2);
	double width = dtype_bytes(s->config.kv_dtype), wide = l->nope + l->v;
	struct results_cost all = {0}, gathered, expanded = {0}, attended;
	int rc = prompt_time(p, 1, 1, &all.seconds);

	gathered.bytes = 2 * keys * (l->rank + l->rope) * width;
	gathered.flop = 0;
	expanded.bytes = (keys * l->rank + keys * heads * wide + heads * wide * l->rank) * width;
	expanded.flop = keys * heads * wide * l->rank * 2;
	attended.bytes = keys * (heads * wide + l->rope) * width;
	attended.flop = pairs * heads * 2 * (l->nope + l->rope + l->v);
	all.bytes = keys * (l->rank + l->rope) * width;
	all.flop = expanded.flop + attended.flop;
	if (!rc)
		rc = prompt_time(p, 1 + MORE, 1, &gathered.seconds);
	if (!rc)
		rc = prompt_time(p, 1, 1 + MORE, &attended.seconds);
	if (!rc)
		rc = probe_time(s->probe, false, prompt_queue_products, p, PROMPT_RUNS,
			&expanded.seconds);
	if (rc)
		return rc;
	gathered.seconds = (gathered.seconds - all.seconds) / MORE;
	attended.seconds = (attended.seconds - all.seconds) / MORE;
	latent_row(bench, s, LAYER, all);
	latent_row(bench, s, GATHER, gathered);
	latent_row(bench, s, EXPAND, expanded);
	latent_row(bench, s, ATTEND, attended);
	return 0;
}

static int prompt_measure(struct latent_bench *bench, struct scene *s)
{
	CLEANUP(cleanup_free) struct mla_prompt_row *rows = calloc(s->n_rows, sizeof(*rows));
	struct prompt p = {.scene = s, .rows = rows};
	struct mla_prompt_kernels kernels;

	repeat.kernels = mla_prompt_kernels_for(s->probe->info.kind);
	if (!rows || !repeat.kernels)
		return rows ? -ENOTSUP : -ENOMEM;
	kernels = *repeat.kernels;
	kernels.gather = prompt_gather;
	kernels.attend = prompt_attend;
	repeat.n_gathers = repeat.n_attends = 1;
	int rc = prompt_take(&p);
	if (!rc)
		rc = mla_prompt_new(s->probe->device, &s->config, &kernels, &p.prompt);
	if (!rc)
		rc = mla_prompt_load(p.prompt, s->probe->stream, &p.kv_b);
	if (!rc)
		rc = prompt_rows(bench, &p);
	s->probe->device->ops->stream_sync(s->probe->stream);
	mla_prompt_free(p.prompt);
	return rc;
}

/* ---- both ---- */

static int latent_measure(struct latent_bench *bench, uint32_t n_rows, uint32_t n_query,
	uint32_t context, bool products)
{
	struct decode d = {.kernels = mla_kernels_for(bench->probe.info.kind)};
	struct scene *s = &d.scene;
	const struct attention_latent *l = &bench->heads.latent;
	uint32_t mark = bench->probe.n_held;

	s->probe = &bench->probe;
	s->backend = latent_backend(bench->options);
	s->n_rows = n_rows;
	s->n_query = n_query < context ? n_query : context;
	s->context = context;
	scene_size(s, &bench->heads);
	/* of latent attention, activations are what the cache is */
	s->config.activation_dtype = s->config.kv_dtype;
	d.planned = s->backend == &attention_mla_planned;
	d.weight_bytes = (uint64_t)s->config.n_heads * (l->nope + l->v) * l->rank *
			 dtype_bytes(s->config.kv_dtype);
	d.n_weights = scene_copies(s, d.weight_bytes);
	int rc = 0;
	if (s->n_query > MLA_MAX_UNIFORM_QUERY) {
		rc = scene_has_no_space(s) ? -ENOMEM : prompt_measure(bench, s);
	} else {
		if (!scene_has_no_space(s))
			rc = decode_init(&d, &bench->error);
		if (!rc)
			rc = decode_measure(bench, &d, products);
	}
	scene_deinit(s);
	probe_release(&bench->probe, mark);
	return rc;
}

static int latent_all(struct latent_bench *bench)
{
	const struct bench_options *o = bench->options;
	const struct attention_latent *l = &bench->heads.latent;
	int rc = probe_rates(&bench->probe);

	results_machine(bench->results, bench->probe.info.name, NULL, NULL);
	results_head(bench->results, "%s, %u heads of %u + %u and %u, rank %u, pages of %u tokens",
		latent_backend(o)->name, bench->heads.n_heads, l->nope, l->rope, l->v, l->rank,
		bench->heads.page_tokens);
	for (uint32_t i = 0; i < o->batches.n * o->contexts.n && !rc; i++)
		rc = latent_measure(bench, o->batches.at[i / o->contexts.n], o->query,
			o->contexts.at[i % o->contexts.n], i % o->contexts.n == 0);
	for (uint32_t i = 0; i < o->prompts.n && !rc; i++)
		rc = latent_measure(bench, 1, o->prompts.at[i], o->prompts.at[i], false);
	return rc;
}

int bench_latent(const struct bench_options *options, struct results *results)
{
	struct latent_bench bench = {.options = options, .results = results};
	int rc = latent_heads(&bench);

	if (!rc)
		rc = probe_open(&bench.probe, options->device, bench.error.text,
			sizeof(bench.error.text));
	if (!rc)
		rc = latent_all(&bench);
	probe_close(&bench.probe);
	return bench_fail_device(rc, "attention", bench.error.text);
}
