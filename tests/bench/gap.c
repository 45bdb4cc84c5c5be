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

static void gap_row(const struct bench_options *options, const struct served *run,
	const struct replay_run *bare, struct results *results)
{
	double gaps = served_count(run, "mimeo_lane_gaps_total", NULL);
	double gap_time = served_count(run, "mimeo_lane_gap_seconds_total", NULL);
	double longs = served_count(run, "mimeo_lane_long_gaps_total", NULL);
	double long_time = served_count(run, "mimeo_lane_long_gap_seconds_total", NULL);
	double lane_time = served_count(run, "mimeo_lane_seconds_total", NULL);
	double steps = served_count(run, "mimeo_steps_total", NULL);
	double gap = gap_time / gaps, floor = samples_mean(bare->gaps);

	results_row(results);
	results_count(results, "processes", "PROCESSES", run->clients.n);
	results_value(results, "gaps", "GAPS", TABLE_COUNT, gaps);
	results_seconds(results, "gap_mean_s", "GAP", gap);
	results_seconds(results, "floor_mean_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", gap / floor);
	results_target(results, TABLE_SECONDS, gap, TARGET_SECONDS, !results_on_cpu(results));
	results_value(results, "long_gaps", "> 10 US", TABLE_COUNT, longs);
	results_seconds(results, "short_gap_mean_s", "THE REST",
		(gap_time - long_time) / (gaps - longs));
	results_seconds(results, "step_mean_s", "STEP", lane_time / steps);
	results_number(results, "idle_percent", "IDLE, %", 100 * gap_time / (gap_time + lane_time));
	results_seconds(results, "engine_s", "ENGINE",
		served_count(run, "mimeo_engine_work_seconds_total", NULL) / steps);
	results_seconds(results, "floor_engine_s", "LAUNCH", samples_quantile(bare->launches, 0.5));
	results_floor(results, options->model_dir ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
}

int bench_gap(const struct bench_options *options, struct results *results)
{
	struct served runs[BENCH_LIST_MAX] = {0};
	struct replay_run bare[BENCH_LIST_MAX] = {0};
	int rc = served_measure(options, NULL, results, runs);

	if (rc == 0 && !runs[0].metrics)
		rc = bench_fail(-EACCES, "gap: the daemon's counters need its operators' socket");
	if (rc == 0)
		rc = served_floors(options, bare);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		gap_row(options, &runs[i], &bare[i], results);
	results_explain(results, "engine: its time per step in turns that launched or read one; launch: "
		"the time of the loop to launch one");
	served_floors_free(options, bare);
	served_free(options, runs);
	return rc;
}
