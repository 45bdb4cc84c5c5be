/* SPDX-License-Identifier: MIT */
/*
 * How much of the lane a serving daemon leaves idle between two decode steps, and what a step costs
 * its engine's thread. The device itself notes when a step's first kernel begins and its last one
 * ends; the daemon adds up the time from one step's end to the beginning of the next that generates
 * on from it. The floor is the same between steps of a bare loop in one process.
 */
#include "tests/bench/internals.h"

#include <errno.h>

#include "daemon/bench/served.h"

#define TARGET_SECONDS 3e-6
#define FLOOR "the same idle time in one process that replays the same graph, two steps in flight"

enum { GAPS, GAP_NS, LONG_GAPS, LONG_GAP_NS, LANE_NS, WORK_NS, STEPS, N_METRICS };
static const char *const metrics[N_METRICS] = {"mimeo_lane_gaps_total",
	"mimeo_lane_gap_nanoseconds_total", "mimeo_lane_long_gaps_total",
	"mimeo_lane_long_gap_nanoseconds_total", "mimeo_lane_nanoseconds_total",
	"mimeo_engine_work_nanoseconds_total", "mimeo_steps_total"};

static double gap_part(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : NAN;
}

static void gap_row(const struct bench_options *options, const struct served *run,
	struct results *results)
{
	const uint64_t *c = run->counters;
	double gap = gap_part(c[GAP_NS], c[GAPS]) * 1e-9, floor = samples_mean(run->gaps);

	results_row(results);
	results_count(results, "processes", "PROCESSES", run->clients.n);
	results_count(results, "gaps", "GAPS", c[GAPS]);
	results_seconds(results, "gap_mean_s", "GAP", gap);
	results_seconds(results, "floor_mean_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", gap / floor);
	results_target_seconds(results, gap, TARGET_SECONDS, !results_on_cpu(results));
	results_count(results, "long_gaps", "> 10 US", c[LONG_GAPS]);
	results_seconds(results, "short_gap_mean_s", "THE REST",
		gap_part(c[GAP_NS] - c[LONG_GAP_NS], c[GAPS] - c[LONG_GAPS]) * 1e-9);
	results_seconds(results, "step_mean_s", "STEP", gap_part(c[LANE_NS], c[STEPS]) * 1e-9);
	results_number(results, "idle_percent", "IDLE, %",
		100 * gap_part(c[GAP_NS], c[GAP_NS] + c[LANE_NS]));
	results_seconds(results, "engine_s", "ENGINE", gap_part(c[WORK_NS], c[STEPS]) * 1e-9);
	results_seconds(
		results, "floor_engine_s", "LAUNCH", samples_quantile(run->launches, 0.5));
	results_floor(results, options->model_dir ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
}

int bench_gap(const struct bench_options *options, struct results *results)
{
	struct served runs[BENCH_LIST_MAX] = {0};
	int rc = served_measure(options, metrics, N_METRICS, results, runs);

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		if (!runs[i].counted)
			rc = bench_fail(-EACCES, "gap: the daemon's counters need its admin socket");
		else
			gap_row(options, &runs[i], results);
	}
	results_explain(results, "engine: time a step of its turns that launched or read one; launch: "
		"what the bare loop needs to launch one");
	served_free(options, runs);
	return rc;
}
