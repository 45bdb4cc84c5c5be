/* SPDX-License-Identifier: MIT */
/*
 * The same decode step of one lane in this process as one graph, in pieces with attention between
 * them, and without a graph; what the host needs to launch each, and what one of the breaks between
 * the pieces costs. What the graph modes are worth to clients: mimeo-bench load --graph-mode.
 */
#include "tests/bench/internals.h"

#include <errno.h>

#include "daemon/bench/probe.h"
#include "daemon/bench/replay.h"

#define BREAK_SECONDS 5e-6
#define FLOOR                                                                                      \
	"reading each weight and each row's keys and values once, at the bandwidth of a device copy"
#define NO_SPACE "the KV cache has no space for it"

static const struct {
	enum graph_mode mode;
	const char *key, *title, *p99_key, *launch_key, *launch_title;
} ways[] = {
	{GRAPH_FULL, "full_s", "FULL", "full_p99_s", "full_launch_s", "LAUNCH"},
	{GRAPH_PIECEWISE, "piecewise_s", "PIECEWISE", "piecewise_p99_s", "piecewise_launch_s",
		"LAUNCH"},
	{GRAPH_NONE, "none_s", "NONE", "none_p99_s", "none_launch_s", "LAUNCH"},
};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))

/* The row's values of one way: its median, NAN where the cache has no space. */
static int modes_way(const struct bench_options *options, struct results *results,
	struct decoder *decoder, uint32_t index, size_t way, double *ret)
{
	CLEANUP(cleanup_samples) struct samples *steps = samples_new(options->count);
	CLEANUP(cleanup_samples) struct samples *launches =
		samples_new(options->count + REPLAY_WARM_UPS);
	struct replay_run run = replay_at(options, index, ways[way].mode);

	if (!steps || !launches)
		return -ENOMEM;
	run.steps = steps;
	run.launches = launches;
	int rc = replay_run(decoder, &run);
	if (rc == -ENOSPC)
		results_note(results, NO_SPACE);
	else if (rc)
		return rc;
	*ret = samples_quantile(steps, 0.5);
	results_count(results, "samples", NULL, steps->n);
	results_seconds(results, ways[way].key, ways[way].title, *ret);
	results_seconds(results, ways[way].p99_key, NULL, samples_quantile(steps, 0.99));
	results_seconds(results, ways[way].launch_key, ways[way].launch_title,
		samples_quantile(launches, 0.5));
	return 0;
}

static int modes_row(const struct bench_options *options, struct results *results,
	struct decoder *decoder, uint32_t index, double copy_rate)
{
	const struct replay_run run = replay_at(options, index, GRAPH_FULL);
	uint64_t bytes = decoder_weight_bytes(decoder->model) +
			 decoder_kv_bytes(decoder, run.n_rows, replay_middle(&run));
	double floor = (double)bytes / copy_rate, medians[N_WAYS];
	struct graph_entry *pieces;

	results_row(results);
	results_count(results, "batch", "BATCH", run.n_rows);
	results_count(
		results, "context", "CONTEXT", options->contexts.at[index % options->contexts.n]);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
	for (size_t way = 0; way < N_WAYS; way++) {
		int rc = modes_way(options, results, decoder, index, way, &medians[way]);

		if (rc)
			return rc;
	}
	int rc = decoder_graph(decoder, run.n_rows, GRAPH_PIECEWISE, &pieces);
	if (rc)
		return rc;
	double a_break = (medians[1] - medians[0]) / pieces->pieces.n_breaks;
	bool judged = !results_on_cpu(results) && isfinite(a_break);
	results_count(results, "breaks", "BREAKS", pieces->pieces.n_breaks);
	results_seconds(results, "break_s", "A BREAK", a_break);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", medians[0] / floor);
	/* In pieces it has to be slower: otherwise something else is wrong with the whole graph. */
	results_target(results, "0 to 5 us",
		judged ? (a_break > 0 && a_break <= BREAK_SECONDS ? "yes" : "no") : NULL);
	results_floor(results, FLOOR);
	return 0;
}

int bench_modes(const struct bench_options *options, struct results *results)
{
	static struct decoder decoder;
	struct model_error error = {""};
	double copy_rate = 0;
	int rc = probe_machine(options->device, results, &copy_rate, error.text, sizeof(error.text));

	if (!rc)
		rc = replay_open(&decoder, options, &error);
	for (uint32_t i = 0; i < options->batches.n * options->contexts.n && !rc; i++)
		rc = modes_row(options, results, &decoder, i, copy_rate);
	decoder_close(&decoder);
	results_explain(results, "launch: what the host needs to launch one step; a break: (piecewise "
		"- full) / breaks");
	return bench_fail_device(rc, "modes", error.text);
}
