/* SPDX-License-Identifier: MIT */
/*
 * The reason to exist: N processes with a sequence each, against a bare loop in one process that
 * replays the same graph for N rows. In steady decode a token's latency is the time of a step, and
 * a step carries a row of every process.
 */
#include "daemon/bench/users.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/bench/client.h"
#include "daemon/bench/clients.h"
#include "daemon/bench/replay.h"

#define TARGET_MEDIAN 1.3
#define TARGET_P99 2.0
#define FLOOR                                                                                      \
	"the same graph replayed in one process for as many rows, two steps in flight, no ring"
#define FEW_CPUS                                                                                   \
	"there are fewer CPUs than processes and daemon threads: the clients take turns with the " \
	"work that they wait for, and the targets are not judged"
#define NO_COUNTERS "the daemon's counters and memory come over its admin socket"
#define NO_MEMORY_FACTS "this device has no memory of its own to report"

enum { STEPS, ROWS, REPLAYS, SHARED, N_METRICS };
static const char *const metrics[N_METRICS] = {"mimeo_steps_total", "mimeo_rows_total",
	"mimeo_replays_total", "mimeo_shared_replays_total"};

/* One number of processes. */
struct share_run {
	struct clients clients;
	struct samples *steps; /* the floor's */
	bool counted;          /* the daemon's counters are known */
	uint64_t counters[N_METRICS], resident_bytes, device_bytes;
};

static int share_serve(const struct bench_options *options, const struct target *target,
	struct share_run *run)
{
	struct answer *answer;
	bool counting = target_metrics(target, metrics, N_METRICS, run->counters) == 0;
	int rc = clients_run(&run->clients, options, target);

	if (rc < 0 || !counting ||
		target_metrics_since(target, metrics, N_METRICS, run->counters) < 0 ||
		target_ask(target, "status", &answer) < 0)
		return rc;
	run->resident_bytes = answer_count(answer, 0, "resident_bytes", 0);
	run->device_bytes = answer_count(answer, 0, "device_used_bytes", 0);
	answer_free(answer);
	run->counted = true;
	return 0;
}

/* The threads that work for a token: each client, the engine, the lane. */
static bool share_is_fit(const struct share_run *run)
{
	return results_n_cpus() >= run->clients.n + 2;
}

static void share_counters(struct results *results, const struct share_run *run)
{
	const uint64_t *c = run->counters;
	double replays = run->counted ? (double)c[REPLAYS] : NAN;
	char shared[32] = "";

	if (replays > 0)
		snprintf(shared, sizeof(shared), "%.1f %%", 100.0 * (double)c[SHARED] / replays);
	results_value(results, "replays", NULL, TABLE_COUNT, replays);
	results_number(results, "rows_per_step", "ROWS/STEP",
		run->counted && c[STEPS] ? (double)c[ROWS] / (double)c[STEPS] : NAN);
	results_text(results, "shared", "SHARED", *shared ? shared : NULL);
	results_value(results, "shared_replays", NULL, TABLE_COUNT,
		run->counted ? (double)c[SHARED] : NAN);
}

static int share_row(const struct bench_options *options, struct share_run *run,
	struct results *results)
{
	CLEANUP(cleanup_samples) struct samples *tokens =
		clients_all(&run->clients, run->clients.between);
	double floor = samples_quantile(run->steps, 0.5), seconds = samples_sum(run->steps);
	double floor_p99 = samples_quantile(run->steps, 0.99);

	if (!tokens)
		return -ENOMEM;
	double median = samples_quantile(tokens, 0.5), p99 = samples_quantile(tokens, 0.99);
	bool judged = share_is_fit(run) && isfinite(floor);
	bool met = median / floor <= TARGET_MEDIAN && p99 / floor_p99 <= TARGET_P99;
	results_row(results);
	results_count(results, "processes", "PROCESSES", run->clients.n);
	results_count(results, "prompt", NULL, options->prompt);
	results_count(results, "tokens", NULL, clients_tokens(&run->clients));
	results_number(results, "tokens_per_s", "TOKENS/S", clients_steady_rate(&run->clients));
	results_number(results, "overall_tokens_per_s", NULL, clients_rate(&run->clients));
	results_seconds(results, "token_median_s", "TOKEN", median);
	results_seconds(results, "token_p99_s", "P99", p99);
	share_counters(results, run);
	results_number(results, "floor_tokens_per_s", "FLOOR TOKENS/S",
		run->steps->n ? run->steps->n * (double)run->clients.n / seconds : NAN);
	results_seconds(results, "floor_median_s", "FLOOR", floor);
	results_seconds(results, "floor_p99_s", "FLOOR P99", floor_p99);
	results_number(results, "ratio_median", "RATIO", median / floor);
	results_number(results, "ratio_p99", "RATIO P99", p99 / floor_p99);
	results_text(results, "met", "MET", judged ? (met ? "yes" : "no") : NULL);
	results_value(results, "device_used_bytes", "DEVICE MEMORY", TABLE_BYTES,
		run->device_bytes ? (double)run->device_bytes : NAN);
	results_value(results, "resident_bytes", "DAEMON", TABLE_BYTES,
		run->counted ? (double)run->resident_bytes : NAN);
	results_number(results, "target_ratio_median", NULL, TARGET_MEDIAN);
	results_number(results, "target_ratio_p99", NULL, TARGET_P99);
	results_floor(results, options->model_dir ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, !share_is_fit(run) ? FEW_CPUS
			      : results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
	return 0;
}

static int share_measure(const struct bench_options *options, struct share_run *runs,
	struct results *results)
{
	struct replay_run floors[BENCH_LIST_MAX] = {0};
	struct target target;
	int rc = target_open(options,
		&(struct spawn_needs){
			.kv_pages = clients_most(options) * client_pages(options->prompt, options->tokens),
			.max_requests = BENCH_PROCESSES_MAX,
			.spin_us = options->spin_us,
		},
		&target);

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		rc = share_serve(options, &target, &runs[i]);
		floors[i].steps = runs[i].steps;
	}
	target_machine(&target, results);
	target_close(&target); /* the floor may need its memory */
	return rc == 0 && options->model_dir ? replay_floors(options, floors) : rc;
}

static void share_explain(
	const struct bench_options *options, const struct share_run *runs, struct results *results)
{
	bool counted = true, memory = true;

	for (uint32_t i = 0; i < options->processes.n; i++) {
		counted = counted && runs[i].counted;
		memory = memory && runs[i].device_bytes;
	}
	results_explain(results, "targets: ratio <= %g, ratio of the P99s <= %g", TARGET_MEDIAN,
		TARGET_P99);
	if (!counted || !memory)
		results_explain(results, "note: %s", counted ? NO_MEMORY_FACTS : NO_COUNTERS);
}

int bench_share(const struct bench_options *options, struct results *results)
{
	struct share_run runs[BENCH_LIST_MAX] = {0};
	int rc = 0;

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		rc = clients_init(&runs[i].clients, options, options->processes.at[i], 1);
		runs[i].steps = samples_new(options->tokens);
		if (rc < 0 || !runs[i].steps)
			rc = bench_fail(-ENOMEM, "no memory");
	}
	if (rc == 0)
		rc = share_measure(options, runs, results);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = share_row(options, &runs[i], results);
	if (rc == 0)
		share_explain(options, runs, results);
	for (uint32_t i = 0; i < options->processes.n; i++) {
		samples_free(runs[i].steps);
		clients_deinit(&runs[i].clients);
	}
	return rc;
}
