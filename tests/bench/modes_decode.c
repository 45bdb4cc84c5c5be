/* SPDX-License-Identifier: MIT */
#include "tests/bench/modes.h"

#include <errno.h>

#include "daemon/bench/replay.h"
#include "daemon/bench/report.h"

#define DEFAULT_STEPS 64u

static uint32_t n_steps(const struct bench_options *options)
{
	return options->count ? options->count : DEFAULT_STEPS;
}

/* ---- what is to be measured ---- */

static int batch_init(struct modes_batch *batch, const struct bench_options *options, uint32_t i)
{
	bool ok = true;

	batch->batch = options->batches[i / options->n_contexts];
	batch->context = options->contexts[i % options->n_contexts];
	for (uint32_t mode = 0; mode < MODES_CONCRETE; mode++) {
		batch->steps[mode] = samples_new(n_steps(options));
		batch->launches[mode] = samples_new(n_steps(options) + REPLAY_WARM_UPS);
		ok = ok && batch->steps[mode] && batch->launches[mode];
	}
	return ok ? 0 : -ENOMEM;
}

void modes_lane_free(struct modes_lane *lane)
{
	for (uint32_t i = 0; lane && i < lane->n_batches; i++) {
		for (uint32_t mode = 0; mode < MODES_CONCRETE; mode++) {
			samples_free(lane->batches[i].launches[mode]);
			samples_free(lane->batches[i].steps[mode]);
		}
	}
	child_memory_free(lane, sizeof(*lane));
}

struct modes_lane *modes_lane_new(const struct bench_options *options)
{
	struct modes_lane *lane = child_memory(sizeof(*lane));
	int r = lane ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < options->n_batches * options->n_contexts && r == 0; i++)
		r = batch_init(&lane->batches[lane->n_batches++], options, i);
	if (r == 0)
		return lane;
	modes_lane_free(lane);
	return NULL;
}

/* The context is what the middle step sees. */
static struct replay_run replay_of(
	const struct bench_options *options, const struct modes_batch *batch, enum graph_mode mode)
{
	uint32_t before = n_steps(options) / 2 + REPLAY_WARM_UPS + 1;

	return (struct replay_run){
		.mode = mode,
		.n_rows = batch->batch,
		.first = batch->context > before ? batch->context - before : 0,
		.n_steps = n_steps(options),
		.steps = batch->steps[mode],
		.launches = batch->launches[mode],
	};
}

/* ---- the child ---- */

struct lane_work {
	const struct bench_options *options;
	struct modes_lane *facts;
};

/* Both rates' buffers come and go before the model does. */
static int take_rates(const struct lane_work *work, char *why, size_t size)
{
	struct probe probe;
	int rc = probe_open(&probe, work->options->device, why, size);

	if (!rc)
		rc = probe_rates(&probe);
	work->facts->rates = probe.rates;
	probe_close(&probe);
	return rc;
}

static int run_batch(
	const struct bench_options *options, struct lane *lane, struct modes_batch *batch)
{
	static const enum graph_mode modes[] = {GRAPH_FULL, GRAPH_PIECEWISE, GRAPH_NONE};
	struct graph_entry *pieces;
	int rc = 0;

	for (uint32_t i = 0; i < MODES_CONCRETE && !rc; i++) {
		const struct replay_run replay = replay_of(options, batch, modes[i]);

		batch->kv_bytes = lane_kv_bytes(lane, batch->batch,
			replay.first + REPLAY_WARM_UPS + n_steps(options) / 2 + 1);
		rc = replay_run(lane, &replay);
	}
	batch->no_room = rc == -ENOSPC;
	if (!rc)
		rc = lane_graph(lane, batch->batch, GRAPH_PIECEWISE, &pieces);
	if (!rc)
		batch->n_breaks = pieces->pieces.n_breaks;
	return batch->no_room ? 0 : rc;
}

static int work_lane(void *arg, int fd)
{
	static struct lane lane;
	const struct lane_work *work = arg;
	struct modes_lane *facts = work->facts;
	struct lane_options needs = {
		.device = work->options->device,
		.model_dir = work->options->model_dir,
		.attention = work->options->attention};
	struct model_error error = {""};
	int rc = take_rates(work, error.text, sizeof(error.text));

	(void)fd;
	for (uint32_t i = 0; i < facts->n_batches; i++) {
		const struct replay_run run =
			replay_of(work->options, &facts->batches[i], GRAPH_FULL);

		replay_needs(&run, &needs);
	}
	if (!rc)
		rc = lane_open(&lane, &needs, &error);
	if (!rc) {
		facts->weight_bytes = lane_weight_bytes(lane.model);
		facts->token_flop = lane_token_flop(lane.model);
	}
	for (uint32_t i = 0; i < facts->n_batches && !rc; i++)
		rc = run_batch(work->options, &lane, &facts->batches[i]);
	rc = report_outcome("modes", rc, error.text);
	lane_close(&lane);
	return rc;
}

int modes_lane_run(const struct bench_options *options, struct modes_lane *lane)
{
	struct lane_work work = {options, lane};

	return child_run("modes", work_lane, &work, options->timeout_s);
}
