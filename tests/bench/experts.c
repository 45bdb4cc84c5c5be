/* SPDX-License-Identifier: MIT */
/*
 * What a layer of experts runs, op by op and as a whole, through the device's op table, for each
 * number of tokens. Weights are random, in two copies that take turns, and so is what is chosen:
 * SETS routings take turns, so that neither an expert nor a choice is found in a cache because the
 * launch before had it.
 *
 * The floor is the larger of two times: the bytes of the distinct experts that were chosen, and of
 * what goes in and out, at a device copy's bandwidth; and the operations of all pairs at the rate
 * of a large product.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/bench/probe.h"
#include "daemon/bench/report.h"
#include "daemon/model/error.h"
#include "daemon/model/model.h"

#define SETS 8u
#define COPIES 2u
#define FLOOR                                                                                      \
	"the chosen experts' weights, input and output once at the bandwidth of a device copy, "   \
	"or "                                                                                      \
	"its operations at the rate of a large product, whichever takes longer"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"model", NULL, TABLE_TEXT},
	{"op", "OP", TABLE_TEXT},
	{"tokens", "TOKENS", TABLE_COUNT},
	{"experts", "EXPERTS", TABLE_NUMBER},
	REPORT_COST_COLUMNS,
	REPORT_COLUMNS,
};

enum op { ROUTE, GROUP, GATE_UP, DOWN, COMBINE, LAYER, N_OPS };

static const char *const op_names[N_OPS] = {
	"route", "group", "gate_up", "down", "combine", "all of them"};

struct experts_row {
	uint32_t op, n_tokens;
	double seconds, flop;
	double chosen; /* distinct experts, the mean over routings */
	uint64_t bytes;
};

struct experts_facts {
	char device[64];
	struct rates rates;
	struct experts_row rows[N_OPS * BENCH_LIST_MAX];
	uint32_t n_rows;
};

struct experts_work {
	const struct bench_options *options;
	struct experts_facts *facts;
};

/* A layer's memory; of what differs between routings SETS pieces, one behind the other. */
struct layer {
	struct probe *probe;
	struct model_experts experts;
	uint32_t hidden, n_tokens;
	void *gate_up_w, *down_w;           /* COPIES of each */
	uint64_t gate_up_bytes, down_bytes; /* of one copy */
	float *logits, *weights;
	int32_t *slots, *ids, *starts, *pairs;
	void *x, *scratch, *activated, *y, *out;
	void *memory[10];
	uint32_t n_memory;
	enum op op; /* to queue */
};

/* ---- memory ---- */

static int take(struct layer *l, uint64_t bytes, enum dtype dtype, void *ret)
{
	void *memory;
	int rc = probe_random(l->probe, bytes, dtype, &memory);

	if (rc)
		return rc;
	l->memory[l->n_memory++] = memory;
	memcpy(ret, &memory, sizeof(memory));
	return 0;
}

static void give_back(struct layer *l)
{
	while (l->n_memory > 0)
		l->probe->device->ops->mem_free(l->probe->device, l->memory[--l->n_memory]);
}

static int take_weights(struct layer *l)
{
	enum dtype act = l->probe->info.activation_dtype;
	int rc;

	l->down_bytes = (uint64_t)l->experts.n * l->hidden * l->experts.intermediate_size *
			dtype_bytes(act);
	l->gate_up_bytes = 2 * l->down_bytes;
	rc = take(l, COPIES * l->gate_up_bytes, act, &l->gate_up_w);
	return rc ? rc : take(l, COPIES * l->down_bytes, act, &l->down_w);
}

static int take_activations(struct layer *l)
{
	enum dtype act = l->probe->info.activation_dtype;
	uint64_t pairs = (uint64_t)l->n_tokens * l->experts.n_active, unit = dtype_bytes(act);
	int rc = take(l, SETS * (uint64_t)l->n_tokens * l->experts.n * 4, DTYPE_F32, &l->logits);

	if (!rc)
		rc = take(l, (uint64_t)l->n_tokens * 4, DTYPE_F32, &l->slots);
	if (!rc)
		rc = take(l, SETS * (2 * pairs + pairs + l->experts.n + 1) * 4, DTYPE_F32, &l->ids);
	if (!rc)
		rc = take(l, l->n_tokens * l->hidden * unit, act, &l->x);
	if (!rc)
		rc = take(l, pairs * 2 * l->experts.intermediate_size * unit, act, &l->scratch);
	if (!rc)
		rc = take(l, pairs * l->experts.intermediate_size * unit, act, &l->activated);
	if (!rc)
		rc = take(l, pairs * l->hidden * unit, act, &l->y);
	if (!rc)
		rc = take(l, l->n_tokens * l->hidden * unit, act, &l->out);
	if (rc)
		return rc;
	l->pairs = l->ids + SETS * pairs;
	l->weights = (float *)(void *)(l->pairs + SETS * pairs);
	l->starts = (int32_t *)(void *)(l->weights + SETS * pairs);
	return l->probe->device->ops->fill_async(
		l->probe->stream, l->slots, 0, (uint64_t)l->n_tokens * 4);
}

/* ---- one routing's ops ---- */

static int queue_route(struct layer *l, size_t set)
{
	const struct model_experts *e = &l->experts;
	size_t pairs = (size_t)l->n_tokens * e->n_active;

	return l->probe->device->kernels->moe_route(
		l->probe->stream, &(struct op_moe_route){
					  .logits = l->logits + set * l->n_tokens * e->n,
					  .slot_mapping = l->slots,
					  .experts = l->ids + set * pairs,
					  .weights = l->weights + set * pairs,
					  .n_tokens = l->n_tokens,
					  .n_experts = e->n,
					  .n_active = e->n_active,
					  .n_groups = e->n_groups,
					  .n_groups_active = e->n_groups_active,
					  .score = e->score,
					  .group_top_two = e->group_top_two,
					  .normalise = e->normalise,
					  .scale = e->scale,
				  });
}

static int queue_group(struct layer *l, size_t set)
{
	size_t pairs = (size_t)l->n_tokens * l->experts.n_active;

	return l->probe->device->kernels->moe_group(
		l->probe->stream, &(struct op_moe_group){
					  .experts = l->ids + set * pairs,
					  .expert_start = l->starts + set * (l->experts.n + 1),
					  .pairs = l->pairs + set * pairs,
					  .n_tokens = l->n_tokens,
					  .n_active = l->experts.n_active,
					  .n_experts = l->experts.n,
				  });
}

static int queue_gate_up(struct layer *l, size_t set)
{
	const struct model_experts *e = &l->experts;

	return l->probe->device->kernels->expert_gated_gemm(l->probe->stream,
		&(struct op_expert_gated_gemm){
			.x = l->x,
			.w = {(char *)l->gate_up_w + set % COPIES * l->gate_up_bytes,
				l->probe->info.activation_dtype, e->n * 2 * e->intermediate_size,
				l->hidden},
			.expert_start = l->starts + set * (e->n + 1),
			.pairs = l->pairs + set * l->n_tokens * e->n_active,
			.gate_up = l->scratch,
			.y = l->activated,
			.n_tokens = l->n_tokens,
			.n_active = e->n_active,
			.n_experts = e->n,
		});
}

static int queue_down(struct layer *l, size_t set)
{
	const struct model_experts *e = &l->experts;

	return l->probe->device->kernels->expert_gemm(
		l->probe->stream, &(struct op_expert_gemm){
					  .x = l->activated,
					  .x_div = 1,
					  .w = {(char *)l->down_w + set % COPIES * l->down_bytes,
						  l->probe->info.activation_dtype, e->n * l->hidden,
						  e->intermediate_size},
					  .expert_start = l->starts + set * (e->n + 1),
					  .pairs = l->pairs + set * l->n_tokens * e->n_active,
					  .y = l->y,
					  .n_tokens = l->n_tokens,
					  .n_active = e->n_active,
					  .n_experts = e->n,
				  });
}

static int queue_combine(struct layer *l, size_t set)
{
	size_t pairs = (size_t)l->n_tokens * l->experts.n_active;

	return l->probe->device->kernels->moe_combine(
		l->probe->stream, &(struct op_moe_combine){
					  .base = l->x,
					  .y = l->y,
					  .experts = l->ids + set * pairs,
					  .weights = l->weights + set * pairs,
					  .out = l->out,
					  .n_tokens = l->n_tokens,
					  .n_active = l->experts.n_active,
					  .cols = l->hidden,
				  });
}

/* Its op, or all of them, once for each routing. */
static int queue(void *arg)
{
	static int (*const ops[LAYER])(struct layer *, size_t) = {
		queue_route, queue_group, queue_gate_up, queue_down, queue_combine};
	struct layer *l = arg;
	int rc = 0;

	for (size_t set = 0; set < SETS; set++)
		for (uint32_t op = 0; op < LAYER && !rc; op++)
			if (l->op == LAYER || l->op == op)
				rc = ops[op](l, set);
	return rc;
}

/* ---- measuring ---- */

static int count_chosen(struct layer *l, double *ret)
{
	size_t stride = l->experts.n + 1, n = SETS * stride;
	int32_t *starts = malloc(n * sizeof(*starts));
	uint32_t chosen = 0;
	int rc;

	if (!starts)
		return -ENOMEM;
	rc = l->probe->device->ops->copy(l->probe->device, starts, l->starts, n * sizeof(*starts));
	for (size_t i = 0; i < n && !rc; i++)
		chosen += i % stride < l->experts.n && starts[i + 1] > starts[i];
	free(starts);
	*ret = (double)chosen / SETS;
	return rc;
}

/* Bytes and operations of the row's op, but for LAYER's, which are the sums. */
static void cost(const struct layer *l, struct experts_row *row)
{
	const struct model_experts *e = &l->experts;
	double pairs = (double)l->n_tokens * e->n_active,
	       unit = dtype_bytes(l->probe->info.activation_dtype);
	double inner = e->intermediate_size, hidden = l->hidden, tokens = l->n_tokens;
	double matrix = inner * hidden;
	const double bytes[LAYER] = {
		[ROUTE] = tokens * e->n * 4 + pairs * 8,
		[GROUP] = pairs * 8 + (e->n + 1) * 4.0,
		[GATE_UP] = (row->chosen * 2 * matrix + tokens * hidden + pairs * inner) * unit,
		[DOWN] = (row->chosen * matrix + pairs * (inner + hidden)) * unit,
		[COMBINE] = (pairs + 2 * tokens) * hidden * unit + pairs * 8,
	};
	const double flop[LAYER] = {
		[GATE_UP] = 4 * pairs * matrix,
		[DOWN] = 2 * pairs * matrix,
		[COMBINE] = 2 * pairs * hidden,
	};

	for (uint32_t op = 0; op < LAYER; op++)
		if (row->op == LAYER || row->op == op) {
			row->bytes += (uint64_t)bytes[op];
			row->flop += flop[op];
		}
}

static int measure(struct layer *l, struct experts_row *rows)
{
	double chosen;
	int rc = take_activations(l);

	l->op = LAYER; /* leaves routings behind */
	if (!rc)
		rc = queue(l);
	if (!rc)
		rc = l->probe->device->ops->stream_sync(l->probe->stream);
	if (!rc)
		rc = count_chosen(l, &chosen);
	for (uint32_t op = 0; op < N_OPS && !rc; op++) {
		rows[op].chosen = chosen;
		cost(l, &rows[op]);
		l->op = (enum op)op;
		rc = probe_time(l->probe, true, queue, l, SETS, &rows[op].seconds);
	}
	return rc;
}

static int measure_all(struct experts_work *work, struct layer *l)
{
	struct experts_facts *facts = work->facts;
	int rc = take_weights(l);
	uint32_t n_weights = l->n_memory;

	for (uint32_t i = 0; i < facts->n_rows && !rc; i += N_OPS) {
		struct layer one = *l;

		one.n_memory = 0;
		one.n_tokens = facts->rows[i].n_tokens;
		rc = measure(&one, &facts->rows[i]);
		give_back(&one);
	}
	l->n_memory = n_weights;
	give_back(l);
	return rc;
}

static int read_sizes(const char *dir, struct layer *ret, struct model_error *error)
{
	struct model_config c;
	int rc = model_config_load(dir, &c, error);

	if (rc)
		return rc;
	ret->experts = c.experts;
	ret->hidden = c.hidden_size;
	model_config_deinit(&c);
	return ret->experts.n ? 0 : model_fail(error, -ENOTSUP, "%s: it has no experts", dir);
}

static int run_all(struct experts_work *work, struct probe *probe, struct layer *l)
{
	int rc = probe_rates(probe);

	work->facts->rates = probe->rates;
	snprintf(work->facts->device, sizeof(work->facts->device), "%s", probe->info.name);
	l->probe = probe;
	return rc ? rc : measure_all(work, l);
}

static int work_experts(void *arg, int fd)
{
	struct experts_work *work = arg;
	struct model_error error = {""};
	struct probe probe = {0};
	struct layer layer = {0};
	int rc = read_sizes(work->options->model_dir, &layer, &error);

	(void)fd;
	if (!rc)
		rc = probe_open(&probe, work->options->device, error.text, sizeof(error.text));
	if (!rc && !probe.device->kernels->moe_route)
		rc = model_fail(&error, -ENOTSUP, "%s has no kernels for experts", probe.info.name);
	if (!rc)
		rc = run_all(work, &probe, &layer);
	rc = report_outcome("experts", rc, error.text);
	probe_close(&probe);
	return rc;
}

/* ---- what comes out ---- */

static void fill(
	struct table *table, const struct target *target, const void *userdata, uint32_t i)
{
	const struct experts_work *work = userdata;
	const struct bench_options *options = work->options;
	const struct experts_facts *facts = work->facts;
	const struct experts_row *row = &facts->rows[i];

	table_row(table);
	table_set_text(table, "bench", "experts");
	report_model(table, options);
	table_set_text(table, "op", op_names[row->op]);
	table_set_count(table, "tokens", row->n_tokens);
	report_number(table, "experts", row->chosen);
	report_cost(table, &facts->rates,
		&(struct report_cost){
			.bytes = row->bytes, .flop = row->flop, .seconds = row->seconds});
	report_common(table, target, FLOOR, NULL);
}

static int print(const struct experts_work *work)
{
	const struct experts_facts *facts = work->facts;

	return report_costs(&(struct report_costs){
		.bench = "experts",
		.device = facts->device,
		.floor = FLOOR,
		.rates = &facts->rates,
		.columns = columns,
		.n_columns = sizeof(columns) / sizeof(columns[0]),
		.n_rows = facts->n_rows,
		.fill = fill,
		.userdata = work,
	}, work->options->json);
}

int bench_experts(const struct bench_options *options, struct results *results)
{
	struct experts_facts *facts = child_memory(sizeof(*facts));
	struct experts_work work = {options, facts};
	int r = facts ? 0 : -ENOMEM;

	for (uint32_t i = 0; r == 0 && i < N_OPS * options->batches.n; i++)
		facts->rows[facts->n_rows++] = (struct experts_row){
			.op = i % N_OPS,
			.n_tokens = options->batches.at[i / N_OPS],
		};
	if (r == 0)
		r = child_run("experts", work_experts, &work, options->timeout_s);
	if (r == 0)
		r = print(&work);
	child_memory_free(facts, sizeof(*facts));
	return r;
}
