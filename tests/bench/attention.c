/* SPDX-License-Identifier: MIT */
/*
 * A model's attention, through the backend interface: --query tokens of each row for each batch and
 * context, and whole prompts. The floor is the larger of two times: keys and values once at a device
 * copy's bandwidth, of latent attention with the weights of its products, and operations at the rate
 * of a large product; of what the mask lets be seen. Beside it is what the backend queues once a step
 * for all layers: its plan. Latent attention has a row for a whole layer and, where a graph may hold
 * it, one for what it attends to.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/bench_options.h"
#include "daemon/model/model.h"
#include "tests/bench/scene.h"

#define RUNS_MIN 16u
#define PAGE_TOKENS 16u
#define PLANS 8u /* in one measurement */
#define GRAPH_QUERY_MAX 16u /* tokens of a row in a graph */
#define FLOOR                                                                                      \
	"keys and values once at the bandwidth of a device copy, or its operations at the rate "   \
	"of a large product, whichever takes longer"
#define NO_SPACE "the device has no space for it"

struct attention_bench {
	const struct bench_options *options;
	struct results *results;
	struct probe probe;
	struct attention_config heads; /* of the model and the options */
	struct bench_mask mask;
};

/* Every row's mask and every token's word, of a backend with masks. */
static int attention_masks(const struct bench_mask *mask, struct scene *s)
{
	uint32_t n_tokens = s->config.max_tokens, first = s->context - s->n_query;
	/* words first, for their alignment; then programs, then each row's slot */
	size_t words = n_tokens * sizeof(uint64_t);
	size_t bytes = words + s->n_rows * (sizeof(struct slot_mask) + sizeof(int32_t));
	CLEANUP(cleanup_free) uint64_t *host = malloc(bytes);
	char *memory;

	if (!host)
		return -ENOMEM;
	struct slot_mask *programs = (struct slot_mask *)(host + n_tokens);
	int32_t *slots = (int32_t *)(programs + s->n_rows);
	for (uint32_t t = 0; t < n_tokens; t++)
		host[t] = bench_mask_word(mask, first + t % s->n_query, s->context);
	for (uint32_t r = 0; r < s->n_rows; r++) {
		programs[r] = bench_mask_program(mask, s->context);
		slots[r] = (int32_t)r;
	}
	int rc = probe_take(s->probe, bytes, DTYPE_F32, &memory);
	if (rc)
		return rc;
	s->inputs.max_slots = s->n_rows;
	s->inputs.mask_words = (uint64_t *)(void *)memory;
	s->inputs.slot_mask = (struct slot_mask *)(void *)(memory + words);
	s->inputs.row_slot = (int32_t *)(s->inputs.slot_mask + s->n_rows);
	return s->probe->device->ops->copy(s->probe->device, memory, host, bytes);
}

struct attention_queue {
	const struct scene *scene;
	uint32_t n; /* layers, one after another */
};

static int attention_queue(void *arg)
{
	const struct attention_queue *queue = arg;
	const struct scene *s = queue->scene;
	const struct attention_config *c = &s->config;
	uint32_t width = c->latent.rank ? c->latent.nope + c->latent.rope : c->head_dim;

	for (uint32_t i = 0; i < queue->n; i++) {
		struct weight weight = {0};
		struct attention_args args = {
			.layer = i % c->n_layers,
			.q = s->q,
			.q_stride = c->n_heads * width,
			.kv = s->kv + i % c->n_layers * s->layer_bytes,
			.out = s->out,
		};

		if (s->n_weights) {
			weight = scene_weight(s, i);
			args.kv_b = &weight;
		}
		int rc = s->backend->run(s->metadata, s->probe->stream, &args);
		if (rc)
			return rc;
	}
	return 0;
}

static int attention_queue_plan(void *arg)
{
	const struct scene *s = ((const struct attention_queue *)arg)->scene;
	int rc = 0;

	for (uint32_t i = 0; i < PLANS && !rc; i++)
		rc = s->backend->build(s->metadata, &s->batch, s->probe->stream);
	return rc;
}

/* ---- rows ---- */

struct attention_times {
	double layer, plan, attend; /* NAN: not measured */
};

static struct results_cost attention_cost(
	const struct attention_bench *bench, const struct scene *s)
{
	struct bench_mask_cost seen = bench_mask_cost(&bench->mask, s->n_query, s->context);
	const struct attention_config *c = &s->config;

	return (struct results_cost){
		.bytes = (double)s->n_rows * (double)seen.keys * 2 * c->n_kv_heads * c->head_dim *
			 dtype_bytes(c->kv_dtype),
		/* multiplications and additions of scores and sums */
		.flop = s->n_rows * seen.pairs * c->n_heads * c->head_dim * 4,
	};
}

/* part: of latent attention; NULL of all others. */
static void attention_row(struct attention_bench *bench, const struct scene *s, const char *part,
	struct results_cost cost, double plan)
{
	struct results *results = bench->results;
	const struct attention_config *c = &s->config;

	results_row(results);
	results_text(results, "backend", NULL, s->backend ? s->backend->name : NULL);
	results_text(results, "mask", NULL, bench->options->mask ? bench->options->mask : "causal");
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
	results_cost(results, &bench->probe.rates, &cost);
	results_seconds(results, "plan_s", "PLAN", plan);
	results_floor(results, FLOOR);
	results_note(results, isfinite(cost.seconds) ? NULL : NO_SPACE);
}

static void attention_rows(
	struct attention_bench *bench, const struct scene *s, const struct attention_times *times)
{
	struct results_cost cost = attention_cost(bench, s);

	if (s->config.latent.rank) {
		struct results_cost attend = latent_attend_cost(s);

		attend.seconds = times->attend;
		if (s->n_query <= GRAPH_QUERY_MAX && isfinite(attend.seconds))
			attention_row(bench, s, "attend", attend, NAN);
		cost = latent_layer_cost(s);
	}
	cost.seconds = times->layer;
	attention_row(bench, s, s->config.latent.rank ? "layer" : NULL, cost, times->plan);
}

static int attention_time(struct attention_bench *bench, struct scene *s,
	struct attention_times *ret, struct model_error *error)
{
	struct attention_queue queue = {.scene = s,
		.n = s->config.n_layers < RUNS_MIN ? RUNS_MIN : s->config.n_layers};
	bool in_graph = s->n_query <= GRAPH_QUERY_MAX;
	enum attention_support support;
	int rc = attention_choose(bench->options->attention, &s->config, &s->backend, &support,
		error->text, sizeof(error->text));

	if (rc)
		return rc;
	error->text[0] = '\0'; /* it says why that one */
	rc = scene_take(s);
	if (rc)
		return rc;
	rc = s->backend->masks ? attention_masks(&bench->mask, s) : 0;
	if (rc)
		return rc;
	rc = scene_build(s);
	if (rc)
		return rc;
	bool captured = support == ATTENTION_ALWAYS ||
			(in_graph && support == ATTENTION_UNIFORM_BATCH) ||
			(s->n_query == 1 && support > ATTENTION_NEVER);
	rc = s->config.latent.rank && in_graph ? latent_attend(s, &ret->attend) : 0;
	if (rc)
		return rc;
	rc = probe_time(s->probe, captured, attention_queue, &queue, queue.n, &ret->layer);
	if (rc)
		return rc;
	/* last: a graph with a plan of its own changes how layers run */
	return probe_time(s->probe, support > ATTENTION_NEVER, attention_queue_plan, &queue, PLANS,
		&ret->plan);
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
	uint32_t query = bench_mask_query(&bench->mask) > 1 ? bench_mask_query(&bench->mask) : o->query;
	int rc = probe_rates(&bench->probe);

	results_machine(bench->results, bench->probe.info.name, NULL, NULL);
	if (c->latent.rank)
		results_explain(bench->results, "%u heads of %u + %u and %u, rank %u", c->n_heads,
			c->latent.nope, c->latent.rope, c->latent.v, c->latent.rank);
	else
		results_explain(bench->results, "%s, %u heads, %u of keys and values, head size %u",
			o->mask ? o->mask : "causal", c->n_heads, c->n_kv_heads, c->head_dim);
	for (uint32_t i = 0; i < o->batches.n * o->contexts.n && !rc; i++)
		rc = attention_measure(bench, o->batches.at[i / o->contexts.n], query,
			o->contexts.at[i % o->contexts.n], error);
	for (uint32_t i = 0; i < o->prompts.n && !rc; i++)
		rc = attention_measure(bench, 1, o->prompts.at[i], o->prompts.at[i], error);
	return rc;
}

static int attention_heads(struct attention_bench *bench, struct model_error *error)
{
	struct attention_config *c = &bench->heads;
	struct model_config config;
	int rc = model_config_load(bench->options->model_dir, &config, error);

	if (rc)
		return rc;
	*c = (struct attention_config){
		.n_heads = config.n_heads,
		.n_kv_heads = config.n_kv_heads,
		.head_dim = config.head_dim,
		.latent = config.latent,
		.page_tokens = PAGE_TOKENS,
		.scale = 0.1f,
		.masks = bench->mask.kind != MASK_CAUSAL,
	};
	model_config_deinit(&config);
	if (!c->latent.rank)
		return 0;
	if (c->masks)
		return model_fail(error, -EINVAL,
			"--mask is not for latent attention, which the model's is");
	c->n_kv_heads = 1;
	c->head_dim = c->latent.rank + c->latent.rope;
	c->scale = 1.0f / sqrtf((float)(c->latent.nope + c->latent.rope));
	return 0;
}

int bench_attention(const struct bench_options *options, struct results *results)
{
	struct attention_bench bench = {.options = options, .results = results};
	struct model_error error = {""};

	(void)bench_mask_parse(options->mask, &bench.mask); /* it is one: the option's check */
	int rc = attention_heads(&bench, &error);
	if (!rc)
		rc = probe_open(&bench.probe, options->device, error.text, sizeof(error.text));
	if (!rc)
		rc = attention_all(&bench, &error);
	probe_close(&bench.probe);
	return bench_fail_device(rc, "attention", error.text);
}

int bench_attention_check(const struct bench_options *options)
{
	struct bench_mask mask;

	if (!bench_mask_parse(options->mask, &mask))
		return bench_options_misuse("--mask %s: no such mask: there are causal, window:N, prefix:N, "
			"documents:N and tree:N, N 1 or more, of trees 64 at most", options->mask);
	return 0;
}
