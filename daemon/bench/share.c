/* SPDX-License-Identifier: MIT */
/*
 * The reason to exist: N processes with a sequence each, against a bare loop in one process that
 * replays the same graph for N rows. In steady decode a token's latency is the time of a step, and
 * a step carries a row of every process.
 */
#include "daemon/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/crowd.h"
#include "daemon/bench/replay.h"
#include "daemon/bench/report.h"

#define TARGET_MEDIAN 1.3
#define TARGET_P99 2.0
#define FLOOR                                                                                      \
	"the same graph replayed in one process for as many rows, two steps in flight, no ring"
#define CPU_NOTE "on the cpu device only ratios count"
#define FEW_CPUS_NOTE                                                                              \
	"there are fewer CPUs than processes and daemon threads: the clients take turns with the " \
	"work that they wait for, and the targets are not judged"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"processes", "PROCESSES", TABLE_COUNT},
	{"tokens", NULL, TABLE_COUNT},
	{"prompt", NULL, TABLE_COUNT},
	{"tokens_per_s", "TOKENS/S", TABLE_NUMBER},
	{"overall_tokens_per_s", NULL, TABLE_NUMBER},
	{"token_median_s", "TOKEN", TABLE_SECONDS},
	{"token_p99_s", "P99", TABLE_SECONDS},
	{"replays", NULL, TABLE_COUNT},
	{"rows_per_step", "ROWS/STEP", TABLE_NUMBER},
	{"shared", "SHARED", TABLE_TEXT},
	{"shared_replays", NULL, TABLE_COUNT},
	{"floor_tokens_per_s", "FLOOR TOKENS/S", TABLE_NUMBER},
	{"floor_median_s", "FLOOR", TABLE_SECONDS},
	{"floor_p99_s", "FLOOR P99", TABLE_SECONDS},
	{"ratio_median", "RATIO", TABLE_NUMBER},
	{"ratio_p99", "RATIO P99", TABLE_NUMBER},
	{"met", "MET", TABLE_TEXT},
	{"device_used_bytes", "DEVICE MEMORY", TABLE_BYTES},
	{"resident_bytes", "DAEMON", TABLE_BYTES},
	{"target_ratio_median", NULL, TABLE_NUMBER},
	{"target_ratio_p99", NULL, TABLE_NUMBER},
	REPORT_COLUMNS,
};

/* One number of processes. */
struct share_run {
	struct crowd crowd;
	struct samples *tokens; /* times from token to token, of all processes */
	struct samples *steps;  /* the floor's */
	bool counted;           /* the daemon's counters are known */
	uint64_t n_steps, rows, replays, shared, resident_bytes, device_bytes;
};

/* ---- what the daemon counted ---- */

struct counters {
	uint64_t steps, rows, replays, shared;
};

static int look(const struct target *target, struct counters *ret)
{
	struct answer *answer;
	int r = target_ask(target, "metrics", &answer);

	if (r < 0)
		return r;
	ret->steps = answer_metric(answer, "mimeo_steps_total");
	ret->rows = answer_metric(answer, "mimeo_rows_total");
	ret->replays = answer_metric(answer, "mimeo_replays_total");
	ret->shared = answer_metric(answer, "mimeo_shared_replays_total");
	answer_free(answer);
	return 0;
}

static void count(struct share_run *run, const struct target *target, const struct counters *before)
{
	struct counters after;
	struct answer *answer;

	if (look(target, &after) < 0 || target_ask(target, "status", &answer) < 0)
		return;
	run->resident_bytes = answer_count(answer, 0, "resident_bytes", 0);
	run->device_bytes = answer_count(answer, 0, "device_used_bytes", 0);
	answer_free(answer);
	run->counted = true;
	run->n_steps = after.steps - before->steps;
	run->replays = after.replays - before->replays;
	run->shared = after.shared - before->shared;
	run->rows = after.rows - before->rows;
}

/* ---- all runs ---- */

static int run_init(struct share_run *run, uint32_t n, uint32_t tokens)
{
	run->tokens = samples_new(n * tokens);
	run->steps = samples_new(tokens);
	int r = crowd_init(&run->crowd, n, tokens);
	return run->tokens && run->steps ? r : -ENOMEM;
}

static void run_deinit(struct share_run *run)
{
	crowd_deinit(&run->crowd);
	samples_free(run->steps);
	samples_free(run->tokens);
}

static int run_one(const struct bench_options *options, const struct target *target,
	struct share_run *run)
{
	struct counters before;
	bool counting = look(target, &before) == 0;
	int r = crowd_run(&run->crowd, options, target);

	if (r < 0)
		return r;
	if (counting)
		count(run, target, &before);
	for (uint32_t i = 0; i < run->crowd.n; i++)
		for (uint32_t j = 0; j < run->crowd.each[i]->n; j++)
			samples_add(run->tokens, run->crowd.each[i]->ns[j]);
	return 0;
}

static int measure_floors(const struct bench_options *options, const struct share_run *runs)
{
	struct replay_run replays[BENCH_RUNS_MAX] = {0};

	for (uint32_t i = 0; i < options->n_processes; i++)
		replays[i] = (struct replay_run){.steps = runs[i].steps};
	return replay_floors(options, replays);
}

/* ---- the table ---- */

static void set_counters(struct table *table, const struct share_run *run)
{
	char text[32];

	if (!run->counted)
		return;
	table_set_count(table, "replays", run->replays);
	table_set_count(table, "shared_replays", run->shared);
	table_set_count(table, "resident_bytes", run->resident_bytes);
	if (run->device_bytes)
		table_set_count(table, "device_used_bytes", run->device_bytes);
	if (run->n_steps > 0)
		table_set_number(table, "rows_per_step", (double)run->rows / (double)run->n_steps);
	if (run->replays == 0)
		return;
	snprintf(text, sizeof(text), "%.1f %%", 100.0 * (double)run->shared / (double)run->replays);
	table_set_text(table, "shared", text);
}

static double floor_rate(const struct share_run *run)
{
	double seconds = 0;

	for (uint32_t i = 0; i < run->steps->n; i++)
		seconds += (double)run->steps->ns[i] * 1e-9;
	return run->steps->n ? run->steps->n * (double)run->crowd.n / seconds : NAN;
}

/* The threads that work for a token: each client, the engine, the lane. */
static bool is_fit(const struct share_run *run)
{
	return report_n_cpus() >= run->crowd.n + 2;
}

static void set_ratios(struct table *table, struct share_run *run)
{
	double median = samples_quantile(run->tokens, 0.5);
	double p99 = samples_quantile(run->tokens, 0.99);
	double floor = samples_quantile(run->steps, 0.5);
	double floor_p99 = samples_quantile(run->steps, 0.99);

	report_number(table, "token_median_s", median);
	report_number(table, "token_p99_s", p99);
	report_number(table, "floor_tokens_per_s", floor_rate(run));
	report_number(table, "floor_median_s", floor);
	report_number(table, "floor_p99_s", floor_p99);
	report_number(table, "ratio_median", median / floor);
	report_number(table, "ratio_p99", p99 / floor_p99);
	const char *met = report_verdict(median / floor, TARGET_MEDIAN, is_fit(run));
	const char *met_p99 = report_verdict(p99 / floor_p99, TARGET_P99, is_fit(run));
	if (met && met_p99)
		table_set_text(table, "met", strcmp(met, "yes") == 0 ? met_p99 : met);
}

static void fill(struct table *table, const struct bench_options *options,
	const struct target *target, struct share_run *run)
{
	table_row(table);
	table_set_text(table, "bench", "share");
	table_set_count(table, "processes", run->crowd.n);
	table_set_count(table, "prompt", options->prompt);
	table_set_count(table, "tokens", run->crowd.n * (uint64_t)options->tokens);
	report_number(table, "tokens_per_s", crowd_steady_rate(&run->crowd));
	table_set_number(table, "overall_tokens_per_s",
		run->crowd.n * (double)options->tokens / ((double)run->crowd.ns * 1e-9));
	set_counters(table, run);
	set_ratios(table, run);
	table_set_number(table, "target_ratio_median", TARGET_MEDIAN);
	table_set_number(table, "target_ratio_p99", TARGET_P99);
	const char *note = strncmp(target->device, "cpu", 3) == 0 ? CPU_NOTE : NULL;
	report_common(table, target, FLOOR, is_fit(run) ? note : FEW_CPUS_NOTE);
}

static void print_notes(const struct bench_options *options, const struct target *target,
	const struct share_run *runs)
{
	bool fit = true, counted = true, memory = true;

	for (uint32_t i = 0; i < options->n_processes; i++) {
		fit = fit && is_fit(&runs[i]);
		counted = counted && runs[i].counted;
		memory = memory && runs[i].device_bytes;
	}
	printf("floor: %s; targets: ratio <= %g, ratio of the P99s <= %g\n",
		options->model_dir ? FLOOR : REPORT_NO_FLOOR, TARGET_MEDIAN, TARGET_P99);
	if (strncmp(target->device, "cpu", 3) == 0)
		printf("note: %s\n", CPU_NOTE);
	if (!fit)
		printf("note: %s\n", FEW_CPUS_NOTE);
	if (!counted)
		printf("note: what the daemon is and counts comes over its admin socket\n");
	else if (!memory)
		printf("note: this device has no memory of its own to tell of\n");
}

static int print(const struct bench_options *options, const struct target *target,
	struct share_run *runs)
{
	struct table *table;
	int r = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < options->n_processes; i++)
		fill(table, options, target, &runs[i]);
	r = report_whole(table, "share", target, options->json);
	if (r == 0 && !options->json)
		print_notes(options, target, runs);
	return r;
}

int bench_share(const struct bench_options *options)
{
	struct share_run runs[BENCH_RUNS_MAX] = {0};
	struct target target = {.admin = -1};
	int r = 0;

	for (uint32_t i = 0; i < options->n_processes && r == 0; i++)
		r = run_init(&runs[i], options->processes[i], options->tokens);
	if (r == 0)
		r = crowd_target(options, &target);
	for (uint32_t i = 0; i < options->n_processes && r == 0; i++)
		r = run_one(options, &target, &runs[i]);
	target_close(&target); /* its memory may be what the floor needs */
	if (r == 0 && options->model_dir)
		r = measure_floors(options, runs);
	if (r == 0)
		r = print(options, &target, runs);
	for (uint32_t i = 0; i < options->n_processes; i++)
		run_deinit(&runs[i]);
	return r;
}
