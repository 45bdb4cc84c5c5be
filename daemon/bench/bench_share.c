/* SPDX-License-Identifier: MIT */
/*
 * The purpose of Mimeo: N processes with one sequence each, compared with a loop in one process that replays
 * the same graph for N rows. In steady decode a token's latency is the time of a step, and a step has a row
 * of every process.
 */
#include "daemon/bench/users.h"

#include <stdio.h>

#include "daemon/bench/served.h"

#define TARGET_MEDIAN 1.3
#define TARGET_P99 2.0
#define FLOOR                                                                                      \
	"the same graph replayed in one process for as many rows, two steps in flight, no ring"
#define FEW_CPUS                                                                                   \
	"there are fewer CPUs than processes and daemon threads: the clients take turns with the " \
	"work that they wait for, and the targets are not judged"
#define NO_COUNTERS "note: the daemon's counters and memory come over its operators' socket"
#define NO_MEMORY_FACTS "note: this device has no memory of its own to report"

/* Is there a CPU for each thread that works for a token: each client, the engine, the decoder? */
static bool share_is_fit(const struct served *run)
{
	return results_n_cpus() >= run->clients.n + 2;
}

static void share_counters(struct results *results, const struct served *run)
{
	double replays = served_count(run, "mimeo_replays_total", NULL);
	double shared = served_count(run, "mimeo_shared_replays_total", NULL);
	char text[32] = "";

	if (replays > 0)
		snprintf(text, sizeof(text), "%.1f %%", 100 * shared / replays);
	results_value(results, "replays", NULL, TABLE_COUNT, replays);
	results_number(results, "rows_per_step", "ROWS/STEP",
		served_count(run, "mimeo_rows_total", NULL) /
			served_count(run, "mimeo_steps_total", NULL));
	results_text(results, "shared", "SHARED", *text ? text : NULL);
	results_value(results, "shared_replays", NULL, TABLE_COUNT, shared);
}

static void share_memory(struct results *results, const struct served *run)
{
	uint64_t used = run->status ? answer_count(run->status, 0, "device_used_bytes", 0) : 0;
	uint64_t resident = run->status ? answer_count(run->status, 0, "resident_bytes", 0) : 0;

	results_value(results, "device_used_bytes", "DEVICE MEMORY", TABLE_BYTES,
		used ? (double)used : NAN);
	results_value(results, "resident_bytes", "DAEMON", TABLE_BYTES,
		resident ? (double)resident : NAN);
	if (!used)
		results_explain(results, run->status ? NO_MEMORY_FACTS : NO_COUNTERS);
}

static void share_row(const struct bench_options *options, const struct served *run,
	const struct replay_run *bare, struct results *results)
{
	const struct clients *clients = &run->clients;
	double floor = samples_quantile(bare->steps, 0.5);
	double floor_p99 = samples_quantile(bare->steps, 0.99);
	double median = samples_quantile(clients->between, 0.5);
	double p99 = samples_quantile(clients->between, 0.99);
	bool judged = share_is_fit(run) && isfinite(floor);
	bool met = median / floor <= TARGET_MEDIAN && p99 / floor_p99 <= TARGET_P99;
	results_row(results);
	results_count(results, "processes", "PROCESSES", clients->n);
	results_count(results, "prompt", NULL, options->prompt);
	results_count(results, "tokens", NULL, clients->n_tokens);
	results_number(results, "tokens_per_s", "TOKENS/S", clients_steady_rate(clients));
	results_number(results, "overall_tokens_per_s", NULL, clients_rate(clients));
	results_seconds(results, "token_median_s", "TOKEN", median);
	results_seconds(results, "token_p99_s", "P99", p99);
	share_counters(results, run);
	results_number(results, "floor_tokens_per_s", "FLOOR TOKENS/S",
		clients->n / samples_mean(bare->steps));
	results_seconds(results, "floor_median_s", "FLOOR", floor);
	results_seconds(results, "floor_p99_s", "FLOOR P99", floor_p99);
	results_number(results, "ratio_median", "RATIO", median / floor);
	results_number(results, "ratio_p99", "RATIO P99", p99 / floor_p99);
	results_text(results, "met", "MET", judged ? (met ? "yes" : "no") : NULL);
	results_number(results, "target_ratio_median", NULL, TARGET_MEDIAN);
	results_number(results, "target_ratio_p99", NULL, TARGET_P99);
	results_floor(results, options->model_dir ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, !share_is_fit(run) ? FEW_CPUS
			      : results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
	share_memory(results, run);
}

int bench_share(const struct bench_options *options, struct results *results)
{
	struct served runs[BENCH_LIST_MAX] = {0};
	struct replay_run bare[BENCH_LIST_MAX] = {0};
	int rc = served_measure(options, NULL, results, runs);

	if (rc == 0)
		rc = served_floors(options, bare);
	results_explain(results, "targets: ratio <= %g, ratio of the P99s <= %g", TARGET_MEDIAN,
		TARGET_P99);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		share_row(options, &runs[i], &bare[i], results);
	served_floors_free(options, bare);
	served_free(options, runs);
	return rc;
}
