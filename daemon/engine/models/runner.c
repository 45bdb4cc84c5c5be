/* SPDX-License-Identifier: MIT */
/*
 * runner_init allocates worst-case sizes: the KV ranges are reserved, the null page and the warm-up's
 * pages mapped. The other phases are in runner.h.
 */
#include "daemon/engine/models/runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct attention_config runner_attention(
	const struct runner *runner, const struct device_info *info)
{
	const struct engine_options *o = runner->limits;
	struct attention_config config = model_attention(&runner->model->config, info);

	config.page_tokens = o->page_tokens;
	config.max_rows = o->max_requests;
	config.max_tokens = o->max_batch_tokens;
	config.max_pages = runner->inputs.limits.max_pages;
	/* A row to verify may reach that far behind a sequence's end. */
	config.max_seq_len = runner->options.max_seq_len + runner->options.n_drafts;
	config.max_decode_query = 1 + runner->options.n_drafts;
	config.n_kv_pages = kv_cache_config(runner->kv)->max_pages;
	config.invariant = runner->model->deterministic;
	config.layers = &runner->options.attention;
	return config;
}

static int runner_build_ladder(const struct runner *runner, struct ladder *ret, struct model_error *error)
{
	const struct engine_options *o = runner->limits;
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

static int runner_make_speculator(struct runner *runner, const struct attention_config *attention,
	const struct model_buffers *buffers, const struct ladder *ladder, struct model_error *error)
{
	const struct engine_model_options *o = &runner->options;
	int rc;

	if (!o->draft)
		return 0;
	if (!runner->device->kernels->verify)
		return runner_fail(error, runner, "this device has no speculation", -ENOTSUP);
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
	return rc ? runner_fail(error, runner, "draft", rc) : 0;
}

static void runner_set_context(struct runner *runner)
{
	struct forward_context *context = &runner->context;

	context->device = runner->device;
	context->model = runner->model;
	context->attention = runner->options.attention.backend;
	context->inputs = &runner->inputs;
	context->page_tokens = runner->limits->page_tokens;
	context->pool = runner->pool;
	context->pool_bytes = runner->pool_bytes;
}

/* The graphs' table, and the draft's part, which has the same sizes. */
static int runner_make_tables(struct runner *runner, const struct attention_config *attention,
	const struct model_buffers *draft_buffers, struct model_error *error)
{
	const struct engine_options *o = runner->limits;
	/* Decodes that verify, and those of steps without draft tokens. */
	const uint32_t queries[] = {1, 1 + runner->options.n_drafts};
	struct ladder ladder;
	int rc = runner_build_ladder(runner, &ladder, error);

	if (rc)
		return rc;
	rc = graph_set_init_queries(&runner->graphs, runner->options.mode.resolved, &ladder, queries,
		runner->options.draft ? 2 : 1, o->max_requests, o->max_batch_tokens);
	if (rc)
		return runner_fail(error, runner, "graph table", rc);
	return runner_make_speculator(runner, attention, draft_buffers, &ladder, error);
}

void runner_set_id(struct runner *runner, uint32_t id)
{
	runner->id = id;
	for (uint32_t i = 0; i < runner->graphs.n; i++)
		runner->graphs.entries[i].owner = id;
}

int runner_init(struct runner *runner, const struct engine_options *limits,
	const struct engine_model_options *options, struct stream *lane, struct model_error *error)
{
	struct model_buffers draft_buffers = {0};
	struct attention_config attention;
	struct device_info info;
	int rc;

	*runner = (struct runner){
		.options = *options,
		.limits = limits,
		.device = limits->device,
		.lane = lane,
		.model = options->model,
	};
	rc = runner->device->ops->info(runner->device, &info);
	if (rc)
		return runner_fail(error, runner, "device information", rc);
	runner->activation_dtype = info.activation_dtype;
	rc = runner_allocate(runner, &info, &draft_buffers, error);
	if (rc)
		return rc;
	attention = runner_attention(runner, &info);
	rc = runner->options.attention.backend->manager_new(runner->device, &attention,
		&runner->inputs.persistent, &runner->context.manager);
	if (rc)
		return runner_fail(error, runner, "attention buffers", rc);
	runner_set_context(runner);
	rc = executor_init(&runner->executor, &runner->context);
	if (rc)
		return runner_fail(error, runner, "attention state", rc);
	return runner_make_tables(runner, &attention, &draft_buffers, error);
}

/* ---- warm-up and capture ---- */

/* The most tokens of a row. */
static uint32_t runner_warm_up_tokens(const struct runner *runner)
{
	const struct engine_options *o = runner->limits;
	uint32_t n = runner_warm_up_pages(runner) * o->page_tokens;

	if (n > o->max_batch_tokens)
		n = o->max_batch_tokens;
	return n < runner->options.max_seq_len ? n : runner->options.max_seq_len;
}

/* A row of so many tokens, with pages of its own, the other rows empty. */
static void runner_fill_warm_up(struct runner *runner, struct inputs_slot *slot, uint32_t n_tokens)
{
	const struct engine_options *o = runner->limits;
	const struct slot_sampling sampling = {
		.temperature = 1, .top_p = 0.9f, .min_p = 0.01f, .top_k = 8};
	const struct step_row empty = {.slot = -1};
	struct step_row row = {.slot = 0,
		.flags = ROW_SAMPLE | ROW_ADJUST | ROW_COUNT | ROW_LOGPROBS};
	const uint32_t n_pages = runner_warm_up_pages(runner);

	assert(n_pages > 0 && n_pages <= runner->max_pages && n_tokens > 0);
	for (uint32_t i = 0; i < n_pages; i++)
		runner->dropped[i] = i + 1;
	inputs_add_init(slot, 0, &sampling, runner->dropped, n_pages);
	for (uint32_t set = 1; set < runner->options.sets.n; set++)
		inputs_add_change(slot, 0, set, 0, runner->dropped, n_pages);
	row.n_tokens = n_tokens;
	memset(inputs_add_row(slot, &row), 0, n_tokens * sizeof(int32_t));
	for (uint32_t i = 1; i < o->max_requests; i++)
		inputs_add_row(slot, &empty);
	memset(runner->query_lens, 0, o->max_requests * sizeof(*runner->query_lens));
	memset(runner->seq_lens, 0, o->max_requests * sizeof(*runner->seq_lens));
	runner->query_lens[0] = runner->seq_lens[0] = n_tokens;
}

/* Of the row. */
static int runner_update_warm_up(struct runner *runner, struct inputs_slot *slot)
{
	const struct slot_update update = {
		.flags = UPDATE_CLEAR | UPDATE_SET,
		.adjust = {.repetition = 1, .presence = 1, .n_top = LOGPROBS_TOP_MAX},
	};

	inputs_add_update(slot, &update);
	return inputs_update(&runner->inputs, slot, runner->lane);
}

static int runner_run_position_ops(struct runner *runner, struct inputs_slot *slot)
{
	const struct kernel_ops *kernels = runner->device->kernels;
	const struct model_buffers *buffers = &runner->context.buffers;
	int rc = forward_logits_of(&runner->context, 0, 1, runner->lane);

	if (rc)
		return rc;
	slot->score_tokens[0] = 0;
	rc = kernels->logprobs(runner->lane, &(struct op_logprobs){
		.logits = buffers->logits,
		.tokens = slot->score_tokens,
		.out = slot->scores,
		.n_rows = 1,
		.vocab = runner->model->config.vocab_size,
		.n_top = LOGPROBS_TOP_MAX,
	});
	if (rc)
		return rc;
	return kernels->mean_rows(runner->lane, &(struct op_mean_rows){
		.x = buffers->normed,
		.sum = runner->inputs.hidden_sums,
		.mean = runner->inputs.hidden_f32,
		.n_rows = 1,
		.cols = runner->model->config.hidden_size,
		.first = true,
		.total = 1,
	});
}

/* The ops that only some steps use. */
static int runner_run_rare_ops(struct runner *runner, struct inputs_slot *slot)
{
	const struct kernel_ops *kernels = runner->device->kernels;
	struct stream *lane = runner->lane;
	int rc = kernels->to_f32(lane, &(struct op_to_f32){
		.x = runner->context.buffers.last_hidden,
		.out = runner->inputs.hidden_f32,
		.n = runner->model->config.hidden_size,
	});

	if (rc)
		return rc;
	slot->copies[0][0] = slot->copies[0][1] = 0;
	rc = kernels->copy_pages(lane, &(struct op_copy_pages){
		.kv = runner->context.kv_layers[0],
		.page_bytes = kv_layer_page_bytes(kv_cache_config(runner->kv)),
		.pairs = slot->copies[0],
		.n_pairs = 1,
	});
	if (rc)
		return rc;
	rc = runner_run_position_ops(runner, slot);
	if (rc)
		return rc;
	return kernels->outbox(lane, &(struct op_outbox){
		.sampled = runner->inputs.sampled,
		.out = slot->sampled,
		.flag = slot->flag,
		.n_rows = runner->limits->max_requests * (1 + runner->options.n_drafts),
	});
}

/* One eager pass that uses every op for real. */
static int runner_warm_up_eager(struct runner *runner, uint32_t n_tokens)
{
	struct stream *lane = runner->lane;
	struct inputs_slot *slot = inputs_begin(&runner->inputs, 0);
	int rc;

	if (!slot)
		return -EBUSY;
	runner_fill_warm_up(runner, slot, n_tokens);
	rc = runner_update_warm_up(runner, slot);
	if (rc)
		return rc;
	rc = executor_run(&runner->executor, NULL, slot, runner->query_lens, runner->seq_lens, lane);
	if (rc)
		return rc;
	if (runner->options.draft) {
		const struct batch_shape shape = {
			.rows = runner->limits->max_requests, .tokens = n_tokens};

		rc = speculator_run(&runner->speculator, slot->record, &shape, runner->query_lens,
			runner->seq_lens, runner->options.n_drafts, lane);
		if (rc)
			return rc;
	}
	rc = runner_run_rare_ops(runner, slot);
	return rc ? rc : runner->device->ops->stream_sync(lane);
}

/* Products choose their kernels by the number of rows, unless they are invariant: one eager pass for each class above
 * those of the graphs. */
static int runner_warm_up_wide(struct runner *runner)
{
	uint32_t n_tokens = runner_warm_up_tokens(runner);
	int rc;

	do {
		rc = runner_warm_up_eager(runner, n_tokens);
		n_tokens = ladder_wide(n_tokens - 1);
	} while (!rc && n_tokens > LADDER_DEFAULT_MAX && !runner->model->deterministic);
	return rc;
}

/* Over the model's graphs and then its draft's. */
struct runner_progress {
	struct runner *runner;
	bool capture;
	uint32_t before, total;
};

static void runner_on_graph(void *userdata, uint32_t done, uint32_t total)
{
	const struct runner_progress *progress = userdata;
	const struct engine_options *o = progress->runner->limits;

	assert(done <= total && progress->before + done <= progress->total);
	if (o->progress)
		o->progress(o->progress_userdata, &(struct engine_progress){
			.model = progress->runner->options.name,
			.capture = progress->capture,
			.done = progress->before + done,
			.total = progress->total,
		});
}

int runner_warm_up(struct runner *runner, struct model_error *error)
{
	struct runner_progress progress = {.runner = runner,
		.total = runner->graphs.n + speculator_n_graphs(&runner->speculator)};
	int rc = runner_warm_up_wide(runner);

	if (rc)
		return runner_fail(error, runner, "warm-up", rc);
	rc = graph_set_warm_up(&runner->graphs, &runner->context, runner->lane, runner_on_graph, &progress);
	if (rc)
		return runner_fail(error, runner, "warm-up", rc);
	if (!runner->options.draft)
		return 0;
	progress.before = runner->graphs.n;
	rc = speculator_warm_up(&runner->speculator, runner->lane, runner_on_graph, &progress);
	return rc ? runner_fail(error, runner, "warm-up", rc) : 0;
}

int runner_capture(struct runner *runner, struct model_error *error)
{
	const uint32_t n = runner->limits->lazy_capture ? 0 : runner->graphs.n;
	struct runner_progress progress = {.runner = runner, .capture = true,
		.total = n + speculator_n_graphs(&runner->speculator)};
	int rc;

	if (!runner->limits->lazy_capture) {
		rc = graph_set_capture(&runner->graphs, &runner->executor.breakable, runner->lane,
			runner_on_graph, &progress);
		if (rc)
			return runner_fail(error, runner, "capture", rc);
	}
	if (!runner->options.draft)
		return 0;
	/* A draft's are small, and no step asks for one of them alone. */
	progress.before = n;
	rc = speculator_capture(&runner->speculator, runner->lane, runner_on_graph, &progress);
	return rc ? runner_fail(error, runner, "capture", rc) : 0;
}

void engine_model_options_deinit(struct engine_model_options *options)
{
	model_free(options->draft);
	model_free(options->model);
	options->draft = options->model = NULL;
}

void runner_deinit(struct runner *runner)
{
	struct device *device = runner->device;

	if (!device)
		return;
	if (runner->options.draft)
		speculator_deinit(&runner->speculator);
	graph_set_deinit(&runner->graphs, device);
	executor_deinit(&runner->executor);
	if (runner->context.manager)
		runner->options.attention.backend->manager_free(runner->context.manager);
	kv_cache_free(runner->draft_kv);
	kv_cache_free(runner->kv);
	if (runner->pool)
		device->ops->mem_free(device, runner->pool);
	inputs_deinit(&runner->inputs);
	free(runner->context.kv_layers);
	free(runner->dropped);
	free(runner->slots.marks);
	free(runner->slots.pinned.holders);
	free(runner->slots.pinned.n_tables);
	free(runner->slots.copies);
	free(runner->slots.running);
	free(runner->slots.free);
	free(runner->seq_lens);
	free(runner->query_lens);
	engine_model_options_deinit(&runner->options);
	*runner = (struct runner){0};
}
