/* SPDX-License-Identifier: MIT */
/*
 * Latent attention of a decode step, part by part and as a whole, for each batch and context:
 *
 *	attend   both stages of a layer, the merge among them
 *	layer    a layer as the backend runs it: absorb, both stages, expand
 *	plan     the planner, once a step, where the backend has one
 *	absorb   the queries' product a head, without attention; for each batch
 *	expand   the values'
 *
 * Layers take turns, each with its own cache and weights, so that they exceed any L2; pages lie
 * scattered, contents are random. The floor is the larger of two times: what has to be read once, at a
 * device copy's bandwidth, operations at the rate of a large product.
 */
#include "tests/bench/attention_mla.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/mla/mla.h"
#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/report.h"
#include "daemon/model/error.h"
#include "daemon/model/model.h"

#define PAGE_TOKENS 16u
#define COLD_BYTES (768ull << 20)
#define COLD_BYTES_HOST (1ull << 20)
#define LAYERS_MAX 64u
#define RUNS_MIN 16u
#define FLOOR                                                                                      \
	"cached rows and weights once at the bandwidth of a device copy, or its operations at "    \
	"the rate of a large product, whichever takes longer"
#define NO_ROOM "the device has no room for it"

enum part { ATTEND, LAYER, PLAN, ABSORB, EXPAND, N_PARTS };
static const char *const part_names[N_PARTS] = {"attend", "layer", "plan", "absorb", "expand"};

#define ROWS_MAX (BENCH_LIST_MAX * BENCH_LIST_MAX * N_PARTS)

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"backend", NULL, TABLE_TEXT},
	{"heads", NULL, TABLE_COUNT},
	{"rank", NULL, TABLE_COUNT},
	{"rope", NULL, TABLE_COUNT},
	{"part", "PART", TABLE_TEXT},
	{"batch", "BATCH", TABLE_COUNT},
	{"context", "CONTEXT", TABLE_COUNT},
	REPORT_COST_COLUMNS,
	REPORT_COLUMNS,
};

struct mla_row {
	enum part part;
	uint32_t batch, context;
	double seconds, flop;
	uint64_t bytes;
	bool no_room;
};

struct mla_facts {
	uint32_t heads;
	struct attention_latent latent;
	char device[64];
	struct rates rates;
	struct mla_row rows[ROWS_MAX];
	uint32_t n_rows;
};

struct mla_work {
	const struct bench_options *options;
	struct mla_facts *facts;
};

/* ---- whose sizes ---- */

bool bench_is_mla(const struct bench_options *options)
{
	return strcmp(options->attention, attention_mla.name) == 0 ||
	       strcmp(options->attention, attention_mla_planned.name) == 0;
}

/* The one that `auto` chooses for latent attention. */
static const char *backend_of(const struct bench_options *options)
{
	return bench_is_mla(options) ? options->attention : attention_mla_planned.name;
}

/* Of the model that the command line names: 0, and heads 0 if none is named or it is not latent. */
static int model_sizes(const struct bench_options *options, uint32_t *ret_heads,
	struct attention_latent *ret, struct model_error *error)
{
	struct model_config config;
	int rc;

	*ret_heads = 0;
	if (!options->model_named)
		return 0;
	rc = model_config_load(options->model_dir, &config, error);
	if (rc)
		return rc;
	*ret_heads = config.latent.rank ? config.n_heads : 0;
	*ret = config.latent;
	model_config_deinit(&config);
	return 0;
}

bool bench_means_mla(const struct bench_options *options)
{
	struct attention_latent latent;
	struct model_error error;
	uint32_t heads;

	return strcmp(options->attention, "auto") == 0 &&
	       model_sizes(options, &heads, &latent, &error) == 0 && heads;
}

/* What is given, else the model's, else DeepSeek-V2-Lite's. */
static int find_sizes(
	const struct bench_options *o, struct mla_facts *facts, struct model_error *error)
{
	int rc = model_sizes(o, &facts->heads, &facts->latent, error);

	if (rc)
		return rc;
	if (!facts->heads) {
		facts->heads = 16;
		facts->latent = (struct attention_latent){
			.rank = 512, .nope = 128, .rope = 64, .v = 128};
	}
	facts->heads = o->heads ? o->heads : facts->heads;
	facts->latent.rank = o->rank ? o->rank : facts->latent.rank;
	facts->latent.rope = o->rope ? o->rope : facts->latent.rope;
	return 0;
}

/* ---- one batch ---- */

struct scene {
	struct probe *probe;
	const struct mla_kernels *kernels;
	const struct attention_backend *backend;
	struct attention_config config;
	struct step_inputs inputs;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	struct mla_args args; /* of a layer; its cache to be set */
	uint32_t *lens;       /* [2 batch] query, then sequence */
	uint64_t kv_bytes, weight_bytes;
	uint32_t n_layers, n_weights, n_runs;
	void *kv, *weights, *q, *out, *tables, *memory;
	enum part part;
	bool planned;
};

static void size_up(struct scene *s, const struct mla_facts *facts, uint32_t batch, uint32_t context)
{
	const struct attention_latent *l = &facts->latent;
	uint64_t cold = s->probe->is_host ? COLD_BYTES_HOST : COLD_BYTES;
	uint32_t per_row = (context + PAGE_TOKENS - 1) / PAGE_TOKENS, width = l->rank + l->rope;
	enum dtype dtype = s->probe->info.kv_dtype;

	s->config = (struct attention_config){
		.n_heads = facts->heads,
		.n_kv_heads = 1,
		.head_dim = width,
		.latent = *l,
		.scale = 1.0f / sqrtf((float)(l->nope + l->rope)),
		.page_tokens = PAGE_TOKENS,
		.max_rows = batch,
		.max_tokens = batch,
		.max_pages = per_row,
		.max_seq_len = context,
		.max_decode_query = 1,
		.activation_dtype = dtype,
		.kv_dtype = dtype,
		.n_kv_pages = batch * per_row + 1,
	};
	s->kv_bytes = (uint64_t)s->config.n_kv_pages * PAGE_TOKENS * width * dtype_bytes(dtype);
	s->weight_bytes =
		(uint64_t)facts->heads * (l->nope + l->v) * l->rank * dtype_bytes(dtype);
	s->n_layers = cold / s->kv_bytes < 2 ? 2 : (uint32_t)(cold / s->kv_bytes);
	s->n_layers = s->n_layers > LAYERS_MAX ? LAYERS_MAX : s->n_layers;
	s->n_weights = cold / s->weight_bytes < 2 ? 2 : (uint32_t)(cold / s->weight_bytes);
	s->n_weights = s->n_weights > LAYERS_MAX ? LAYERS_MAX : s->n_weights;
	s->config.n_layers = s->n_layers;
}

/* Pages in no order; every row's lengths. */
static int fill_tables(struct scene *s, uint32_t batch, uint32_t context)
{
	const struct device_ops *ops = s->probe->device->ops;
	uint32_t n = batch * s->config.max_pages, n_all = n + 2 * batch + 1, seed = 1;
	int32_t *all = malloc(n_all * sizeof(*all));
	int rc;

	if (!all)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		all[i] = (int32_t)(i + 1);
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = (seed = seed * 1664525u + 1013904223u) % i;
		int32_t page = all[i - 1];

		all[i - 1] = all[j];
		all[j] = page;
	}
	for (uint32_t i = 0; i < batch; i++)
		all[n + i] = (int32_t)context;
	for (uint32_t i = 0; i <= batch; i++)
		all[n + batch + i] = (int32_t)i;
	rc = ops->mem_alloc(s->probe->device, n_all * sizeof(*all), &s->tables);
	if (!rc)
		rc = ops->copy(s->probe->device, s->tables, all, n_all * sizeof(*all));
	free(all);
	s->inputs = (struct step_inputs){
		.max_rows = batch,
		.max_tokens = batch,
		.max_pages = s->config.max_pages,
		.page_tokens = PAGE_TOKENS,
		.block_table = s->tables,
		.seq_lens = (int32_t *)s->tables + n,
		.query_start = (int32_t *)s->tables + n + batch,
	};
	return rc;
}

static int take_buffers(struct scene *s, uint32_t batch)
{
	const struct attention_latent *l = &s->config.latent;
	enum dtype dtype = s->config.kv_dtype;
	uint64_t heads = (uint64_t)batch * s->config.n_heads * dtype_bytes(dtype);
	int rc = probe_random(s->probe, s->kv_bytes * s->n_layers, dtype, &s->kv);

	if (!rc)
		rc = probe_random(s->probe, s->weight_bytes * s->n_weights, dtype, &s->weights);
	if (!rc)
		rc = probe_random(s->probe, heads * (l->nope + l->rope), dtype, &s->q);
	return rc ? rc : s->probe->device->ops->mem_alloc(s->probe->device, heads * l->v, &s->out);
}

static int take_workspace(struct scene *s)
{
	struct arena arena = {0};
	struct mla_workspace work;
	int rc;

	mla_workspace_carve(&s->config, s->kernels, s->planned, &arena, &work);
	rc = probe_random(s->probe, arena.used, s->config.kv_dtype, &s->memory);
	if (rc)
		return rc;
	arena = (struct arena){.base = s->memory, .size = arena.used};
	mla_workspace_carve(&s->config, s->kernels, s->planned, &arena, &s->args.work);
	return 0;
}

static void args_fill(struct scene *s, uint32_t batch)
{
	const struct attention_config *c = &s->config;
	struct mla_workspace work = s->args.work;

	s->args = (struct mla_args){
		.q = s->q,
		.work = work,
		.query_start = s->inputs.query_start,
		.seq_lens = s->inputs.seq_lens,
		.block_table = s->inputs.block_table,
		.q_stride = c->n_heads * (c->latent.nope + c->latent.rope),
		.max_pages = c->max_pages,
		.max_seq_len = c->max_seq_len,
		.n_rows = batch,
		.n_tokens = batch,
		.step_tokens = batch,
		.n_heads = c->n_heads,
		.rank = c->latent.rank,
		.nope = c->latent.nope,
		.rope = c->latent.rope,
		.page_tokens = c->page_tokens,
		.n_pages = c->n_kv_pages,
		.sizes = mla_sizes(c, s->kernels, batch),
		.scale = c->scale,
	};
}

static void scene_deinit(struct scene *s)
{
	const struct device_ops *ops = s->probe->device->ops;

	if (s->metadata)
		s->backend->metadata_free(s->metadata);
	if (s->manager)
		s->backend->manager_free(s->manager);
	ops->mem_free(s->probe->device, s->memory);
	ops->mem_free(s->probe->device, s->out);
	ops->mem_free(s->probe->device, s->q);
	ops->mem_free(s->probe->device, s->weights);
	ops->mem_free(s->probe->device, s->kv);
	ops->mem_free(s->probe->device, s->tables);
	free(s->lens);
}

static int build(struct scene *s, uint32_t batch, uint32_t context)
{
	s->lens = malloc(2 * sizeof(*s->lens) * batch);
	if (!s->lens)
		return -ENOMEM;
	for (uint32_t i = 0; i < batch; i++) {
		s->lens[i] = 1;
		s->lens[batch + i] = context;
	}
	return s->backend->build(s->metadata,
		&(struct attention_batch){
			.phase = ATTENTION_CAPTURE,
			.n_rows = batch,
			.n_tokens = batch,
			.padded_rows = batch,
			.padded_tokens = batch,
			.max_query = 1,
			.query_lens = s->lens,
			.seq_lens = s->lens + batch,
		},
		s->probe->stream);
}

static int scene_init(struct scene *s, uint32_t batch, uint32_t context, struct model_error *error)
{
	int rc = s->backend->check(&s->config, error->text, sizeof(error->text));

	if (!rc)
		rc = fill_tables(s, batch, context);
	if (!rc)
		rc = take_buffers(s, batch);
	if (!rc)
		rc = take_workspace(s);
	if (!rc)
		rc = s->backend->manager_new(s->probe->device, &s->config, &s->inputs, &s->manager);
	if (!rc)
		rc = s->backend->metadata_new(s->manager, &s->metadata);
	if (rc)
		return rc;
	args_fill(s, batch);
	return build(s, batch, context);
}

/* ---- parts ---- */

static struct weight weight_of(const struct scene *s, uint32_t i)
{
	return (struct weight){
		.data = (char *)s->weights + (i % s->n_weights) * s->weight_bytes,
		.dtype = s->config.kv_dtype,
		.rows = s->config.n_heads * (s->config.latent.nope + s->config.latent.v),
		.cols = s->config.latent.rank,
	};
}

static int queue_product(const struct scene *s, uint32_t i)
{
	const struct attention_latent *l = &s->config.latent;
	struct op_head_gemm a = {
		.x = s->q,
		.w = weight_of(s, i),
		.y = s->args.work.latent,
		.x_stride = s->args.q_stride,
		.x_head_stride = l->nope + l->rope,
		.y_stride = s->config.n_heads * l->rank,
		.y_head_stride = l->rank,
		.head_rows = l->nope + l->v,
		.head_n = l->nope,
		.n_rows = s->args.n_tokens,
		.n_heads = s->config.n_heads,
		.transposed = true,
	};

	if (s->part == EXPAND) {
		a.x = s->args.work.latent;
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

static int queue_one(struct scene *s, uint32_t i)
{
	struct weight weight = weight_of(s, i);
	int rc;

	s->args.kv = (char *)s->kv + (i % s->n_layers) * s->kv_bytes;
	if (s->part == ABSORB || s->part == EXPAND)
		return queue_product(s, i);
	if (s->part == PLAN)
		return s->kernels->plan(s->probe->stream, &s->args);
	if (s->part == LAYER)
		return s->backend->run(s->metadata, s->probe->stream,
			&(struct attention_args){
				.layer = i % s->n_layers,
				.q = s->q,
				.q_stride = s->args.q_stride,
				.kv = s->args.kv,
				.out = s->out,
				.kv_b = &weight,
			});
	rc = s->kernels->split(s->probe->stream, &s->args, s->planned);
	return rc ? rc : s->kernels->merge(s->probe->stream, &s->args, s->planned);
}

static int queue(void *arg)
{
	struct scene *s = arg;
	int rc = 0;

	for (uint32_t i = 0; i < s->n_runs && !rc; i++)
		rc = queue_one(s, i);
	return rc;
}

/* What a part reads and writes once, and computes. */
static void cost(const struct scene *s, struct mla_row *row)
{
	const struct attention_latent *l = &s->config.latent;
	uint64_t width = dtype_bytes(s->config.kv_dtype), heads = row->batch * s->config.n_heads;
	uint64_t keys = (uint64_t)row->batch * row->context;
	double pairs = (double)keys * s->config.n_heads;

	row->bytes = row->part == PLAN ? (uint64_t)row->batch * 28 : 0;
	if (row->part == ATTEND || row->part == LAYER) {
		row->bytes += keys * (l->rank + l->rope) * width;
		row->flop += pairs * (2 * l->rank + l->rope) * 2;
	}
	if (row->part == LAYER)
		row->bytes += s->weight_bytes;
	uint32_t wide = row->part == EXPAND ? l->v : l->nope;
	if (row->part == ABSORB || row->part == EXPAND)
		row->bytes += s->weight_bytes / (l->nope + l->v) * wide +
			      heads * (l->rank + wide) * width;
	if (row->part == LAYER)
		wide = l->nope + l->v;
	if (row->part >= LAYER && row->part != PLAN)
		row->flop += (double)heads * l->rank * wide * 2;
}

static int measure(struct scene *s, struct mla_row *row)
{
	uint32_t period = row->part == ABSORB || row->part == EXPAND ? s->n_weights : s->n_layers;
	int rc;

	s->part = row->part;
	s->n_runs = period < RUNS_MIN ? RUNS_MIN : period;
	cost(s, row);
	/* the plan that attention goes by; a layer's run has its own */
	rc = s->planned ? s->kernels->plan(s->probe->stream, &s->args) : 0;
	return rc ? rc : probe_time(s->probe, true, queue, s, s->n_runs, &row->seconds);
}

static int run_batch(struct mla_work *work, struct probe *probe, uint32_t batch, uint32_t context,
	bool first, struct model_error *error)
{
	struct scene s = {.probe = probe, .kernels = mla_kernels_for(probe->info.kind)};
	struct mla_facts *facts = work->facts;
	struct device_info now;
	int rc = probe->device->ops->info(probe->device, &now);

	s.backend = attention_find(backend_of(work->options));
	s.planned = s.backend == &attention_mla_planned;
	size_up(&s, facts, batch, context);
	bool no_room = !rc && s.kv_bytes * s.n_layers > now.free_bytes / 2;
	if (!rc && !no_room)
		rc = scene_init(&s, batch, context, error);
	for (uint32_t part = 0; part < N_PARTS && !rc; part++) {
		struct mla_row *row = &facts->rows[facts->n_rows];

		if ((part == PLAN && !s.planned) || (part >= ABSORB && !first))
			continue;
		*row = (struct mla_row){
			.part = part, .batch = batch, .context = context, .no_room = no_room};
		facts->n_rows++;
		if (!no_room)
			rc = measure(&s, row);
	}
	scene_deinit(&s);
	return rc;
}

/* ---- all of them ---- */

static int run_all(struct mla_work *work, struct probe *probe, struct model_error *error)
{
	const struct bench_options *o = work->options;
	int rc = probe_rates(probe);

	work->facts->rates = probe->rates;
	snprintf(work->facts->device, sizeof(work->facts->device), "%s", probe->info.name);
	for (uint32_t i = 0; i < o->batches.n * o->contexts.n && !rc; i++)
		rc = run_batch(work, probe, o->batches.at[i / o->contexts.n],
			o->contexts.at[i % o->contexts.n], i % o->contexts.n == 0, error);
	return rc;
}

static int work_mla(void *arg, int fd)
{
	struct mla_work *work = arg;
	struct model_error error = {""};
	struct probe probe = {0};
	int rc = find_sizes(work->options, work->facts, &error);

	(void)fd;
	if (!rc)
		rc = probe_open(&probe, work->options->device, error.text, sizeof(error.text));
	if (!rc)
		rc = run_all(work, &probe, &error);
	rc = report_outcome("attention", rc, error.text);
	probe_close(&probe);
	return rc;
}

static void fill(
	struct table *table, const struct target *target, const void *userdata, uint32_t i)
{
	const struct mla_work *work = userdata;
	const struct mla_facts *facts = work->facts;
	const struct mla_row *row = &facts->rows[i];

	table_row(table);
	table_set_text(table, "bench", "attention");
	table_set_text(table, "backend", backend_of(work->options));
	table_set_count(table, "heads", facts->heads);
	table_set_count(table, "rank", facts->latent.rank);
	table_set_count(table, "rope", facts->latent.rope);
	table_set_text(table, "part", part_names[row->part]);
	table_set_count(table, "batch", row->batch);
	table_set_count(table, "context", row->context);
	report_cost(table, &facts->rates,
		&(struct report_cost){
			.bytes = row->bytes,
			.flop = row->flop,
			.seconds = row->no_room ? NAN : row->seconds,
		});
	report_common(table, target, FLOOR, row->no_room ? NO_ROOM : NULL);
}

static int print(const struct mla_work *work)
{
	const struct mla_facts *facts = work->facts;
	const struct attention_latent *l = &facts->latent;
	char line[160];
	bool no_room = false;

	for (uint32_t i = 0; i < facts->n_rows; i++)
		no_room = no_room || facts->rows[i].no_room;
	snprintf(line, sizeof(line), "%s, %u heads of %u + %u and %u, rank %u, pages of %u tokens",
		backend_of(work->options), facts->heads, l->nope, l->rope, l->v, l->rank, PAGE_TOKENS);
	return report_costs(&(struct report_costs){
		.bench = "attention",
		.device = facts->device,
		.floor = FLOOR,
		.line = line,
		.note = no_room ? "a dash: " NO_ROOM : NULL,
		.rates = &facts->rates,
		.columns = columns,
		.n_columns = sizeof(columns) / sizeof(columns[0]),
		.n_rows = facts->n_rows,
		.fill = fill,
		.userdata = work,
	}, work->options->json);
}

int bench_attention_mla(const struct bench_options *options)
{
	struct mla_facts *facts = child_memory(sizeof(*facts));
	struct mla_work work = {options, facts};
	int r = facts ? 0 : -ENOMEM;

	if (r == 0)
		r = child_run("attention", work_mla, &work, options->timeout_s);
	if (r == 0)
		r = print(&work);
	child_memory_free(facts, sizeof(*facts));
	return r;
}
