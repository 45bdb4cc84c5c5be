/* SPDX-License-Identifier: MIT */
/*
 * What a layer of experts runs, op by op and as a whole, through the device's op table, for each
 * number of tokens. Weights are random, in two copies that take turns, and so is the routing: SETS
 * routings take turns, so that neither an expert nor a choice is found in a cache because the
 * launch before had it.
 *
 * --packed measures packed weights (kernels/packed.h) beside plain ones.
 *
 * The floor is the larger of two times: the bytes of the distinct experts that were chosen, and of
 * what goes in and out, at a device copy's bandwidth; and the operations of all pairs at the rate
 * of a large product.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/model.h"
#include "kernels/packed.h"
#include "tests/bench/cost.h"

#define SETS 8u
#define COPIES 2u

enum op { ROUTE, GROUP, GATE_UP, DOWN, COMBINE, LAYER, N_OPS };

static const char *const names[N_OPS] = {
	"route", "group", "gate_up", "down", "combine", "all of them"};

/* A layer's memory; of what differs between routings SETS pieces, one behind the other. */
struct layer {
	struct probe *probe;
	struct model_experts experts;
	uint32_t hidden, n_tokens;
	uint32_t form;      /* of weights */
	enum dtype w_dtype; /* its own */
	char *gate_up_w, *down_w;           /* COPIES of each */
	uint64_t gate_up_bytes, down_bytes; /* of one copy */
	float *logits, *weights;
	int32_t *slots, *ids, *starts, *pairs;
	void *x, *scratch, *activated, *y, *out;
	enum op op; /* to queue */
};

static int layer_take_weights(struct layer *l)
{
	enum dtype act = l->probe->info.activation_dtype;
	const uint32_t n = l->experts.n, inner = l->experts.intermediate_size;

	l->down_bytes = cost_weight_bytes(n * l->hidden, inner, l->w_dtype);
	l->gate_up_bytes = cost_weight_bytes(n * 2 * inner, l->hidden, l->w_dtype);
	int rc = probe_take(l->probe, COPIES * l->gate_up_bytes, act, &l->gate_up_w);
	return rc ? rc : probe_take(l->probe, COPIES * l->down_bytes, act, &l->down_w);
}

static int layer_take_activations(struct layer *l)
{
	const struct model_experts *e = &l->experts;
	enum dtype act = l->probe->info.activation_dtype;
	uint64_t tokens = l->n_tokens, pairs = tokens * e->n_active, unit = dtype_bytes(act);
	const struct cost_memory memory[] = {
		{&l->logits, SETS * tokens * e->n * 4, DTYPE_F32},
		{&l->slots, tokens * 4, DTYPE_F32},
		{&l->ids, SETS * pairs * 4, DTYPE_F32},
		{&l->pairs, SETS * pairs * 4, DTYPE_F32},
		{&l->weights, SETS * pairs * 4, DTYPE_F32},
		{&l->starts, SETS * (uint64_t)(e->n + 1) * 4, DTYPE_F32},
		{&l->x, tokens * l->hidden * unit, act},
		{&l->scratch, pairs * 2 * e->intermediate_size * unit, act},
		{&l->activated, pairs * e->intermediate_size * unit, act},
		{&l->y, pairs * l->hidden * unit, act},
		{&l->out, tokens * l->hidden * unit, act},
	};
	int rc = cost_take(l->probe, memory, sizeof(memory) / sizeof(memory[0]));

	return rc ? rc : l->probe->device->ops->fill_async(l->probe->stream, l->slots, 0, tokens * 4);
}

/* What differs between routings. */
struct routing {
	float *logits, *weights;
	int32_t *ids, *starts, *pairs;
};

static struct routing layer_routing(const struct layer *l, size_t set)
{
	size_t pairs = (size_t)l->n_tokens * l->experts.n_active;

	return (struct routing){
		.logits = l->logits + set * l->n_tokens * l->experts.n,
		.weights = l->weights + set * pairs,
		.ids = l->ids + set * pairs,
		.starts = l->starts + set * (l->experts.n + 1),
		.pairs = l->pairs + set * pairs,
	};
}

static int layer_queue_routing(struct layer *l, enum op op, const struct routing *r)
{
	const struct kernel_ops *kernels = l->probe->device->kernels;
	const struct model_experts *e = &l->experts;

	if (op == ROUTE)
		return kernels->moe_route(l->probe->stream, &(struct op_moe_route){
			.logits = r->logits,
			.slot_mapping = l->slots,
			.experts = r->ids,
			.weights = r->weights,
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
	if (op == GROUP)
		return kernels->moe_group(l->probe->stream, &(struct op_moe_group){
			.experts = r->ids,
			.expert_start = r->starts,
			.pairs = r->pairs,
			.n_tokens = l->n_tokens,
			.n_active = e->n_active,
			.n_experts = e->n,
		});
	return kernels->moe_combine(l->probe->stream, &(struct op_moe_combine){
		.base = l->x,
		.y = l->y,
		.experts = r->ids,
		.weights = r->weights,
		.out = l->out,
		.n_tokens = l->n_tokens,
		.n_active = e->n_active,
		.cols = l->hidden,
	});
}

static int layer_queue_product(struct layer *l, enum op op, const struct routing *r, size_t copy)
{
	const struct kernel_ops *kernels = l->probe->device->kernels;
	uint32_t n = l->experts.n, inner = l->experts.intermediate_size;

	if (op == GATE_UP)
		return kernels->expert_gated_gemm(l->probe->stream, &(struct op_expert_gated_gemm){
			.x = l->x,
			.w = {l->gate_up_w + copy * l->gate_up_bytes, l->w_dtype, n * 2 * inner, l->hidden},
			.expert_start = r->starts,
			.pairs = r->pairs,
			.gate_up = l->scratch,
			.y = l->activated,
			.n_tokens = l->n_tokens,
			.n_active = l->experts.n_active,
			.n_experts = n,
		});
	return kernels->expert_gemm(l->probe->stream, &(struct op_expert_gemm){
		.x = l->activated,
		.x_div = 1,
		.w = {l->down_w + copy * l->down_bytes, l->w_dtype, n * l->hidden, inner},
		.expert_start = r->starts,
		.pairs = r->pairs,
		.y = l->y,
		.n_tokens = l->n_tokens,
		.n_active = l->experts.n_active,
		.n_experts = n,
	});
}

/* Its op, or all of them, once for each routing. */
static int layer_queue(void *arg)
{
	struct layer *l = arg;
	int rc = 0;

	for (size_t set = 0; set < SETS; set++) {
		const struct routing routing = layer_routing(l, set);

		for (enum op op = 0; op < LAYER && !rc; op++) {
			if (l->op != LAYER && l->op != op)
				continue;
			rc = op == GATE_UP || op == DOWN
				? layer_queue_product(l, op, &routing, set % COPIES)
				: layer_queue_routing(l, op, &routing);
		}
	}
	return rc;
}

/* Distinct experts, the mean over the routings. */
static int layer_chosen(struct layer *l, double *ret)
{
	size_t stride = l->experts.n + 1, n = SETS * stride;
	CLEANUP(cleanup_free) int32_t *starts = malloc(n * sizeof(*starts));
	uint32_t chosen = 0;

	if (!starts)
		return -ENOMEM;
	int rc = l->probe->device->ops->stream_sync(l->probe->stream);
	if (!rc)
		rc = l->probe->device->ops->copy(
			l->probe->device, starts, l->starts, n * sizeof(*starts));
	for (size_t i = 0; i < n && !rc; i++)
		chosen += i % stride < l->experts.n && starts[i + 1] > starts[i];
	*ret = (double)chosen / SETS;
	return rc;
}

/* Bytes and operations of an op; LAYER's are the sums. */
static struct cost layer_cost(const struct layer *l, enum op op, double chosen)
{
	const struct model_experts *e = &l->experts;
	double pairs = (double)l->n_tokens * e->n_active;
	double unit = dtype_bytes(l->probe->info.activation_dtype);
	double inner = e->intermediate_size, hidden = l->hidden, tokens = l->n_tokens;
	double matrix = inner * hidden;
	const double bytes[LAYER] = {
		[ROUTE] = tokens * e->n * 4 + pairs * 8,
		[GROUP] = pairs * 8 + (e->n + 1) * 4.0,
		[GATE_UP] = chosen * (double)l->gate_up_bytes / e->n + (tokens * hidden + pairs * inner) * unit,
		[DOWN] = chosen * (double)l->down_bytes / e->n + pairs * (inner + hidden) * unit,
		[COMBINE] = (pairs + 2 * tokens) * hidden * unit + pairs * 8,
	};
	const double flop[LAYER] = {
		[GATE_UP] = 4 * pairs * matrix,
		[DOWN] = 2 * pairs * matrix,
		[COMBINE] = 2 * pairs * hidden,
	};
	struct cost cost = {0};

	for (uint32_t i = 0; i < LAYER; i++) {
		cost.bytes += op == LAYER || op == i ? trunc(bytes[i]) : 0;
		cost.flop += op == LAYER || op == i ? flop[i] : 0;
	}
	return cost;
}

static int layer_measure(struct layer *l, const struct rates *rates, struct results *results)
{
	double chosen = 0;
	int rc = layer_take_activations(l);

	if (rc)
		return rc;
	l->op = LAYER; /* leaves routings behind */
	rc = layer_queue(l);
	if (rc)
		return rc;
	rc = layer_chosen(l, &chosen);
	for (enum op op = 0; op < N_OPS && !rc; op++) {
		struct cost cost = layer_cost(l, op, chosen);

		l->op = op;
		rc = probe_time(l->probe, true, layer_queue, l, SETS, &cost.seconds);
		if (rc)
			return rc;
		results_row(results);
		results_text(results, "op", "OP", names[op]);
		results_text(results, "weights", "WEIGHTS", cost_forms[l->form].name);
		results_count(results, "tokens", "TOKENS", l->n_tokens);
		results_number(results, "experts", "EXPERTS", chosen);
		cost_values(results, rates, &cost);
	}
	return rc;
}

static bool layer_packs(const struct layer *l)
{
	return l->probe->info.packs && packed_fits(l->experts.intermediate_size, l->hidden) &&
	       packed_fits(l->hidden, l->experts.intermediate_size);
}

/* All numbers of tokens, of weights in one form. */
static int layer_form(const struct bench_options *options, struct layer *l, uint32_t form, const struct rates *rates,
	struct results *results)
{
	struct probe *probe = l->probe;
	const uint32_t mark = probe->n_held;
	int rc;

	l->form = form;
	l->w_dtype = form ? cost_forms[form].dtype : probe->info.activation_dtype;
	rc = layer_take_weights(l);
	for (uint32_t i = 0; i < options->batches.n && !rc; i++) {
		const uint32_t of_batch = probe->n_held;

		l->n_tokens = options->batches.at[i];
		rc = layer_measure(l, rates, results);
		probe_release(probe, of_batch);
	}
	probe_release(probe, mark);
	return rc;
}

static int experts_measure(const struct bench_options *options, struct layer *l,
	struct results *results, struct model_error *error)
{
	struct probe *probe = l->probe;
	struct rates rates;
	int rc = probe_open(probe, options->device, error->text, sizeof(error->text));

	if (rc)
		return rc;
	if (!probe->device->kernels->moe_route)
		return model_fail(error, -ENOTSUP, "%s has no kernels for experts", probe->info.name);
	rc = cost_rates(probe, results, &rates);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < options->packed.n && !rc; i++) {
		if (options->packed.at[i] && !layer_packs(l))
			return model_fail(error, -ENOTSUP, "--packed: %s takes no packed experts of %u by %u",
				probe->info.name, l->experts.intermediate_size, l->hidden);
		rc = layer_form(options, l, options->packed.at[i], &rates, results);
	}
	return rc;
}

int bench_experts(const struct bench_options *options, struct results *results)
{
	struct model_error error = {""};
	CLEANUP(probe_close) struct probe probe = {0};
	struct layer layer = {.probe = &probe};
	struct model_config c;
	int rc = model_config_load(options->model_dir, &c, &error);

	if (rc)
		return bench_fail_device(rc, "experts", error.text);
	layer.experts = c.experts;
	layer.hidden = c.hidden_size;
	model_config_deinit(&c);
	if (!layer.experts.n)
		return bench_fail(-ENOTSUP, "experts: %s: it has no experts", options->model_dir);
	rc = experts_measure(options, &layer, results, &error);
	return bench_fail_device(rc, "experts", error.text);
}
