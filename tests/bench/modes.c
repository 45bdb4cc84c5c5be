/* SPDX-License-Identifier: MIT */
/*
 * The same decode step of one lane in this process as one graph, in pieces with attention between
 * them, and without a graph; what the host needs to launch each, and what one of the breaks between
 * the pieces costs. What the graph modes are worth to clients: mimeo-bench load --graph-mode.
 */
#include "tests/bench/internals.h"

#include <errno.h>

#include "daemon/bench/model_floor.h"
#include "daemon/bench/replay.h"

#define BREAK_SECONDS 5e-6
#define FLOOR                                                                                      \
	"reading each weight and each row's keys and values once, at the bandwidth of a device copy"
#define NO_SPACE "the KV cache has no space for it"

static const struct {
	enum graph_mode mode;
	const char *key, *title, *p99_key, *launch_key;
} ways[] = {
	{GRAPH_FULL, "full_s", "FULL", "full_p99_s", "full_launch_s"},
	{GRAPH_PIECEWISE, "piecewise_s", "PIECEWISE", "piecewise_p99_s", "piecewise_launch_s"},
	{GRAPH_NONE, "none_s", "NONE", "none_p99_s", "none_launch_s"},
};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))

/* The row's values of one way: its median, NAN where the cache has no space. */
static int modes_way(const struct bench_options *options, struct results *results,
	struct replay *replay, uint32_t index, size_t way, double *ret)
{
	CLEANUP(replay_run_deinit) struct replay_run run = replay_run_at(options, index, ways[way].mode);
	int rc = replay_run_alloc(&run);

	if (!rc)
		rc = replay_measure(replay, &run);
	if (rc == -ENOSPC)
		results_note(results, NO_SPACE);
	else if (rc)
		return rc;
	*ret = samples_quantile(run.steps, 0.5);
	results_count(results, "samples", NULL, run.steps->n);
	results_seconds(results, ways[way].key, ways[way].title, *ret);
	results_seconds(results, ways[way].p99_key, NULL, samples_quantile(run.steps, 0.99));
	results_seconds(
		results, ways[way].launch_key, "LAUNCH", samples_quantile(run.launches, 0.5));
	return 0;
}

static int modes_row(const struct bench_options *options, struct results *results,
	struct replay *replay, uint32_t index)
{
	const struct model *model = replay->runner.model;
	uint32_t n_rows = options->batches.at[index / options->contexts.n];
	uint32_t context = options->contexts.at[index % options->contexts.n];
	uint64_t bytes = model_floor_weights(model) +
			 model_floor_cache(&model->config, &replay->probe.info, n_rows, context);
	double floor = (double)bytes / replay->probe.copy_rate, medians[N_WAYS];
	struct graph_entry *pieces;

	results_row(results);
	results_count(results, "batch", "BATCH", n_rows);
	results_count(results, "context", "CONTEXT", context);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
	for (size_t way = 0; way < N_WAYS; way++) {
		int rc = modes_way(options, results, replay, index, way, &medians[way]);

		if (rc)
			return rc;
	}
	int rc = replay_graph(replay, n_rows, GRAPH_PIECEWISE, &pieces);
	if (rc)
		return rc;
	double a_break = (medians[1] - medians[0]) / pieces->pieces.n_breaks;
	bool judged = !results_on_cpu(results) && isfinite(a_break);
	results_count(results, "breaks", "BREAKS", pieces->pieces.n_breaks);
	results_seconds(results, "break_s", "A BREAK", a_break);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", medians[0] / floor);
	/* In pieces it has to be slower: otherwise something else is wrong with the whole graph. */
	results_text(results, "target", "TARGET", "0 to 5 us");
	results_text(results, "met", "MET",
		judged ? (a_break > 0 && a_break <= BREAK_SECONDS ? "yes" : "no") : NULL);
	results_floor(results, FLOOR);
	return 0;
}

int bench_modes(const struct bench_options *options, struct results *results)
{
	static struct replay replay;
	struct model_error error = {""};
	int rc = replay_open_all(&replay, options, results, &error);

	for (uint32_t i = 0; i < options->batches.n * options->contexts.n && !rc; i++)
		rc = modes_row(options, results, &replay, i);
	replay_close(&replay);
	results_explain(results, "launch: host time to launch a step; break: (piecewise "
		"- full) / breaks");
	return bench_fail_device(rc, "modes", error.text);
}
