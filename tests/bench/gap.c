/* SPDX-License-Identifier: MIT */
/*
 * How much of the lane a serving daemon leaves idle between two decode steps, and what a step costs
 * its engine's thread. The device itself notes when a step's first kernel begins and its last one
 * ends; the daemon adds up the time from one step's end to the beginning of the next that generates
 * on from it. The floor is the same between steps of a bare loop in one process.
 */
#include "tests/bench/internals.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/client.h"
#include "daemon/bench/clients.h"
#include "daemon/bench/replay.h"

#define TARGET_SECONDS 3e-6
#define FLOOR "the same idle time in one process that replays the same graph, two steps in flight"

enum { GAPS, GAP_NS, LONG_GAPS, LONG_GAP_NS, LANE_NS, WORK_NS, STEPS, N_METRICS };
static const char *const metrics[N_METRICS] = {"mimeo_lane_gaps_total",
	"mimeo_lane_gap_nanoseconds_total", "mimeo_lane_long_gaps_total",
	"mimeo_lane_long_gap_nanoseconds_total", "mimeo_lane_nanoseconds_total",
	"mimeo_engine_work_nanoseconds_total", "mimeo_steps_total"};

struct gap_run {
	struct clients clients;
	uint64_t counters[N_METRICS], cpu_ns;
	struct samples *steps, *gaps, *launches; /* the floor's */
};

/* What the thread has run, spinning included; 0 if it is not the engine's or unknown. */
static uint64_t gap_thread_ns(uint64_t pid, const char *tid)
{
	char path[64], name[64] = "";
	uint64_t ns = 0;

	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/task/%.16s/comm", pid, tid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	bool is_engine = fgets(name, sizeof(name), file) && strncmp(name, "mimeo-engine", 12) == 0;
	fclose(file);
	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/task/%.16s/schedstat", pid, tid);
	file = is_engine ? fopen(path, "re") : NULL;
	if (!file)
		return 0;
	if (fscanf(file, "%" SCNu64, &ns) != 1)
		ns = 0;
	fclose(file);
	return ns;
}

static uint64_t gap_engine_ns(const struct target *target)
{
	struct answer *answer;
	char path[64];
	uint64_t ns = 0;

	if (target_ask(target, "status", &answer) < 0)
		return 0;
	uint64_t pid = answer_count(answer, 0, "pid", 0);
	answer_free(answer);
	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/task", pid);
	DIR *folder = opendir(path);
	for (struct dirent *entry; folder && (entry = readdir(folder)) && !ns;)
		ns = gap_thread_ns(pid, entry->d_name);
	if (folder)
		closedir(folder);
	return ns;
}

static int gap_serve(const struct bench_options *options, const struct target *target,
	struct gap_run *run)
{
	int rc = target_metrics(target, metrics, N_METRICS, run->counters);

	if (rc < 0)
		return bench_fail(rc, "gap: the daemon's counters need its admin socket");
	uint64_t cpu_ns = gap_engine_ns(target);
	rc = clients_run(&run->clients, options, target);
	if (rc < 0)
		return rc;
	run->cpu_ns = cpu_ns ? gap_engine_ns(target) - cpu_ns : 0;
	return target_metrics_since(target, metrics, N_METRICS, run->counters);
}

static double gap_part(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : NAN;
}

static void gap_row(const struct bench_options *options, const struct gap_run *run,
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
	results_seconds(results, "engine_cpu_s", "ENGINE CPU",
		run->cpu_ns ? gap_part(run->cpu_ns, c[STEPS]) * 1e-9 : NAN);
	results_floor(results, options->model_dir ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
}

static int gap_measure(const struct bench_options *options, struct gap_run *runs,
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
		rc = gap_serve(options, &target, &runs[i]);
		floors[i].steps = runs[i].steps;
		floors[i].gaps = runs[i].gaps;
		floors[i].launches = runs[i].launches;
	}
	target_machine(&target, results);
	target_close(&target); /* the floor may need its memory */
	return rc == 0 && options->model_dir ? replay_floors(options, floors) : rc;
}

int bench_gap(const struct bench_options *options, struct results *results)
{
	struct gap_run runs[BENCH_LIST_MAX] = {0};
	int rc = 0;

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		rc = clients_init(&runs[i].clients, options, options->processes.at[i], 1);
		runs[i].steps = samples_new(options->tokens);
		runs[i].gaps = samples_new(options->tokens);
		runs[i].launches = samples_new(options->tokens + REPLAY_WARM_UPS);
		if (rc < 0 || !runs[i].steps || !runs[i].gaps || !runs[i].launches)
			rc = bench_fail(-ENOMEM, "no memory");
	}
	if (rc == 0)
		rc = gap_measure(options, runs, results);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		gap_row(options, &runs[i], results);
	results_explain(results, "engine: time a step of its turns that launched or read one; launch: "
		"what the bare loop needs to launch one; engine cpu: all that the engine's thread ran a "
		"step, spinning included, where the kernel reports it");
	for (uint32_t i = 0; i < options->processes.n; i++) {
		samples_free(runs[i].launches);
		samples_free(runs[i].gaps);
		samples_free(runs[i].steps);
		clients_deinit(&runs[i].clients);
	}
	return rc;
}
