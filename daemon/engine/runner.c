/* SPDX-License-Identifier: MIT */
/*
 * A model's place in the engine. Phases: ALLOCATE (runner_init: worst-case sizes; the KV ranges are
 * reserved, the null page and the warm-up's pages mapped), WARM, LOCK (the engine's), CAPTURE, MAP
 * (the KV pages). After that nothing a graph reads is ever reallocated.
 */
#include "daemon/engine/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"

#define RESERVE_BYTES_MAX (256ull << 20)
#define LAZY_GRAPH_BYTES (2ull << 20) /* what one was measured to take (1B, H200) */
#define RESULT_BYTES_MAX (64ull << 20) /* pinned logits of one step in flight */

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
	return a / b + (a % b != 0);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static int fail(struct model_error *error, const struct runner *runner, const char *what, int rc)
{
	snprintf(error->text, sizeof(error->text), "model %s: %s: %s", runner->options.name, what,
		device_strerror(rc));
	return rc;
}

static struct attention_config attention_config(
	const struct runner *runner, const struct device_info *info)
{
	const struct engine_options *o = &runner->engine->options;
	struct attention_config config = model_attention(&runner->model->config, info);

	config.page_tokens = o->page_tokens;
	config.max_rows = o->max_requests;
	config.max_tokens = o->max_batch_tokens;
	config.max_pages = runner->inputs.limits.max_pages;
	/* A row to verify may reach that far behind a sequence's end. */
	config.max_seq_len = runner->options.max_seq_len + runner->options.n_drafts;
	config.max_decode_query = 1 + runner->options.n_drafts;
	config.n_kv_pages = kv_cache_config(runner->kv)->max_pages;
	return config;
}

static struct inputs_limits inputs_limits(const struct engine_options *o,
	const struct model_config *c, uint32_t max_seq_len, uint32_t n_drafts, bool masks)
{
	uint32_t max_pages = ceil_div(max_seq_len + n_drafts, o->page_tokens);
	uint64_t results = RESULT_BYTES_MAX / ((uint64_t)c->vocab_size * sizeof(float));
	uint64_t init_pages = (uint64_t)max_pages * 4;

	if (results < 1)
		results = 1;
	if (results > o->max_requests)
		results = o->max_requests;
	if (init_pages < o->max_requests)
		init_pages = o->max_requests;
	return (struct inputs_limits){
		.max_rows = o->max_requests,
		.max_tokens = o->max_batch_tokens,
		.max_slots = o->max_requests,
		.max_pages = max_pages,
		.page_tokens = o->page_tokens,
		.vocab_size = c->vocab_size,
		.hidden_size = c->hidden_size,
		.max_init_pages = (uint32_t)init_pages,
		.max_results = (uint32_t)results,
		.masks = masks,
		.max_drafts = n_drafts,
	};
}

/* What a pool is carved for, and what is carved of it. */
struct pool_carving {
	const struct engine_options *options;
	const struct model_config *config, *draft; /* draft: NULL if there is none */
	uint32_t n_drafts;
	enum dtype activation;
	struct model_buffers *ret, *ret_draft;
};

/* The target's, then the draft's, which reads what the target's pass left. */
static void carve_pool(void *userdata, struct arena *arena)
{
	const struct pool_carving *p = userdata;
	const struct engine_options *o = p->options;

	model_buffers_carve(p->config, o->max_batch_tokens, o->max_requests * (1 + p->n_drafts),
		p->activation, arena, p->ret);
	if (p->draft)
		model_buffers_carve(p->draft, o->max_batch_tokens, o->max_requests, p->activation,
			arena, p->ret_draft);
}

int engine_measure(const struct engine_options *options, const struct model_config *config,
	const struct model_config *draft, uint32_t n_drafts, uint32_t max_seq_len,
	enum dtype activation, struct engine_needs *ret)
{
	/* Those of masks are small, and counted whether the model has any or not. */
	const struct inputs_limits limits =
		inputs_limits(options, config, max_seq_len, n_drafts, true);
	struct engine_needs needs;
	struct model_buffers buffers, draft_buffers;
	struct pool_carving carving = {options, config, draft, n_drafts, activation, &buffers,
		&draft_buffers};
	struct arena counting = {0};
	int rc = inputs_measure(&limits, &needs.inputs_bytes, &needs.pinned_bytes);

	if (rc)
		return rc;
	carve_pool(&carving, &counting);
	if (counting.failed)
		return -EOVERFLOW;
	needs.pool_bytes = counting.used;
	needs.draft_logits_bytes = inputs_draft_logits(&limits);
	*ret = needs;
	return 0;
}

static int allocate_host(struct runner *runner)
{
	uint32_t n = runner->engine->options.max_requests;

	runner->query_lens = calloc(n, sizeof(*runner->query_lens));
	runner->seq_lens = calloc(n, sizeof(*runner->seq_lens));
	runner->free_slots = calloc(n, sizeof(*runner->free_slots));
	runner->running = calloc(n, sizeof(struct sequence *));
	runner->copies = calloc(n, sizeof(*runner->copies));
	runner->dropped = calloc(runner->max_pages, sizeof(*runner->dropped));
	runner->context.kv_layers = calloc(runner->model->config.n_layers, sizeof(void *));
	if (!runner->query_lens || !runner->seq_lens || !runner->free_slots || !runner->running ||
		!runner->copies || !runner->dropped || !runner->context.kv_layers)
		return -ENOMEM;
	/* The lowest slot is given out first. */
	for (uint32_t i = 0; i < n; i++)
		runner->free_slots[i] = (int32_t)(n - 1 - i);
	runner->n_free_slots = n;
	return 0;
}

static int allocate_pool(struct runner *runner, struct model_buffers *ret_draft)
{
	const struct engine_model_options *o = &runner->options;
	struct pool_carving carving = {
		.options = &runner->engine->options,
		.config = &runner->model->config,
		.draft = o->draft ? &o->draft->config : NULL,
		.n_drafts = o->n_drafts,
		.activation = runner->activation_dtype,
		.ret = &runner->context.buffers,
		.ret_draft = ret_draft,
	};
	size_t bytes;
	int rc = arena_alloc(
		runner->engine->device, carve_pool, &carving, &runner->pool, &bytes);

	if (!rc)
		runner->pool_bytes = bytes;
	return rc;
}

/* Pages that the warm-up's one real row may write. */
static uint32_t warm_up_pages(const struct runner *runner)
{
	const struct engine_options *o = &runner->engine->options;
	uint32_t n = ceil_div(o->max_batch_tokens, o->page_tokens);

	if (n > runner->options.kv_pages)
		n = runner->options.kv_pages;
	return n < runner->max_pages ? n : runner->max_pages;
}

static int allocate_kv(struct runner *runner, const struct device_info *info)
{
	const struct model_config *c = &runner->model->config;
	struct kv_config config = model_kv(c, info, runner->engine->options.page_tokens), draft;
	uint64_t page_bytes = kv_page_bytes(&config), ceiling;

	if (runner->options.draft) {
		draft = model_kv(&runner->options.draft->config, info,
			runner->engine->options.page_tokens);
		page_bytes += kv_page_bytes(&draft);
	}

	if (!runner->options.kv_pages)
		runner->options.kv_pages = (uint32_t)(runner->options.kv_bytes / page_bytes);
	if (!runner->options.kv_pages)
		return -ENOSPC;
	/* Address space for as many pages as the device could ever hold. */
	ceiling = info->total_bytes / page_bytes;
	if (ceiling > INT32_MAX / config.page_tokens)
		ceiling = INT32_MAX / config.page_tokens;
	if (ceiling < (uint64_t)runner->options.kv_pages + 1)
		ceiling = (uint64_t)runner->options.kv_pages + 1;
	config.max_pages = (uint32_t)ceiling;
	int rc = kv_cache_new(runner->engine->device, &config, warm_up_pages(runner), &runner->kv);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < c->n_layers; i++)
		runner->context.kv_layers[i] = kv_layer(runner->kv, i);
	runner->context.kv = runner->kv;
	if (!runner->options.draft)
		return 0;
	/* A range of the same page ids; the target's cache counts them. */
	draft.max_pages = config.max_pages;
	return kv_cache_new(
		runner->engine->device, &draft, warm_up_pages(runner), &runner->draft_kv);
}

static int build_ladder(const struct runner *runner, struct ladder *ret, struct model_error *error)
{
	const struct engine_options *o = &runner->engine->options;
	uint32_t bad = 0;
	int rc;

	if (!o->n_capture_sizes) {
		ladder_default(ret, o->max_batch_tokens, o->max_requests,
			1 + runner->options.n_drafts);
		return 0;
	}
	rc = ladder_user(ret, o->capture_sizes, o->n_capture_sizes, o->max_batch_tokens, &bad);
	if (rc == -ERANGE)
		snprintf(error->text, sizeof(error->text),
			"capture size %u is outside 1 ... %u (max_batch_tokens)", bad,
			o->max_batch_tokens);
	else if (rc)
		snprintf(error->text, sizeof(error->text), "more than %u capture sizes", LADDER_MAX);
	return rc;
}

/* Decodes that verify, and those of steps in which nobody has drafts. */
static int make_graphs(struct runner *runner, const struct ladder *ladder, struct model_error *error)
{
	const struct engine_options *o = &runner->engine->options;
	const uint32_t queries[] = {1, 1 + runner->options.n_drafts};
	int rc = graph_set_init_queries(&runner->graphs, runner->options.mode.resolved, ladder,
		queries, runner->options.draft ? 2 : 1, o->max_requests, o->max_batch_tokens);

	return rc ? fail(error, runner, "graph table", rc) : 0;
}

static int make_speculator(struct runner *runner, const struct attention_config *attention,
	const struct model_buffers *buffers, const struct ladder *ladder, struct model_error *error)
{
	const struct engine_model_options *o = &runner->options;
	int rc;

	if (!runner->engine->device->kernels->verify)
		return fail(error, runner, "this device has no speculation", -ENOTSUP);
	runner->context.features = buffers->features;
	rc = speculator_init(&runner->speculator, &runner->context,
		&(struct speculator_options){
			.draft = o->draft,
			.n_drafts = o->n_drafts,
			.attention = o->draft_attention,
			.support = o->draft_support,
			.mode = o->mode.resolved,
			.piecewise = o->mode.piecewise,
			.ladder = ladder,
			.attention_of_target = *attention,
			.buffers = *buffers,
			.kv = runner->draft_kv,
		});
	return rc ? fail(error, runner, "draft", rc) : 0;
}

int runner_init(struct runner *runner, struct engine *engine, const struct engine_model_options *options,
	struct model_error *error)
{
	const struct engine_options *o = &engine->options;
	struct forward_context *context = &runner->context;
	struct attention_config attention;
	struct model_buffers draft_buffers = {0};
	struct inputs_limits limits;
	struct device_info info;
	struct ladder *ladder;
	int rc;

	*runner = (struct runner){.engine = engine, .options = *options, .model = options->model};
	runner->max_pages = ceil_div(options->max_seq_len, o->page_tokens);
	rc = engine->device->ops->info(engine->device, &info);
	if (rc)
		return fail(error, runner, "device information", rc);
	runner->activation_dtype = info.activation_dtype;
	rc = allocate_host(runner);
	if (rc)
		return fail(error, runner, "host memory", rc);
	limits = inputs_limits(o, &runner->model->config, options->max_seq_len, options->n_drafts,
		options->attention->masks);
	rc = inputs_init(&runner->inputs, engine->device, &limits);
	if (rc)
		return fail(error, runner, "persistent inputs", rc);
	rc = allocate_pool(runner, &draft_buffers);
	if (rc)
		return fail(error, runner, "activation pool", rc);
	rc = allocate_kv(runner, &info);
	if (rc)
		return fail(error, runner, "KV cache", rc);
	attention = attention_config(runner, &info);
	rc = options->attention->manager_new(engine->device, &attention, &runner->inputs.persistent,
		&context->manager);
	if (rc)
		return fail(error, runner, "attention buffers", rc);
	context->device = engine->device;
	context->model = runner->model;
	context->attention = options->attention;
	context->inputs = &runner->inputs;
	context->page_tokens = o->page_tokens;
	context->pool = runner->pool;
	context->pool_bytes = runner->pool_bytes;
	rc = executor_init(&runner->executor, context);
	if (rc)
		return fail(error, runner, "attention state", rc);
	ladder = calloc(1, sizeof(*ladder));
	if (!ladder)
		return fail(error, runner, "host memory", -ENOMEM);
	rc = build_ladder(runner, ladder, error);
	if (!rc)
		rc = make_graphs(runner, ladder, error);
	if (!rc && options->draft)
		rc = make_speculator(runner, &attention, &draft_buffers, ladder, error);
	free(ladder);
	for (uint32_t i = 0; !rc && i < runner->graphs.n; i++)
		runner->graphs.entries[i].owner = (uint32_t)(runner - engine->runners);
	return rc;
}

/* One eager pass that uses every op for real: a row of as many tokens as a step may have, with
 * pages of its own, the other rows empty; then the ops that only some steps use. */
static int warm_up_eager(struct runner *runner)
{
	const struct engine_options *o = &runner->engine->options;
	const struct kernel_ops *kernels = runner->engine->device->kernels;
	struct stream *lane = runner->engine->lane;
	uint32_t n_pages = warm_up_pages(runner), n_tokens = n_pages * o->page_tokens;
	struct inputs_slot *slot = inputs_begin(&runner->inputs, 0);
	struct slot_sampling sampling = {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f, .top_k = 8};
	struct step_row row = {.slot = 0, .flags = ROW_SAMPLE};
	struct step_row empty = {.slot = -1};
	int rc;

	if (!slot)
		return -EBUSY;
	if (n_tokens > o->max_batch_tokens)
		n_tokens = o->max_batch_tokens;
	if (n_tokens > runner->options.max_seq_len)
		n_tokens = runner->options.max_seq_len;
	for (uint32_t i = 0; i < n_pages; i++)
		runner->dropped[i] = i + 1;
	inputs_add_init(slot, 0, &sampling, runner->dropped, n_pages);
	row.n_tokens = n_tokens;
	memset(inputs_add_row(slot, &row), 0, n_tokens * sizeof(int32_t));
	for (uint32_t i = 1; i < o->max_requests; i++)
		inputs_add_row(slot, &empty);
	memset(runner->query_lens, 0, o->max_requests * sizeof(*runner->query_lens));
	memset(runner->seq_lens, 0, o->max_requests * sizeof(*runner->seq_lens));
	runner->query_lens[0] = runner->seq_lens[0] = n_tokens;
	rc = executor_run(&runner->executor, NULL, slot, runner->query_lens, runner->seq_lens, lane);
	if (!rc && runner->options.draft)
		rc = speculator_run(&runner->speculator, slot->record, &(struct batch_shape){
			.rows = o->max_requests, .tokens = n_tokens}, runner->query_lens,
			runner->seq_lens, lane);
	if (!rc)
		rc = kernels->to_f32(lane, &(struct op_to_f32){
			.x = runner->context.buffers.last_hidden,
			.out = runner->inputs.hidden_f32,
			.n = runner->model->config.hidden_size,
		});
	slot->copies[0][0] = slot->copies[0][1] = 0;
	if (!rc)
		rc = kernels->copy_pages(lane, &(struct op_copy_pages){
			.kv = runner->context.kv_layers[0],
			.page_bytes = kv_layer_page_bytes(kv_cache_config(runner->kv)),
			.pairs = slot->copies[0],
			.n_pairs = 1,
		});
	if (!rc)
		rc = kernels->outbox(lane, &(struct op_outbox){
			.sampled = runner->inputs.sampled,
			.out = slot->sampled,
			.flag = slot->flag,
			.n_rows = o->max_requests * (1 + runner->options.n_drafts),
		});
	if (!rc)
		rc = runner->engine->device->ops->stream_sync(lane);
	return rc;
}

static void tell(struct runner *runner, bool capture, uint32_t done, uint32_t total)
{
	const struct engine_options *o = &runner->engine->options;

	if (o->progress)
		o->progress(o->progress_userdata, &(struct engine_progress){
			.model = runner->options.name,
			.capture = capture,
			.done = done,
			.total = total,
		});
}

/* Over the model's graphs and then its draft's. */
struct telling {
	struct runner *runner;
	bool capture;
	uint32_t before, total;
};

static void on_graph(void *userdata, uint32_t done, uint32_t total)
{
	const struct telling *telling = userdata;

	(void)total;
	tell(telling->runner, telling->capture, telling->before + done, telling->total);
}

int runner_warm_up(struct runner *runner, struct model_error *error)
{
	struct telling telling = {.runner = runner,
		.total = runner->graphs.n + speculator_n_graphs(&runner->speculator)};
	int rc = warm_up_eager(runner);

	if (!rc)
		rc = graph_set_warm_up(&runner->graphs, &runner->context, runner->engine->lane,
			on_graph, &telling);
	telling.before = runner->graphs.n;
	if (!rc && runner->options.draft)
		rc = speculator_warm_up(
			&runner->speculator, runner->engine->lane, on_graph, &telling);
	return rc ? fail(error, runner, "warm-up", rc) : 0;
}

int runner_capture(struct runner *runner, struct model_error *error)
{
	const bool lazy = runner->engine->options.lazy_capture;
	const uint32_t n = lazy ? 0 : runner->graphs.n;
	struct telling telling = {.runner = runner, .capture = true,
		.total = n + speculator_n_graphs(&runner->speculator)};
	int rc = 0;

	if (!lazy)
		rc = graph_set_capture(&runner->graphs, &runner->executor.breakable,
			runner->engine->lane, on_graph, &telling);
	telling.before = n;
	/* A draft's are small, and no step asks for one of them alone. */
	if (!rc && runner->options.draft)
		rc = speculator_capture(
			&runner->speculator, runner->engine->lane, on_graph, &telling);
	return rc ? fail(error, runner, "capture", rc) : 0;
}

/* Of the device's memory, for what comes after the KV pages: captures while serving, clients' buffers,
 * what the driver takes for itself. */
static uint64_t reserve_of(const struct engine *engine, const struct device_info *info)
{
	uint64_t bytes = info->free_bytes / 20;

	if (bytes > RESERVE_BYTES_MAX)
		bytes = RESERVE_BYTES_MAX;
	for (uint32_t i = 0; engine->options.lazy_capture && i < engine->n_runners; i++)
		bytes += engine->runners[i].graphs.n * LAZY_GRAPH_BYTES;
	return bytes;
}

uint64_t runner_page_bytes(const struct runner *runner)
{
	return kv_page_bytes(kv_cache_config(runner->kv)) +
	       (runner->draft_kv ? kv_page_bytes(kv_cache_config(runner->draft_kv)) : 0);
}

/* What its KV pages still take of the device. */
static uint64_t wanted_bytes(const struct runner *runner)
{
	uint32_t there = kv_pages_total(runner->kv), wanted = runner->options.kv_pages;

	return wanted > there ? (wanted - there) * runner_page_bytes(runner) : 0;
}

/* Pages that fit in this model's part of what weights, pool and graphs have left of the device, at most
 * those wanted. Of the models that are not mapped yet, those that want exactly so many get them, and the
 * others share the rest in proportion to what they want. */
static int fit_pages(const struct runner *runner, uint32_t *ret)
{
	const struct engine *engine = runner->engine;
	uint64_t sharing = 0, taken, left;
	struct device_info info;
	int rc = engine->device->ops->info(engine->device, &info);

	if (rc)
		return rc;
	taken = reserve_of(engine, &info);
	for (const struct runner *r = runner; r < engine->runners + engine->n_runners; r++)
		*(r->options.kv_exact ? &taken : &sharing) += wanted_bytes(r);
	left = info.free_bytes > taken ? info.free_bytes - taken : 0;
	if (sharing > left)
		left = (uint64_t)((double)left * ((double)wanted_bytes(runner) / (double)sharing));
	left = (uint64_t)((double)left * ((double)kv_page_bytes(kv_cache_config(runner->kv)) /
						 (double)runner_page_bytes(runner)));
	*ret = smaller(kv_pages_within(runner->kv, left), runner->options.kv_pages);
	return 0;
}

int runner_map(struct runner *runner, struct model_error *error)
{
	uint32_t n = runner->options.kv_pages;
	int rc = runner->options.kv_exact ? 0 : fit_pages(runner, &n);

	if (!rc && n < runner->options.kv_pages)
		log_warn("model %s: KV cache: %u page%s in what graphs have left of the device, not "
			"%u: fewer capture sizes or models leave more", runner->options.name, n,
			n == 1 ? " fits" : "s fit", runner->options.kv_pages);
	runner->options.kv_pages = n;
	if (!rc)
		rc = kv_cache_map(runner->kv, n + 1);
	if (!rc && runner->draft_kv)
		rc = kv_cache_map(runner->draft_kv, n + 1);
	if (rc)
		return fail(error, runner, "KV pages", rc);
	atomic_store(&runner->pages_free, kv_pages_free(runner->kv));
	return 0;
}

void runner_deinit(struct runner *runner)
{
	struct device *device;

	if (!runner || !runner->engine)
		return;
	device = runner->engine->device;
	if (runner->options.draft)
		speculator_deinit(&runner->speculator);
	graph_set_deinit(&runner->graphs, device);
	executor_deinit(&runner->executor);
	if (runner->context.manager)
		runner->options.attention->manager_free(runner->context.manager);
	kv_cache_free(runner->draft_kv);
	kv_cache_free(runner->kv);
	if (runner->pool)
		device->ops->mem_free(device, runner->pool);
	inputs_deinit(&runner->inputs);
	free(runner->context.kv_layers);
	free(runner->dropped);
	free(runner->copies);
	free(runner->running);
	free(runner->free_slots);
	free(runner->seq_lens);
	free(runner->query_lens);
	engine_model_options_deinit(&runner->options);
	*runner = (struct runner){0};
}
