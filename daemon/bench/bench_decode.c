/* SPDX-License-Identifier: MIT */
/*
 * Decode steps of a model in this process, as the daemon's lane runs them: prepare, graph, sampling
 * and outbox, two steps in flight. The floor is the time that a device copy's bandwidth takes for
 * the bytes that a step must read.
 */
#include "daemon/bench/users.h"

#include <errno.h>

#include "daemon/bench/probe.h"
#include "daemon/bench/replay.h"

#define FLOOR                                                                                      \
	"reading each weight and each row's keys and values once, at the bandwidth of a device copy"
#define NO_SPACE "the KV cache has no space for it"

static int decode_row(const struct bench_options *options, struct decoder *decoder, double copy_rate,
	const struct replay_run *run, uint32_t context, struct results *results)
{
	uint64_t weights = decoder_weight_bytes(decoder->model);
	uint64_t kv = decoder_kv_bytes(decoder, run->n_rows, replay_middle(run));
	double bytes = (double)(weights + kv), floor = bytes / copy_rate;
	int rc = replay_run(decoder, run);

	if (rc && rc != -ENOSPC)
		return rc;
	double step = samples_quantile(run->steps, 0.5);
	results_row(results);
	results_count(results, "batch", "BATCH", run->n_rows);
	results_count(results, "context", "CONTEXT", context);
	results_count(results, "samples", NULL, run->steps->n);
	results_seconds(results, "step_median_s", "STEP", step);
	results_seconds(results, "step_p99_s", "P99", samples_quantile(run->steps, 0.99));
	results_number(results, "tokens_per_s", "TOKENS/S", run->n_rows / step);
	results_number(results, "tb_per_s", "TB/S", bytes / step * 1e-12);
	results_seconds(results, "floor_median_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", step / floor);
	results_seconds(results, "lane_median_s", "DEVICE", samples_quantile(run->lanes, 0.5));
	results_seconds(results, "gap_median_s", "GAP", samples_quantile(run->gaps, 0.5));
	results_count(results, "weight_bytes", NULL, weights);
	results_count(results, "kv_bytes", NULL, kv);
	results_number(results, "copy_bytes_per_s", NULL, copy_rate);
	results_count(results, "load_bytes", NULL, decoder->model->file_bytes);
	results_seconds(results, "load_s", NULL, decoder->model->load_seconds);
	results_text(results, "reader", NULL, decoder->model->reader);
	results_floor(results, FLOOR);
	results_note(results, rc ? NO_SPACE : NULL);
	return 0;
}

static int decode_rows(const struct bench_options *options, struct decoder *decoder, double copy_rate,
	struct results *results)
{
	const struct model *model = decoder->model;

	for (uint32_t i = 0; i < options->batches.n * options->contexts.n; i++) {
		CLEANUP(cleanup_samples) struct samples *steps = samples_new(options->count);
		CLEANUP(cleanup_samples) struct samples *gaps = samples_new(options->count);
		CLEANUP(cleanup_samples) struct samples *lanes = samples_new(options->count);
		uint32_t context = options->contexts.at[i % options->contexts.n];
		struct replay_run run = replay_at(options, i, GRAPH_FULL);

		if (!steps || !gaps || !lanes)
			return -ENOMEM;
		run.steps = steps;
		run.gaps = gaps;
		run.lanes = lanes;
		int rc = decode_row(options, decoder, copy_rate, &run, context, results);
		if (rc)
			return rc;
	}
	results_explain(results, "copy: %.3g TB/s read and written; device: a step's first operation "
		"to its last; gap: idle time between two", copy_rate * 1e-12);
	results_explain(results, "weights: %.3f GB read and uploaded in %.2f s (%s, %.2f GB/s)",
		(double)model->file_bytes * 1e-9, model->load_seconds, model->reader,
		(double)model->file_bytes * 1e-9 / model->load_seconds);
	return 0;
}

int bench_decode(const struct bench_options *options, struct results *results)
{
	static struct decoder decoder;
	struct model_error error = {""};
	double copy_rate = 0;
	int rc = probe_machine(options->device, results, &copy_rate, error.text, sizeof(error.text));

	if (!rc)
		rc = replay_open(&decoder, options, &error);
	if (!rc)
		rc = decode_rows(options, &decoder, copy_rate, results);
	decoder_close(&decoder);
	return bench_fail_device(rc, "decode", error.text);
}
