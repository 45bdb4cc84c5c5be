/* SPDX-License-Identifier: MIT */
/*
 * A model's attention, through the backend interface: --query tokens of each row for each batch and
 * context, and whole prompts. Latent attention is in latent.c. The floor is the larger of two times:
 * keys and values once at a device copy's bandwidth, operations at the rate of a large product; of
 * what the mask lets be seen. Beside it stands what the backend queues once a step for all layers:
 * its plan.
 */
#include "tests/bench/internals.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/options.h"
#include "daemon/model/model.h"
#include "tests/bench/latent.h"
#include "tests/bench/mask.h"
#include "tests/bench/scene.h"

#define RUNS_MIN 8u
#define PLANS 8u /* in one measurement */
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
	uint32_t n;
};

static int attention_queue(void *arg)
{
	const struct attention_queue *queue = arg;
	const struct scene *s = queue->scene;
	int rc = 0;

	for (uint32_t i = 0; i < queue->n && !rc; i++) {
		uint32_t layer = i % s->config.n_layers;

		rc = s->backend->run(s->metadata, s->probe->stream,
			&(struct attention_args){
				.layer = layer,
				.q = s->q,
				.q_stride = s->config.n_heads * s->config.head_dim,
				.kv = s->kv + layer * s->layer_bytes,
				.out = s->out,
			});
	}
	return rc;
}

static int attention_queue_plan(void *arg)
{
	const struct scene *s = ((const struct attention_queue *)arg)->scene;
	int rc = 0;

	for (uint32_t i = 0; i < PLANS && !rc; i++)
		rc = s->backend->build(s->metadata, &s->batch, s->probe->stream);
	return rc;
}

static int attention_time(struct attention_bench *bench, struct scene *s, double *ret_seconds,
	double *ret_plan, struct model_error *error)
{
	struct attention_queue queue = {.scene = s,
		.n = s->config.n_layers < RUNS_MIN ? RUNS_MIN : s->config.n_layers};
	uint64_t width = (uint64_t)s->config.n_heads * s->config.head_dim;
	enum attention_support support;
	int rc = attention_choose(bench->options->attention, &s->config, &s->backend, &support,
		error->text, sizeof(error->text));

	if (rc)
		return rc;
	error->text[0] = '\0'; /* it says why that one */
	rc = scene_take(s, width, width);
	if (!rc && s->backend->masks)
		rc = attention_masks(&bench->mask, s);
	if (!rc)
		rc = scene_build(s);
	if (rc)
		return rc;
	bool captured = s->n_query == 1 ? support > ATTENTION_NEVER : support == ATTENTION_ALWAYS;
	captured = captured || (s->n_query <= 16 && support >= ATTENTION_UNIFORM_BATCH);
	rc = probe_time(s->probe, captured, attention_queue, &queue, queue.n, ret_seconds);
	/* last: a graph with a plan of its own changes how layers run */
	return rc ? rc
		  : probe_time(s->probe, support > ATTENTION_NEVER, attention_queue_plan, &queue,
			    PLANS, ret_plan);
}

static void attention_row(struct attention_bench *bench, const struct scene *s, double seconds,
	double plan, bool no_space)
{
	struct results *results = bench->results;
	struct bench_mask_cost cost = bench_mask_cost(&bench->mask, s->n_query, s->context);
	uint32_t kv = s->config.n_kv_heads * s->config.head_dim;

	results_row(results);
	results_text(results, "backend", NULL, s->backend ? s->backend->name : NULL);
	results_text(results, "mask", NULL, bench->options->mask ? bench->options->mask : "causal");
	results_count(results, "heads", NULL, s->config.n_heads);
	results_count(results, "kv_heads", NULL, s->config.n_kv_heads);
	results_count(results, "head_dim", NULL, s->config.head_dim);
	results_count(results, "batch", "BATCH", s->n_rows);
	results_count(results, "query", "QUERY", s->n_query);
	results_count(results, "context", "CONTEXT", s->context);
	results_cost(results, &bench->probe.rates,
		&(struct results_cost){
			.bytes = (double)s->n_rows * (double)cost.keys * 2 * kv *
				 dtype_bytes(s->config.kv_dtype),
			/* multiplications and additions of scores and sums */
			.flop = s->n_rows * cost.pairs * s->config.n_heads * s->config.head_dim * 4,
			.seconds = no_space ? NAN : seconds,
		});
	results_seconds(results, "plan_s", "PLAN", no_space ? NAN : plan);
	results_floor(results, FLOOR);
	results_note(results, no_space ? NO_SPACE : NULL);
}

static int attention_measure(struct attention_bench *bench, uint32_t n_rows, uint32_t n_query,
	uint32_t context, struct model_error *error)
{
	struct scene scene = {.probe = &bench->probe,
		.n_rows = n_rows,
		.n_query = n_query < context ? n_query : context,
		.context = context};
	uint32_t mark = bench->probe.n_held;
	double seconds = NAN, plan = NAN;

	scene_size(&scene, &bench->heads);
	bool no_space = scene_has_no_space(&scene);
	int rc = no_space ? 0 : attention_time(bench, &scene, &seconds, &plan, error);
	if (!rc)
		attention_row(bench, &scene, seconds, plan, no_space);
	scene_deinit(&scene);
	probe_release(&bench->probe, mark);
	return rc;
}

static int attention_all(struct attention_bench *bench, struct model_error *error)
{
	const struct bench_options *o = bench->options;
	uint32_t query = bench_mask_query(&bench->mask) > 1 ? bench_mask_query(&bench->mask) : o->query;
	int rc = probe_rates(&bench->probe);

	results_machine(bench->results, bench->probe.info.name, NULL, NULL);
	results_head(bench->results, "%s, %u heads, %u of keys and values, head size %u, pages of %u "
		"tokens", o->mask ? o->mask : "causal", bench->heads.n_heads, bench->heads.n_kv_heads,
		bench->heads.head_dim, bench->heads.page_tokens);
	for (uint32_t i = 0; i < o->batches.n * o->contexts.n && !rc; i++)
		rc = attention_measure(bench, o->batches.at[i / o->contexts.n], query,
			o->contexts.at[i % o->contexts.n], error);
	for (uint32_t i = 0; i < o->prompts.n && !rc; i++)
		rc = attention_measure(bench, 1, o->prompts.at[i], o->prompts.at[i], error);
	return rc;
}

/* The model's, but for what the options say. */
static int attention_heads(struct attention_bench *bench, struct model_error *error)
{
	const struct bench_options *o = bench->options;
	struct model_config config;
	int rc = model_config_load(o->model_dir, &config, error);

	if (rc)
		return rc;
	if (config.latent.rank)
		rc = model_fail(error, -ENOTSUP,
			"%s: its attention is latent: --attention mla or mla_planned measures it",
			o->model_dir);
	bench->heads = (struct attention_config){
		.n_heads = o->heads ? o->heads : config.n_heads,
		.n_kv_heads = o->kv_heads ? o->kv_heads : config.n_kv_heads,
		.head_dim = o->head_dim ? o->head_dim : config.head_dim,
		.page_tokens = o->page_tokens,
		.scale = 0.1f,
		.masks = bench->mask.kind != MASK_CAUSAL,
	};
	model_config_deinit(&config);
	return rc;
}

int bench_attention(const struct bench_options *options, struct results *results)
{
	struct attention_bench bench = {.options = options, .results = results};
	struct model_error error = {""};

	if (latent_is_meant(options))
		return options->mask ? bench_fail(-EINVAL, "attention: --mask is not for latent "
					       "attention, which the model's is")
				     : bench_latent(options, results);
	bool valid = bench_mask_parse(options->mask, &bench.mask);
	assert(valid); /* by the option's check */
	(void)valid;
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
		return options_misuse("--mask %s: no such mask: there are causal, window:N, prefix:N, "
			"documents:N and tree:N, N 1 or more, of trees 64 at most", options->mask);
	if (latent_is_named(options) && options->mask)
		return options_misuse("--mask is not for latent attention");
	return 0;
}
