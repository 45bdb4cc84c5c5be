/* SPDX-License-Identifier: MIT */
/*
 * A model's attention, through the backend interface: decode steps for each batch and context, and
 * whole prompts. Layers take turns, so that their caches together exceed any L2; pages lie
 * scattered, contents are random. The floor is the larger of two times: keys and values once at a
 * device copy's bandwidth, operations at the rate of a large product; of what the mask lets be seen.
 * Beside it stands what the backend queues once a step for all layers: its plan.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "tests/bench/attention_mask.h"
#include "tests/bench/attention_mla.h"
#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/report.h"
#include "daemon/model/error.h"
#include "daemon/model/model.h"

#define PAGE_TOKENS 16u
#define COLD_BYTES (768ull << 20)
#define COLD_BYTES_HOST (1ull << 20)
#define LAYERS_MAX 64u
#define RUNS_MIN 8u
#define PLANS 8u /* in one measurement */
#define ROWS_MAX (BENCH_LIST_MAX * BENCH_LIST_MAX + BENCH_LIST_MAX)
#define FLOOR                                                                                      \
	"keys and values once at the bandwidth of a device copy, or its operations at the rate "   \
	"of a large product, whichever takes longer"
#define NO_ROOM "the device has no room for it"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"model", NULL, TABLE_TEXT},
	{"backend", NULL, TABLE_TEXT},
	{"mask", NULL, TABLE_TEXT},
	{"heads", NULL, TABLE_COUNT},
	{"kv_heads", NULL, TABLE_COUNT},
	{"head_dim", NULL, TABLE_COUNT},
	{"batch", "BATCH", TABLE_COUNT},
	{"query", "QUERY", TABLE_COUNT},
	{"context", "CONTEXT", TABLE_COUNT},
	REPORT_COST_COLUMNS,
	{"plan_s", "PLAN", TABLE_SECONDS},
	REPORT_COLUMNS,
};

struct attention_row {
	uint32_t batch, query, context;
	double seconds, plan_seconds;
	uint64_t bytes;
	double pairs; /* of tokens and what they see */
	bool no_room;
};

struct attention_facts {
	char device[64], backend[32];
	struct rates rates;
	uint32_t n_heads, n_kv_heads, head_dim;
	struct bench_mask mask;
	struct attention_row rows[ROWS_MAX];
	uint32_t n_rows;
};

struct attention_work {
	const struct bench_options *options;
	struct attention_facts *facts;
};

/* ---- one batch ---- */

struct scene {
	struct probe *probe;
	const struct bench_mask *mask;
	struct attention_config config;
	const struct attention_backend *backend;
	enum attention_support support;
	struct step_inputs inputs;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	struct attention_batch batch;
	uint32_t *lens;  /* [2 rows] query, then sequence */
	void *masks;     /* programs and words; NULL: nobody reads them */
	uint32_t n_runs; /* of layers, one after another */
	uint64_t layer_bytes;
	void *kv, *q, *out, *tables;
};

static void size_up(
	struct scene *s, const struct attention_facts *facts, const struct attention_row *row)
{
	uint64_t cold = s->probe->is_host ? COLD_BYTES_HOST : COLD_BYTES;
	uint32_t per_row = (row->context + PAGE_TOKENS - 1) / PAGE_TOKENS;
	uint32_t n_pages = row->batch * per_row + 1;
	uint64_t layers;

	s->layer_bytes = (uint64_t)n_pages * 2 * PAGE_TOKENS * facts->n_kv_heads * facts->head_dim *
			 dtype_bytes(s->probe->info.kv_dtype);
	layers = cold / s->layer_bytes;
	layers = layers < 2 ? 2 : layers > LAYERS_MAX ? LAYERS_MAX : layers;
	s->n_runs = layers < RUNS_MIN ? RUNS_MIN : (uint32_t)layers;
	s->config = (struct attention_config){
		.n_layers = (uint32_t)layers,
		.n_heads = facts->n_heads,
		.n_kv_heads = facts->n_kv_heads,
		.head_dim = facts->head_dim,
		.scale = 0.1f,
		.page_tokens = PAGE_TOKENS,
		.max_rows = row->batch,
		.max_tokens = row->batch * row->query,
		.max_pages = per_row,
		.max_seq_len = row->context,
		.max_decode_query = 1,
		.activation_dtype = s->probe->info.activation_dtype,
		.kv_dtype = s->probe->info.kv_dtype,
		.n_kv_pages = n_pages,
	};
}

/* Pages in no order; every row's lengths. */
static int fill_tables(struct scene *s, const struct attention_row *row)
{
	const struct device_ops *ops = s->probe->device->ops;
	uint32_t n = row->batch * s->config.max_pages, seed = 1;
	int32_t *table = malloc(n * sizeof(*table));
	int rc = table ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < n && !rc; i++)
		table[i] = (int32_t)(i + 1);
	for (uint32_t i = n; i > 1 && !rc; i--) {
		uint32_t j = (seed = seed * 1664525u + 1013904223u) % i;
		int32_t page = table[i - 1];

		table[i - 1] = table[j];
		table[j] = page;
	}
	if (!rc)
		rc = ops->copy(s->probe->device, s->inputs.block_table, table, n * sizeof(*table));
	for (uint32_t i = 0; i <= row->batch && !rc; i++) {
		int32_t start = (int32_t)(i * row->query);

		rc = ops->copy(s->probe->device, s->inputs.query_start + i, &start, sizeof(start));
	}
	if (!rc)
		rc = ops->copy(s->probe->device, s->inputs.seq_lens, s->lens + row->batch,
			row->batch * sizeof(*s->lens));
	free(table);
	return rc;
}

/* Every row's mask and every token's word, of a backend that honours them. */
static int take_masks(struct scene *s, const struct attention_row *row)
{
	const struct device_ops *ops = s->probe->device->ops;
	uint32_t n_tokens = s->config.max_tokens, first = row->context - row->query;
	/* words first, for their alignment; then programs, then each row's slot */
	size_t words = n_tokens * sizeof(uint64_t);
	size_t bytes = words + row->batch * (sizeof(struct slot_mask) + sizeof(int32_t));
	uint64_t *host = malloc(bytes);
	struct slot_mask *programs = (struct slot_mask *)(host + n_tokens);
	int32_t *slots = (int32_t *)(programs + row->batch);
	int rc = host ? ops->mem_alloc(s->probe->device, bytes, &s->masks) : -ENOMEM;

	if (rc) {
		free(host);
		return rc;
	}
	for (uint32_t t = 0; t < n_tokens; t++)
		host[t] = bench_mask_word(s->mask, first + t % row->query, row->context);
	for (uint32_t r = 0; r < row->batch; r++) {
		programs[r] = bench_mask_program(s->mask, row->context);
		slots[r] = (int32_t)r;
	}
	rc = ops->copy(s->probe->device, s->masks, host, bytes);
	s->inputs.max_slots = row->batch;
	s->inputs.mask_words = s->masks;
	s->inputs.slot_mask = (struct slot_mask *)((char *)s->masks + words);
	s->inputs.row_slot = (int32_t *)(s->inputs.slot_mask + row->batch);
	free(host);
	return rc;
}

static int take_inputs(struct scene *s, const struct attention_row *row)
{
	uint64_t rows = row->batch, pages = s->config.max_pages;
	int rc = s->probe->device->ops->mem_alloc(s->probe->device,
		(2 * rows + 1 + rows * pages + 256) * sizeof(int32_t), &s->tables);

	if (rc)
		return rc;
	s->inputs = (struct step_inputs){
		.max_rows = row->batch,
		.max_tokens = s->config.max_tokens,
		.max_pages = s->config.max_pages,
		.page_tokens = PAGE_TOKENS,
		.block_table = s->tables,
	};
	/* Each array begins where any vector load may. */
	s->inputs.seq_lens = s->inputs.block_table + (rows * pages + 63) / 64 * 64;
	s->inputs.query_start = s->inputs.seq_lens + (rows + 63) / 64 * 64;
	s->lens = malloc(2 * rows * sizeof(*s->lens));
	if (!s->lens)
		return -ENOMEM;
	for (uint32_t i = 0; i < row->batch; i++) {
		s->lens[i] = row->query;
		s->lens[row->batch + i] = row->context;
	}
	return fill_tables(s, row);
}

static int take_buffers(struct scene *s, const struct attention_row *row)
{
	uint64_t bytes = (uint64_t)s->config.max_tokens * s->config.n_heads * s->config.head_dim *
			 dtype_bytes(s->config.activation_dtype);
	int rc = probe_random(
		s->probe, s->layer_bytes * s->config.n_layers, s->config.kv_dtype, &s->kv);

	if (!rc)
		rc = probe_random(s->probe, bytes, s->config.activation_dtype, &s->q);
	if (!rc)
		rc = s->probe->device->ops->mem_alloc(s->probe->device, bytes, &s->out);
	s->batch = (struct attention_batch){
		.phase = ATTENTION_CAPTURE,
		.n_rows = row->batch,
		.n_tokens = s->config.max_tokens,
		.padded_rows = row->batch,
		.padded_tokens = s->config.max_tokens,
		.max_query = row->query,
		.query_lens = s->lens,
		.seq_lens = s->lens + row->batch,
	};
	return rc;
}

static void scene_deinit(struct scene *s)
{
	const struct device_ops *ops = s->probe->device->ops;

	if (s->metadata)
		s->backend->metadata_free(s->metadata);
	if (s->manager)
		s->backend->manager_free(s->manager);
	ops->mem_free(s->probe->device, s->out);
	ops->mem_free(s->probe->device, s->q);
	ops->mem_free(s->probe->device, s->kv);
	ops->mem_free(s->probe->device, s->masks);
	ops->mem_free(s->probe->device, s->tables);
	free(s->lens);
}

static int scene_init(struct scene *s, const struct bench_options *options,
	const struct attention_row *row, struct model_error *error)
{
	int rc;

	s->config.masks = s->mask->kind != MASK_CAUSAL;
	rc = attention_choose(options->attention, &s->config, &s->backend, &s->support,
		error->text, sizeof(error->text));
	if (rc)
		return rc;
	error->text[0] = '\0'; /* it says why that one */
	rc = take_inputs(s, row);
	if (!rc && s->backend->masks)
		rc = take_masks(s, row);
	if (!rc)
		rc = take_buffers(s, row);
	if (!rc)
		rc = s->backend->manager_new(s->probe->device, &s->config, &s->inputs, &s->manager);
	if (!rc)
		rc = s->backend->metadata_new(s->manager, &s->metadata);
	return rc ? rc : s->backend->build(s->metadata, &s->batch, s->probe->stream);
}

static int queue(void *arg)
{
	const struct scene *s = arg;
	int rc = 0;

	for (uint32_t i = 0; i < s->n_runs && !rc; i++) {
		uint32_t layer = i % s->config.n_layers;

		rc = s->backend->run(s->metadata, s->probe->stream,
			&(struct attention_args){
				.layer = layer,
				.q = s->q,
				.q_stride = s->config.n_heads * s->config.head_dim,
				.kv = (char *)s->kv + layer * s->layer_bytes,
				.out = s->out,
			});
	}
	return rc;
}

static int queue_plan(void *arg)
{
	const struct scene *s = arg;
	int rc = 0;

	for (uint32_t i = 0; i < PLANS && !rc; i++)
		rc = s->backend->build(s->metadata, &s->batch, s->probe->stream);
	return rc;
}

static int measure(struct probe *probe, struct attention_work *work, struct attention_row *row,
	struct model_error *error)
{
	struct attention_facts *facts = work->facts;
	struct scene scene = {.probe = probe, .mask = &facts->mask};
	struct bench_mask_cost cost = bench_mask_cost(&facts->mask, row->query, row->context);
	struct device_info now;

	size_up(&scene, facts, row);
	row->bytes = row->batch * cost.keys * 2 * facts->n_kv_heads * facts->head_dim *
		     dtype_bytes(probe->info.kv_dtype);
	row->pairs = row->batch * cost.pairs;
	int rc = probe->device->ops->info(probe->device, &now);
	if (rc)
		return rc;
	row->no_room = scene.layer_bytes * scene.config.n_layers > now.free_bytes / 2;
	if (row->no_room)
		return 0;
	rc = scene_init(&scene, work->options, row, error);
	if (!rc) {
		bool captured = row->query == 1 ? scene.support > ATTENTION_NEVER
						: scene.support == ATTENTION_ALWAYS;

		snprintf(facts->backend, sizeof(facts->backend), "%s", scene.backend->name);
		rc = probe_time(probe, captured, queue, &scene, scene.n_runs, &row->seconds);
		/* last: a graph with a plan of its own changes how layers run */
		if (!rc)
			rc = probe_time(probe, scene.support > ATTENTION_NEVER, queue_plan, &scene,
				PLANS, &row->plan_seconds);
	}
	scene_deinit(&scene);
	return rc;
}

/* ---- all of them ---- */

static int find_heads(const char *dir, struct attention_facts *facts, struct model_error *error)
{
	struct model_config config;
	int rc = model_config_load(dir, &config, error);

	if (rc)
		return rc;
	if (config.latent.rank)
		rc = model_fail(error, -ENOTSUP,
			"%s: its attention is latent: --attention mla or mla_planned measures it",
			dir);
	facts->n_heads = config.n_heads;
	facts->n_kv_heads = config.n_kv_heads;
	facts->head_dim = config.head_dim;
	model_config_deinit(&config);
	return rc;
}

static int run_all(struct attention_work *work, struct probe *probe, struct model_error *error)
{
	struct attention_facts *facts = work->facts;
	int rc = probe_rates(probe);

	facts->rates = probe->rates;
	snprintf(facts->device, sizeof(facts->device), "%s", probe->info.name);
	for (uint32_t i = 0; i < facts->n_rows && !rc; i++)
		rc = measure(probe, work, &facts->rows[i], error);
	return rc;
}

static int work_attention(void *arg, int fd)
{
	struct attention_work *work = arg;
	struct model_error error = {""};
	struct probe probe = {0};
	int rc = find_heads(work->options->model_dir, work->facts, &error);

	(void)fd;
	if (!rc)
		rc = probe_open(&probe, work->options->device, error.text, sizeof(error.text));
	if (!rc)
		rc = run_all(work, &probe, &error);
	rc = report_outcome("attention", rc, error.text);
	probe_close(&probe);
	return rc;
}

/* Multiplications and additions of scores and sums. */
static double flop_of(const struct attention_facts *facts, const struct attention_row *row)
{
	return row->pairs * facts->n_heads * facts->head_dim * 4;
}

static void fill(
	struct table *table, const struct target *target, const void *userdata, uint32_t i)
{
	const struct attention_work *work = userdata;
	const struct bench_options *options = work->options;
	const struct attention_facts *facts = work->facts;
	const struct attention_row *row = &facts->rows[i];

	table_row(table);
	table_set_text(table, "bench", "attention");
	report_model(table, options);
	table_set_text(table, "backend", facts->backend);
	table_set_text(table, "mask", options->mask ? options->mask : "causal");
	table_set_count(table, "heads", facts->n_heads);
	table_set_count(table, "kv_heads", facts->n_kv_heads);
	table_set_count(table, "head_dim", facts->head_dim);
	table_set_count(table, "batch", row->batch);
	table_set_count(table, "query", row->query);
	table_set_count(table, "context", row->context);
	report_cost(table, &facts->rates,
		&(struct report_cost){
			.bytes = row->bytes,
			.flop = flop_of(facts, row),
			.seconds = row->no_room ? NAN : row->seconds,
		});
	report_number(table, "plan_s", row->no_room ? NAN : row->plan_seconds);
	report_common(table, target, FLOOR, row->no_room ? NO_ROOM : NULL);
}

static int print(const struct attention_work *work)
{
	const struct attention_facts *facts = work->facts;
	const struct bench_options *options = work->options;
	char line[160];
	bool no_room = false;

	for (uint32_t i = 0; i < facts->n_rows; i++)
		no_room = no_room || facts->rows[i].no_room;
	snprintf(line, sizeof(line),
		"%s, %s, %u heads, %u of keys and values, head size %u, pages of %u tokens",
		facts->backend, options->mask ? options->mask : "causal", facts->n_heads,
		facts->n_kv_heads, facts->head_dim, PAGE_TOKENS);
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

static void add(struct attention_facts *facts, uint32_t batch, uint32_t query, uint32_t context)
{
	facts->rows[facts->n_rows++] =
		(struct attention_row){.batch = batch, .query = query, .context = context};
}

int bench_attention(const struct bench_options *options, struct results *results)
{
	bool means_mla = bench_means_mla(options);

	if (means_mla && (options->mask || options->prompts.n)) {
		fprintf(stderr, "mimeo-bench: attention: --%s is not for latent attention, which the "
			"model's is\n", options->mask ? "mask" : "prompts");
		return -EINVAL;
	}
	if (means_mla || bench_is_mla(options))
		return bench_attention_mla(options);
	struct attention_facts *facts = child_memory(sizeof(*facts));
	struct attention_work work = {options, facts};
	int r = facts ? 0 : -ENOMEM;

	if (r == 0)
		bench_mask_parse(options->mask, &facts->mask);
	for (uint32_t i = 0; r == 0 && i < options->batches.n * options->contexts.n; i++) {
		uint32_t context = options->contexts.at[i % options->contexts.n];
		uint32_t query = bench_mask_query(&facts->mask);

		add(facts, options->batches.at[i / options->contexts.n],
			query < context ? query : context, context);
	}
	for (uint32_t i = 0; r == 0 && i < options->prompts.n; i++)
		add(facts, 1, options->prompts.at[i], options->prompts.at[i]);
	if (r == 0)
		r = child_run("attention", work_attention, &work, options->timeout_s);
	if (r == 0)
		r = print(&work);
	child_memory_free(facts, sizeof(*facts));
	return r;
}
