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
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/crowd.h"
#include "daemon/bench/replay.h"
#include "daemon/bench/report.h"

#define TARGET_SECONDS 3e-6
#define FLOOR "the same idle time in one process that replays the same graph, two steps in flight"
#define CPU_NOTE "on the cpu device only ratios count"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"processes", "PROCESSES", TABLE_COUNT},
	{"gaps", "GAPS", TABLE_COUNT},
	{"gap_mean_s", "GAP", TABLE_SECONDS},
	{"floor_mean_s", "FLOOR", TABLE_SECONDS},
	{"ratio", "RATIO", TABLE_NUMBER},
	{"target", "TARGET", TABLE_TEXT},
	{"met", "MET", TABLE_TEXT},
	{"long_gaps", "> 10 US", TABLE_COUNT},
	{"short_gap_mean_s", "THE REST", TABLE_SECONDS},
	{"step_mean_s", "STEP", TABLE_SECONDS},
	{"idle_percent", "IDLE, %", TABLE_NUMBER},
	{"engine_s", "ENGINE", TABLE_SECONDS},
	{"floor_engine_s", "LAUNCH", TABLE_SECONDS},
	{"engine_cpu_s", "ENGINE CPU", TABLE_SECONDS},
	{"target_s", NULL, TABLE_NUMBER},
	REPORT_COLUMNS,
};

/* The daemon's counters; differences of two looks. */
struct counters {
	uint64_t gaps, gap_ns, long_gaps, long_gap_ns, lane_ns, work_ns, steps, cpu_ns;
};

struct gap_run {
	struct crowd crowd;
	struct counters daemon;
	struct samples *steps, *gaps, *launches; /* the floors' */
};

/* ---- the daemon's ---- */

/* What the engine's thread has run, spinning included; 0 where the kernel does not tell us. */
static uint64_t thread_ns(uint64_t pid)
{
	char path[64], text[64] = "";
	uint64_t ns = 0;

	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/task", pid);
	DIR *folder = opendir(path);
	for (struct dirent *entry; folder && (entry = readdir(folder)) && !ns;) {
		snprintf(path, sizeof(path), "/proc/%" PRIu64 "/task/%.16s/comm", pid,
			entry->d_name);
		FILE *file = fopen(path, "re");
		if (!file)
			continue;
		bool is_engine =
			fgets(text, sizeof(text), file) && strncmp(text, "mimeo-engine", 12) == 0;
		fclose(file);
		snprintf(path, sizeof(path), "/proc/%" PRIu64 "/task/%.16s/schedstat", pid,
			entry->d_name);
		file = is_engine ? fopen(path, "re") : NULL;
		if (file && fscanf(file, "%" SCNu64, &ns) != 1)
			ns = 0;
		if (file)
			fclose(file);
	}
	if (folder)
		closedir(folder);
	return ns;
}

static int look(const struct target *target, struct counters *ret)
{
	struct answer *answer;
	int r = target_ask(target, "status", &answer);

	if (r < 0)
		return r;
	*ret = (struct counters){.cpu_ns = thread_ns(answer_count(answer, 0, "pid", 0))};
	answer_free(answer);
	r = target_ask(target, "metrics", &answer);
	if (r < 0)
		return r;
	ret->gaps = answer_metric(answer, "mimeo_lane_gaps_total");
	ret->gap_ns = answer_metric(answer, "mimeo_lane_gap_nanoseconds_total");
	ret->long_gaps = answer_metric(answer, "mimeo_lane_long_gaps_total");
	ret->long_gap_ns = answer_metric(answer, "mimeo_lane_long_gap_nanoseconds_total");
	ret->lane_ns = answer_metric(answer, "mimeo_lane_nanoseconds_total");
	ret->work_ns = answer_metric(answer, "mimeo_engine_work_nanoseconds_total");
	ret->steps = answer_metric(answer, "mimeo_steps_total");
	answer_free(answer);
	return 0;
}

static int run_one(
	const struct bench_options *options, const struct target *target, struct gap_run *run)
{
	struct counters before, after;
	int r = look(target, &before);

	if (r == 0)
		r = crowd_run(&run->crowd, options, target);
	else
		fprintf(stderr, "mimeo-bench: gap: the daemon's counters need its admin socket\n");
	if (r == 0)
		r = look(target, &after);
	if (r < 0)
		return r;
	run->daemon = (struct counters){
		.gaps = after.gaps - before.gaps,
		.gap_ns = after.gap_ns - before.gap_ns,
		.long_gaps = after.long_gaps - before.long_gaps,
		.long_gap_ns = after.long_gap_ns - before.long_gap_ns,
		.lane_ns = after.lane_ns - before.lane_ns,
		.work_ns = after.work_ns - before.work_ns,
		.steps = after.steps - before.steps,
		.cpu_ns = before.cpu_ns ? after.cpu_ns - before.cpu_ns : 0,
	};
	return 0;
}

static int measure_floors(const struct bench_options *options, const struct gap_run *runs)
{
	struct replay_run replays[BENCH_RUNS_MAX] = {0};

	for (uint32_t i = 0; i < options->n_processes; i++)
		replays[i] = (struct replay_run){
			.steps = runs[i].steps,
			.gaps = runs[i].gaps,
			.launches = runs[i].launches,
		};
	return replay_floors(options, replays);
}

/* ---- the table ---- */

static double mean(const struct samples *samples)
{
	double sum = 0;

	for (uint32_t i = 0; i < samples->n; i++)
		sum += (double)samples->ns[i] * 1e-9;
	return samples->n ? sum / samples->n : NAN;
}

static double part(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : NAN;
}

static void fill(struct table *table, const struct target *target, const struct gap_run *run)
{
	const struct counters *c = &run->daemon;
	double gap = part(c->gap_ns, c->gaps) * 1e-9, floor = mean(run->gaps);
	bool is_host = strncmp(target->device, "cpu", 3) == 0;
	const char *met = report_verdict(gap, TARGET_SECONDS, !is_host);

	table_row(table);
	table_set_text(table, "bench", "gap");
	table_set_count(table, "processes", run->crowd.n);
	table_set_count(table, "gaps", c->gaps);
	report_number(table, "gap_mean_s", gap);
	report_number(table, "floor_mean_s", floor);
	report_number(table, "ratio", gap / floor);
	table_set_text(table, "target", "<= 3 us");
	if (met)
		table_set_text(table, "met", met);
	table_set_count(table, "long_gaps", c->long_gaps);
	report_number(table, "short_gap_mean_s",
		part(c->gap_ns - c->long_gap_ns, c->gaps - c->long_gaps) * 1e-9);
	report_number(table, "step_mean_s", part(c->lane_ns, c->steps) * 1e-9);
	report_number(table, "idle_percent", 100 * part(c->gap_ns, c->gap_ns + c->lane_ns));
	report_number(table, "engine_s", part(c->work_ns, c->steps) * 1e-9);
	report_number(table, "floor_engine_s", samples_quantile(run->launches, 0.5));
	if (c->cpu_ns)
		report_number(table, "engine_cpu_s", part(c->cpu_ns, c->steps) * 1e-9);
	table_set_number(table, "target_s", TARGET_SECONDS);
	report_common(table, target, FLOOR, is_host ? CPU_NOTE : NULL);
}

static int print(const struct bench_options *options, const struct target *target,
	const struct gap_run *runs)
{
	struct table *table;
	int r = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < options->n_processes; i++)
		fill(table, target, &runs[i]);
	r = report_whole(table, "gap", target, options->json);
	if (r < 0 || options->json)
		return r;
	printf("floor: %s\n",
		options->model_dir ? FLOOR : REPORT_NO_FLOOR ", and launch is the floor's too");
	printf("engine: time a step of its turns that launched or read one; launch: what the bare "
	       "loop needs to launch one; engine cpu: all that the engine's thread ran a step, "
	       "spinning included\n");
	if (strncmp(target->device, "cpu", 3) == 0)
		printf("note: %s\n", CPU_NOTE);
	if (!runs[0].daemon.cpu_ns)
		printf("note: the kernel does not tell us what the daemon's threads ran\n");
	return 0;
}

static int run_all(const struct bench_options *options, struct gap_run *runs, struct target *target)
{
	int r = crowd_target(options, target);

	for (uint32_t i = 0; i < options->n_processes && r == 0; i++)
		r = run_one(options, target, &runs[i]);
	target_close(target); /* its memory may be what the floor needs */
	return r;
}

int bench_gap(const struct bench_options *options)
{
	struct gap_run runs[BENCH_RUNS_MAX] = {0};
	struct target target = {.admin = -1};
	int r = 0;

	for (uint32_t i = 0; i < options->n_processes && r == 0; i++) {
		r = crowd_init(&runs[i].crowd, options->processes[i], options->tokens);
		runs[i].steps = samples_new(options->tokens);
		runs[i].gaps = samples_new(options->tokens);
		runs[i].launches = samples_new(options->tokens + REPLAY_WARM_UPS);
		r = r == 0 && runs[i].steps && runs[i].gaps && runs[i].launches ? 0 : -ENOMEM;
	}
	if (r == 0)
		r = run_all(options, runs, &target);
	if (r == 0 && options->model_dir)
		r = measure_floors(options, runs);
	if (r == 0)
		r = print(options, &target, runs);
	for (uint32_t i = 0; i < options->n_processes; i++) {
		samples_free(runs[i].launches);
		samples_free(runs[i].gaps);
		samples_free(runs[i].steps);
		crowd_deinit(&runs[i].crowd);
	}
	return r;
}
