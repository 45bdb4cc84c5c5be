/* SPDX-License-Identifier: MIT */
/*
 * A decode as a graph of nodes and in one kernel (decode_step), beside each other, also where the device would
 * choose the other one: what its choice is made from.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <math.h>

#include "daemon/bench/model_floor.h"
#include "daemon/bench/replay.h"
#include "kernels/ops.h"

#define FLOOR                                                                                      \
	"reading each weight and each row's keys and values once, at the bandwidth of a device copy"
#define NO_KERNEL "the device has no one kernel for it"

enum whole_way { WHOLE_NODES, WHOLE_KERNEL, WHOLE_WAYS };

/* Of the steps of a run. */
struct whole_times {
	double median, p99;
};

/* The device's ops, but for the one kernel. */
static struct {
	const struct kernel_ops *own;
	struct kernel_ops kernels;
	enum whole_way way;
	uint64_t taken; /* bit n: the one kernel took a decode of n rows */
} whole;

static int whole_decode_step(struct stream *stream, const struct op_decode_step *args)
{
	struct op_decode_step op = *args;
	int rc;

	if (whole.way == WHOLE_NODES)
		return -ENOTSUP;
	op.always = true;
	rc = whole.own->decode_step(stream, &op);
	if (!rc && args->n_rows < 64)
		whole.taken |= 1ull << args->n_rows;
	return rc;
}

static void whole_force(struct device *device, enum whole_way way)
{
	whole.own = device->kernels;
	whole.kernels = *whole.own;
	whole.way = way;
	if (whole.own->decode_step)
		whole.kernels.decode_step = whole_decode_step;
	device->kernels = &whole.kernels;
}

/* Nothing is written where there is no such kernel. A graph is captured at the first context and replayed at others. */
static int whole_measure(
	const struct bench_options *options, struct replay *replay, uint32_t index, struct whole_times *ret)
{
	CLEANUP(replay_run_deinit) struct replay_run run = replay_run_at(options, index, GRAPH_FULL);
	const uint32_t n_rows = options->batches.at[index / options->contexts.n];
	int rc = replay_run_alloc(&run);

	if (!rc)
		rc = replay_measure(replay, &run);
	if (!rc && (whole.way == WHOLE_NODES || (n_rows < 64 && whole.taken >> n_rows & 1)))
		*ret = (struct whole_times){samples_quantile(run.steps, 0.5), samples_quantile(run.steps, 0.99)};
	return rc;
}

/* All rows of one way, on a device of its own: a graph is captured but once. */
static int whole_run(const struct bench_options *options, struct results *results, struct replay *replay,
	enum whole_way way, struct whole_times *ret, struct model_error *error)
{
	int rc = replay_open_all(replay, options, results, error);

	if (rc)
		return rc;
	whole_force(replay->probe.device, way);
	for (uint32_t i = 0; i < options->batches.n * options->contexts.n && !rc; i++)
		rc = whole_measure(options, replay, i, &ret[i]);
	replay->probe.device->kernels = whole.own;
	return rc;
}

static void whole_row(const struct bench_options *options, struct results *results, const struct replay *replay,
	uint32_t index, const struct whole_times *nodes, const struct whole_times *kernel)
{
	const struct model *model = replay->runner.model;
	const uint32_t n_rows = options->batches.at[index / options->contexts.n];
	const uint32_t context = options->contexts.at[index % options->contexts.n];
	const uint64_t bytes = model_floor_weights(model) +
			       model_floor_cache(&model->config, &replay->probe.info, n_rows, context);
	const double floor = (double)bytes / replay->probe.copy_rate;

	results_row(results);
	results_count(results, "batch", "BATCH", n_rows);
	results_count(results, "context", "CONTEXT", context);
	results_count(results, "samples", NULL, options->count);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : isnan(kernel->median) ? NO_KERNEL : NULL);
	results_seconds(results, "nodes_s", "NODES", nodes->median);
	results_seconds(results, "nodes_p99_s", NULL, nodes->p99);
	results_seconds(results, "kernel_s", "ONE KERNEL", kernel->median);
	results_seconds(results, "kernel_p99_s", NULL, kernel->p99);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", fmin(nodes->median, kernel->median) / floor);
	results_floor(results, FLOOR);
}

int bench_whole(const struct bench_options *options, struct results *results)
{
	static struct replay replay;
	static struct whole_times times[WHOLE_WAYS][BENCH_LIST_MAX * BENCH_LIST_MAX];
	const uint32_t n = options->batches.n * options->contexts.n;
	struct model_error error = {""};
	int rc = 0;

	for (uint32_t way = 0; way < WHOLE_WAYS && !rc; way++) {
		for (uint32_t i = 0; i < n; i++)
			times[way][i] = (struct whole_times){NAN, NAN};
		if (way)
			replay_close(&replay);
		rc = whole_run(options, results, &replay, way, times[way], &error);
	}
	for (uint32_t i = 0; i < n && !rc; i++)
		whole_row(options, results, &replay, i, &times[WHOLE_NODES][i], &times[WHOLE_KERNEL][i]);
	replay_close(&replay);
	results_explain(results, "ratio: the quicker one / floor");
	return bench_fail_device(rc, "whole", error.text);
}
