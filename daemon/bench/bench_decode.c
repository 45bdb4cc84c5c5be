/* SPDX-License-Identifier: MIT */
/*
 * Decode steps of a model in this process, as the daemon's lane runs them: prepare, graph, sampling
 * and outbox, two steps in flight. The floor is the time in which the device copies the bytes that a step
 * must read.
 */
#include "daemon/bench/users.h"

#include <errno.h>

#include "daemon/bench/model_floor.h"
#include "daemon/bench/replay.h"

#define FLOOR                                                                                      \
	"reading each weight and each row's keys and values once, at the bandwidth of a device copy"
#define NO_SPACE "the KV cache has no space for it"

static int decode_row(const struct bench_options *options, struct replay *replay, uint32_t index,
	struct results *results)
{
	CLEANUP(replay_run_deinit) struct replay_run run = replay_run_at(options, index, GRAPH_FULL);
	const struct model *model = replay->runner.model;
	double copy_rate = replay->probe.copy_rate;
	int rc = replay_run_alloc(&run);

	if (!rc)
		rc = replay_measure(replay, &run);
	if (rc && rc != -ENOSPC)
		return rc;
	uint64_t weights = model_floor_weights(model);
	uint64_t cache = model_floor_cache(
		&model->config, &replay->probe.info, run.n_rows, replay_run_middle(&run));
	double bytes = (double)(weights + cache), floor = bytes / copy_rate;
	double step = samples_quantile(run.steps, 0.5);
	results_row(results);
	results_count(results, "batch", "BATCH", run.n_rows);
	results_count(
		results, "context", "CONTEXT", options->contexts.at[index % options->contexts.n]);
	results_count(results, "samples", NULL, run.steps->n);
	results_seconds(results, "step_median_s", "STEP", step);
	results_seconds(results, "step_p99_s", "P99", samples_quantile(run.steps, 0.99));
	results_number(results, "tokens_per_s", "TOKENS/S", run.n_rows / step);
	results_number(results, "tb_per_s", "TB/S", bytes / step * 1e-12);
	results_seconds(results, "floor_median_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", step / floor);
	results_seconds(results, "lane_median_s", "DEVICE", samples_quantile(run.lanes, 0.5));
	results_seconds(results, "gap_median_s", "GAP", samples_quantile(run.gaps, 0.5));
	results_count(results, "weight_bytes", NULL, weights);
	results_count(results, "kv_bytes", NULL, cache);
	results_number(results, "copy_bytes_per_s", NULL, copy_rate);
	results_count(results, "load_bytes", NULL, model->file_bytes);
	results_seconds(results, "load_s", NULL, model->load_seconds);
	results_text(results, "reader", NULL, model->reader);
	results_floor(results, FLOOR);
	results_note(results, rc ? NO_SPACE : NULL);
	return 0;
}

int bench_decode(const struct bench_options *options, struct results *results)
{
	static struct replay replay;
	struct model_error error = {""};
	int rc = replay_open_all(&replay, options, results, &error);

	for (uint32_t i = 0; i < options->batches.n * options->contexts.n && !rc; i++)
		rc = decode_row(options, &replay, i, results);
	const struct model *model = replay.runner.model;
	if (!rc) {
		results_explain(results, "copy: %.3g TB/s read and written; device: a step's first "
			"operation to its last; gap: idle time between two steps",
			replay.probe.copy_rate * 1e-12);
		results_explain(results, "weights: %.3f GB read and uploaded in %.2f s (%s, %.2f GB/s)",
			(double)model->file_bytes * 1e-9, model->load_seconds, model->reader,
			(double)model->file_bytes * 1e-9 / model->load_seconds);
	}
	replay_close(&replay);
	return bench_fail_device(rc, "decode", error.text);
}
