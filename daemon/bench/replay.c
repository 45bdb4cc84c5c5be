/* SPDX-License-Identifier: MIT */
#include "daemon/bench/replay.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/model/error.h"

#define MAX_BATCH_TOKENS 512u /* the daemon's default, for which activations are allocated */
#define PAGE_TOKENS 16u

/* ---- runs ---- */

struct replay_run replay_run_at(
	const struct bench_options *options, uint32_t index, enum graph_mode mode)
{
	uint32_t context = options->contexts.at[index % options->contexts.n];
	struct replay_run run = {.mode = mode,
		.n_rows = options->batches.at[index / options->contexts.n],
		.n_steps = options->count};
	uint32_t before = replay_run_middle(&run);

	assert(index < options->batches.n * options->contexts.n);
	run.first = context > before ? context - before : 0;
	return run;
}

int replay_run_alloc(struct replay_run *run)
{
	run->steps = samples_new(run->n_steps);
	run->lanes = samples_new(run->n_steps);
	run->gaps = samples_new(run->n_steps);
	run->launches = samples_new(run->n_steps + REPLAY_WARM_UPS);
	return run->steps && run->lanes && run->gaps && run->launches ? 0 : -ENOMEM;
}

void replay_run_deinit(struct replay_run *run)
{
	samples_free(run->launches);
	samples_free(run->gaps);
	samples_free(run->lanes);
	samples_free(run->steps);
	*run = (struct replay_run){0};
}

uint32_t replay_run_middle(const struct replay_run *run)
{
	return run->first + REPLAY_WARM_UPS + run->n_steps / 2 + 1;
}

static uint32_t replay_run_positions(const struct replay_run *run)
{
	return run->first + run->n_steps + REPLAY_WARM_UPS;
}

static uint32_t replay_row_pages(const struct replay_run *run)
{
	return (replay_run_positions(run) + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* ---- opening: what startup and the engine do for a model ---- */

static int replay_load(struct replay *replay, const struct bench_options *options,
	uint32_t positions, struct model_error *error)
{
	struct engine_model_options *o = &replay->limits.models[0];
	struct model_config config;
	int rc = model_config_load(options->model_dir, &config, error);

	if (rc)
		return rc;
	config.head_fp8 = strcmp(options->head_dtype, "fp8") == 0;
	config.kv_fp8 = strcmp(options->kv_dtype, "fp8") == 0;
	o->max_seq_len = config.max_seq_len;
	if (config.max_seq_len < positions)
		rc = model_fail(error, -ERANGE, "the model takes %u tokens, not %u",
			config.max_seq_len, positions);
	else
		rc = model_load(replay->probe.device, options->model_dir, &config,
			config.max_seq_len, NULL, NULL, &o->model, error);
	if (!rc && options->deterministic && !replay->probe.info.invariant)
		rc = model_fail(error, -ENOTSUP, "this device has no deterministic products");
	else if (!rc)
		o->model->deterministic |= options->deterministic;
	model_config_deinit(&config);
	return rc;
}

static int replay_choose_attention(
	struct replay *replay, const struct bench_options *options, struct model_error *error)
{
	struct engine_model_options *o = &replay->limits.models[0];
	struct attention_config config = model_attention(&o->model->config, &replay->probe.info);

	config.page_tokens = PAGE_TOKENS;
	config.max_rows = replay->limits.max_requests;
	config.max_tokens = MAX_BATCH_TOKENS;
	config.max_pages = (o->max_seq_len + PAGE_TOKENS - 1) / PAGE_TOKENS;
	config.max_seq_len = o->max_seq_len;
	int rc = attention_layers_choose(
		options->attention, &config, &o->attention, error->text, sizeof(error->text));
	if (rc)
		return rc;
	error->text[0] = '\0'; /* it said why that one */
	return o->attention.support == ATTENTION_NEVER ? -ENOTSUP : 0;
}

static int replay_fill_cache(struct replay *replay)
{
	const struct runner *runner = &replay->runner;
	const struct kv_config *config = kv_cache_config(runner->kv);
	uint64_t bytes = (runner->options.kv_pages + 1) * kv_layer_page_bytes(config);
	int rc = 0;

	for (uint32_t i = 0; i < config->n_layers && !rc; i++)
		rc = probe_fill(
			replay->probe.device, runner->context.kv_layers[i], bytes, config->dtype);
	return rc;
}

/* On the cpu device the host should not spin on flags. */
static int replay_make_events(struct replay *replay)
{
	int rc = 0;

	for (uint32_t i = 0; i < INPUTS_SLOTS && !rc && replay->probe.is_host; i++)
		rc = replay->probe.device->ops->event_new(replay->probe.device, &replay->done[i]);
	return rc;
}

/* Open device and model for the runs; measures the copy rate if `rates`. */
static int replay_open(struct replay *ret, const struct bench_options *options,
	const struct replay_run *runs, uint32_t n_runs, bool rates, struct model_error *error)
{
	struct engine_options *limits = &ret->limits;
	struct engine_model_options *o = &limits->models[0];
	uint32_t positions = 0;

	*ret = (struct replay){0};
	limits->n_models = 1;
	limits->max_batch_tokens = MAX_BATCH_TOKENS;
	limits->page_tokens = PAGE_TOKENS;
	/* The default mode: for a decode there is one graph of each kind. */
	o->mode = (struct mode_resolution){.resolved = GRAPH_FULL_AND_PIECEWISE, .piecewise = true};
	snprintf(o->name, sizeof(o->name), "bench");
	for (uint32_t i = 0; i < n_runs; i++) {
		uint32_t pages = runs[i].n_rows * replay_row_pages(&runs[i]);

		if (runs[i].n_rows > limits->max_requests)
			limits->max_requests = runs[i].n_rows;
		if (pages > o->kv_pages)
			o->kv_pages = pages;
		if (replay_run_positions(&runs[i]) > positions)
			positions = replay_run_positions(&runs[i]);
	}
	int rc = probe_open(&ret->probe, options->device, error->text, sizeof(error->text));
	if (rc)
		return rc;
	limits->device = ret->probe.device;
	rc = rates ? probe_copy_rate(&ret->probe) : 0;
	if (rc)
		return rc;
	rc = replay_load(ret, options, positions, error);
	if (rc)
		return rc;
	rc = replay_choose_attention(ret, options, error);
	if (rc)
		return rc;
	rc = runner_init(&ret->runner, limits, o, ret->probe.stream, error);
	if (rc)
		return rc;
	rc = runner_map_all(&(const struct runners){.all = {&ret->runner}, .n = 1}, error);
	if (rc)
		return rc;
	rc = replay_make_events(ret);
	return rc ? rc : replay_fill_cache(ret);
}

int replay_open_all(struct replay *ret, const struct bench_options *options,
	struct results *results, struct model_error *error)
{
	struct replay_run runs[BENCH_LIST_MAX * BENCH_LIST_MAX];
	uint32_t n = options->batches.n * options->contexts.n;

	for (uint32_t i = 0; i < n; i++)
		runs[i] = replay_run_at(options, i, GRAPH_FULL);
	int rc = replay_open(ret, options, runs, n, true, error);
	if (!rc)
		results_machine(results, ret->probe.info.name, NULL, NULL);
	return rc;
}

void replay_close(struct replay *replay)
{
	const struct device_ops *ops = replay->probe.device ? replay->probe.device->ops : NULL;

	if (replay->probe.stream)
		ops->stream_sync(replay->probe.stream);
	for (uint32_t i = 0; i < INPUTS_SLOTS; i++) {
		if (replay->done[i])
			ops->event_free(replay->done[i]);
	}
	if (replay->runner.device)
		runner_deinit(&replay->runner);
	else
		engine_model_options_deinit(&replay->limits.models[0]);
	probe_close(&replay->probe);
	*replay = (struct replay){0};
}

int replay_graph(struct replay *replay, uint32_t n_rows, enum graph_mode mode,
	struct graph_entry **ret)
{
	/* A batch with prompts takes the graphs for any batch. */
	const struct batch_shape shape = {n_rows, n_rows, true, mode == GRAPH_FULL, 1};
	enum eager_reason reason = EAGER_NO;
	struct runner *runner = &replay->runner;

	*ret = NULL;
	if (mode == GRAPH_NONE)
		return 0;
	*ret = graph_set_dispatch(&runner->graphs, &shape, &reason);
	if (!*ret)
		return -ERANGE;
	return reason == EAGER_NOT_CAPTURED
		? capture_now(*ret, &runner->executor.breakable, runner->lane) : 0;
}

/* ---- steps ---- */

/* Add a row of one token: the first is 0, later ones are the token that the slot has sampled. */
static void replay_add_row(struct replay *replay, struct inputs_slot *slot, uint32_t index,
	uint32_t row, uint32_t position, uint32_t flags)
{
	*inputs_add_row(slot, &(struct step_row){
		.slot = (int32_t)row,
		.flags = ROW_SAMPLE | flags,
		.n_tokens = 1,
		.start = position,
	}) = 0;
	replay->runner.query_lens[index] = 1;
	replay->runner.seq_lens[index] = position + 1;
}

static int replay_queue(
	struct replay *replay, struct graph_entry *entry, struct inputs_slot *slot, uint32_t n_rows)
{
	struct runner *runner = &replay->runner;
	int rc = executor_run(&runner->executor, entry, slot, runner->query_lens, runner->seq_lens,
		runner->lane);

	if (rc)
		return rc;
	rc = runner->device->kernels->outbox(runner->lane, &(struct op_outbox){
		.sampled = runner->inputs.sampled,
		.out = slot->sampled,
		.flag = slot->flag,
		.step = slot->step,
		.ended = slot->ended,
		.n_rows = n_rows,
	});
	if (rc || !replay->done[0])
		return rc;
	return runner->device->ops->event_record(
		replay->done[slot->step % INPUTS_SLOTS], runner->lane);
}

/* Wait for the end of a step by its flag, as the engine does. */
static int replay_await(struct replay *replay, const struct inputs_slot *slot)
{
	const struct device_ops *ops = replay->runner.device->ops;
	int rc = 0;

	if (replay->done[0])
		return ops->event_sync(replay->done[slot->step % INPUTS_SLOTS]);
	while (!rc && !inputs_slot_done(slot))
		rc = ops->status(replay->runner.device);
	return rc;
}

/* Compute the first token of each row, eager, as many rows per step as the step record has space for. Each
 * slot gets its own pages. */
static int replay_set_up(struct replay *replay, const struct replay_run *run)
{
	const struct slot_sampling greedy = {.top_p = 1};
	struct runner *runner = &replay->runner;
	uint32_t n_pages = replay_row_pages(run), row = 0;

	while (row < run->n_rows) {
		struct inputs_slot *slot = inputs_begin(&runner->inputs, ++runner->launched);
		uint32_t n = 0;

		if (!slot)
			return -EBUSY;
		do {
			for (uint32_t i = 0; i < n_pages; i++)
				runner->dropped[i] = 1 + row * n_pages + i;
			inputs_add_init(slot, (int32_t)row, &greedy, runner->dropped, n_pages);
			replay_add_row(replay, slot, n++, row++, run->first, 0);
		} while (row < run->n_rows && inputs_can_init(&runner->inputs, slot, n_pages));
		int rc = replay_queue(replay, NULL, slot, n);
		if (!rc)
			rc = replay_await(replay, slot);
		if (rc)
			return rc;
	}
	return 0;
}

static int replay_launch(struct replay *replay, struct replay_run *run, struct graph_entry *entry,
	uint32_t position, const struct inputs_slot **ret)
{
	struct runner *runner = &replay->runner;
	uint64_t before = clock_ns();
	struct inputs_slot *slot = inputs_begin(&runner->inputs, ++runner->launched);

	if (!slot)
		return -EBUSY;
	for (uint32_t i = 0; i < run->n_rows; i++)
		replay_add_row(replay, slot, i, i, position, ROW_FROM_SLOT);
	int rc = replay_queue(replay, entry, slot, run->n_rows);
	samples_add(run->launches, clock_ns() - before);
	*ret = slot;
	return rc;
}

/* Launches step k + 1 before step k has completed, as the engine does. */
int replay_measure(struct replay *replay, struct replay_run *run)
{
	const uint32_t n = run->n_steps + REPLAY_WARM_UPS - 1; /* behind replay_set_up's */
	const struct inputs_slot *slots[2];
	uint64_t host = 0, lane = 0; /* when the last awaited step ended, on either clock */
	struct graph_entry *entry;

	if ((uint64_t)run->n_rows * replay_row_pages(run) > replay->runner.options.kv_pages)
		return -ENOSPC;
	int rc = replay_set_up(replay, run);
	if (!rc)
		rc = replay_graph(replay, run->n_rows, run->mode, &entry);
	for (uint32_t i = 0; i <= n && !rc; i++) {
		if (i < n)
			rc = replay_launch(replay, run, entry, run->first + 1 + i, &slots[i % 2]);
		if (rc || i == 0)
			continue;
		const struct inputs_slot *slot = slots[(i - 1) % 2];
		rc = replay_await(replay, slot);
		uint64_t now = clock_ns(), began = *slot->began, ended = *slot->ended;
		if (!rc && i >= REPLAY_WARM_UPS) {
			samples_add(run->steps, now - host);
			samples_add(run->lanes, ended > began ? ended - began : 0);
			samples_add(run->gaps, began > lane ? began - lane : 0);
		}
		host = now;
		lane = ended;
	}
	return rc;
}

/* ---- the floor of what is served ---- */

struct replay_work {
	const struct bench_options *options;
	struct replay_run *runs;
	uint32_t n_runs;
};

static int replay_child(void *arg, int fd)
{
	static struct replay replay;
	const struct replay_work *work = arg;
	struct model_error error = {""};
	int rc = replay_open(&replay, work->options, work->runs, work->n_runs, false, &error);

	for (uint32_t i = 0; i < work->n_runs && !rc; i++)
		rc = replay_measure(&replay, &work->runs[i]);
	replay_close(&replay);
	return bench_fail_device(rc, "the floor", error.text) != 0;
}

int replay_floors(const struct bench_options *options, struct replay_run *runs, uint32_t n_runs)
{
	struct replay_work work = {options, runs, n_runs};

	return child_run("the floor", replay_child, &work, options->timeout_s);
}
