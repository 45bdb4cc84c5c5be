/* SPDX-License-Identifier: MIT */
/*
 * What each graph mode is worth. A part of it is served: the same processes with the same long and
 * short prompts under a daemon of each mode, the one without graphs being the anchor. The other
 * part is one lane in this process: the same decode step as one graph, in pieces and without a
 * graph, and what one of the breaks between the pieces costs.
 */
#include "tests/bench/modes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/report.h"
#include "tests/bench/internals.h"

#define BREAK_SECONDS 5e-6
#define FLOOR_LOAD                                                                                 \
	"of a served step: reading each weight once at the bandwidth of a device copy, or the "    \
	"layers' products of all tokens at the rate of a large one, whichever takes longer"
#define FLOOR_DECODE                                                                               \
	"of a decode step: reading each weight and each row's keys and values once, at the "       \
	"bandwidth of a device copy"
#define CPU_NOTE "on the cpu device only ratios count"
#define NO_ROOM "the KV cache has no room for it"

#define HEAD_COLUMNS                                                                               \
	{"bench", NULL, TABLE_TEXT}, {"part", NULL, TABLE_TEXT}, {"model", NULL, TABLE_TEXT}
#define LOAD_COLUMNS                                                                               \
	{"mode", "MODE", TABLE_TEXT}, {"resolved", "RESOLVED", TABLE_TEXT},                        \
		{"reason", NULL, TABLE_TEXT}, {"processes", "PROCESSES", TABLE_COUNT},             \
		{"requests", NULL, TABLE_COUNT}, {"prompt_tokens", NULL, TABLE_COUNT},             \
		{"tokens", NULL, TABLE_COUNT}, {"tokens_taken_in", NULL, TABLE_COUNT},             \
		{"tokens_per_s", "TOKENS/S", TABLE_NUMBER},                                        \
		{"against_none", "X NONE", TABLE_NUMBER},                                          \
		{"token_median_s", "TOKEN", TABLE_SECONDS}, {"token_p99_s", "P99", TABLE_SECONDS}, \
		{"steps", "STEPS", TABLE_COUNT}, {"step_mean_s", "STEP", TABLE_SECONDS},           \
		{"padded_percent", "PADDED, %", TABLE_NUMBER}, {"eager_steps", NULL, TABLE_COUNT}, \
		{"eager", "EAGER", TABLE_TEXT}, {"graphs", "GRAPHS", TABLE_COUNT},                 \
		{"capture_s", "CAPTURE", TABLE_SECONDS}, {"capture_bytes", "BYTES", TABLE_BYTES},  \
		{"startup_s", "START", TABLE_SECONDS}
#define DECODE_COLUMNS                                                                             \
	{"batch", "BATCH", TABLE_COUNT}, {"context", "CONTEXT", TABLE_COUNT},                      \
		{"samples", NULL, TABLE_COUNT}, {"full_s", "FULL", TABLE_SECONDS},                 \
		{"full_p99_s", NULL, TABLE_SECONDS}, {"full_launch_s", NULL, TABLE_SECONDS},       \
		{"piecewise_s", "PIECEWISE", TABLE_SECONDS},                                       \
		{"piecewise_p99_s", NULL, TABLE_SECONDS},                                          \
		{"piecewise_launch_s", "LAUNCH", TABLE_SECONDS},                                   \
		{"none_s", "NONE", TABLE_SECONDS}, {"none_p99_s", NULL, TABLE_SECONDS},            \
		{"none_launch_s", "LAUNCH", TABLE_SECONDS}, {"breaks", "BREAKS", TABLE_COUNT},     \
		{"break_s", "A BREAK", TABLE_SECONDS}
#define TAIL_COLUMNS                                                                               \
	{"floor_s", "FLOOR", TABLE_SECONDS}, {"ratio", "RATIO", TABLE_NUMBER},                     \
		{"target", "TARGET", TABLE_TEXT}, {"met", "MET", TABLE_TEXT}, REPORT_COLUMNS

static const struct table_column load_columns[] = {HEAD_COLUMNS, LOAD_COLUMNS, TAIL_COLUMNS};
static const struct table_column decode_columns[] = {HEAD_COLUMNS, DECODE_COLUMNS, TAIL_COLUMNS};
/* JSON is one array. */
static const struct table_column all_columns[] = {
	HEAD_COLUMNS, LOAD_COLUMNS, DECODE_COLUMNS, TAIL_COLUMNS};
#define N(columns) (sizeof(columns) / sizeof((columns)[0]))

struct modes_run {
	const struct bench_options *options;
	struct modes_daemon *daemons; /* [MODES_N] */
	struct modes_lane *lane;
	struct target target;
};

static bool is_host(const struct modes_run *run)
{
	return strncmp(run->target.device, "cpu", 3) == 0;
}

static void begin_row(struct table *table, const struct modes_run *run, const char *part)
{
	table_row(table);
	table_set_text(table, "bench", "modes");
	table_set_text(table, "part", part);
	report_model(table, run->options);
}

/* ---- the load ---- */

static double rate(const struct modes_daemon *daemon, uint32_t i)
{
	const struct modes_load *load = &daemon->loads[i];

	return (double)load->n_tokens / ((double)load->crowd.ns * 1e-9);
}

/* No step can take less, and so their mean cannot. */
static double load_floor(const struct modes_lane *lane, const struct modes_load *load)
{
	double tokens = (double)load->tokens_in / (double)load->steps;

	return fmax((double)lane->weight_bytes / lane->rates.copy,
		tokens * lane->token_flop / lane->rates.product);
}

/* "mixed 12, too_wide 1", or "0" */
static uint64_t describe_eager(const struct modes_load *load, char *ret, size_t size)
{
	uint64_t sum = 0;
	size_t used = 0;

	snprintf(ret, size, "0");
	for (int i = EAGER_NO + 1; i < N_EAGER_REASONS; i++) {
		if (load->eager[i] && used < size)
			used += (size_t)snprintf(ret + used, size - used, "%s%s %lu",
				used ? ", " : "", eager_reason_name((enum eager_reason)i),
				(unsigned long)load->eager[i]);
		sum += load->eager[i];
	}
	return sum;
}

/* Of the mode that has a graph for every batch nothing may run without one. */
static void set_target(struct table *table, const struct modes_daemon *daemon, uint64_t eager)
{
	if (strcmp(daemon->resolved, graph_mode_name(GRAPH_FULL_AND_PIECEWISE)) != 0)
		return;
	table_set_text(table, "target", "0 eager");
	table_set_text(table, "met", report_verdict((double)eager, 0, true));
}

static void set_steps(struct table *table, const struct modes_run *run,
	const struct modes_daemon *daemon, const struct modes_load *load)
{
	double step = (double)load->lane_ns * 1e-9 / (double)load->steps;
	double padded = (double)load->padded_rows;
	double floor = load_floor(run->lane, load);
	char text[256];
	uint64_t eager = describe_eager(load, text, sizeof(text));

	table_set_count(table, "steps", load->steps);
	table_set_count(table, "tokens_taken_in", load->tokens_in);
	report_number(table, "step_mean_s", step);
	report_number(table, "floor_s", floor);
	report_number(table, "ratio", step / floor);
	report_number(table, "padded_percent", 100 * padded / (padded + (double)load->tokens_in));
	table_set_count(table, "eager_steps", eager);
	table_set_text(table, "eager", text);
	set_target(table, daemon, eager);
}

static void set_served(struct table *table, const struct modes_run *run,
	const struct modes_daemon *daemon, uint32_t i)
{
	const struct modes_load *load = &daemon->loads[i];
	uint64_t prompts = 0;

	for (uint32_t j = 0; j < load->crowd.n * MODES_REQUESTS; j++)
		prompts += load->crowd.requests[j].prompt;
	table_set_count(table, "requests", load->crowd.n * MODES_REQUESTS);
	table_set_count(table, "prompt_tokens", prompts);
	table_set_count(table, "tokens", load->n_tokens);
	report_number(table, "tokens_per_s", rate(daemon, i));
	report_number(table, "against_none", rate(daemon, i) / rate(&run->daemons[0], i));
	report_number(table, "token_median_s", samples_quantile(load->tokens, 0.5));
	report_number(table, "token_p99_s", samples_quantile(load->tokens, 0.99));
	set_steps(table, run, daemon, load);
	table_set_count(table, "graphs", daemon->n_graphs);
	table_set_number(table, "capture_s", daemon->capture_seconds);
	table_set_count(table, "capture_bytes", daemon->capture_bytes);
	table_set_number(table, "startup_s", daemon->startup_seconds);
}

static void fill_load(struct table *table, const struct modes_run *run)
{
	for (uint32_t i = 0; i < run->options->n_processes * MODES_N; i++) {
		const struct modes_daemon *daemon = &run->daemons[i % MODES_N];

		begin_row(table, run, "load");
		table_set_text(table, "mode", graph_mode_name(daemon->mode));
		table_set_text(table, "resolved", daemon->resolved);
		table_set_text(table, "reason", daemon->reason);
		table_set_count(table, "processes", run->options->processes[i / MODES_N]);
		if (daemon->measured)
			set_served(table, run, daemon, i / MODES_N);
		report_common(table, &run->target, FLOOR_LOAD, is_host(run) ? CPU_NOTE : NULL);
	}
}

/* ---- decode steps ---- */

static const char *const names[MODES_CONCRETE] = {"none", "piecewise", "full"};

static void set_mode(struct table *table, const struct modes_batch *batch, enum graph_mode mode)
{
	char key[32];

	snprintf(key, sizeof(key), "%s_s", names[mode]);
	report_number(table, key, samples_quantile(batch->steps[mode], 0.5));
	snprintf(key, sizeof(key), "%s_p99_s", names[mode]);
	report_number(table, key, samples_quantile(batch->steps[mode], 0.99));
	snprintf(key, sizeof(key), "%s_launch_s", names[mode]);
	report_number(table, key, samples_quantile(batch->launches[mode], 0.5));
}

static void set_batch(
	struct table *table, const struct modes_run *run, const struct modes_batch *batch)
{
	double full = samples_quantile(batch->steps[GRAPH_FULL], 0.5);
	double pieces = samples_quantile(batch->steps[GRAPH_PIECEWISE], 0.5);
	double a_break = (pieces - full) / batch->n_breaks;
	double bytes = (double)(run->lane->weight_bytes + batch->kv_bytes);
	double floor = bytes / run->lane->rates.copy;
	/* In pieces it has to be slower: otherwise something else is wrong with the whole. */
	const char *met = report_verdict(
		a_break, BREAK_SECONDS, !is_host(run) && !batch->no_room && isfinite(a_break));

	table_set_count(table, "samples", batch->steps[GRAPH_FULL]->n);
	for (uint32_t i = 0; i < MODES_CONCRETE; i++)
		set_mode(table, batch, (enum graph_mode)i);
	table_set_count(table, "breaks", batch->n_breaks);
	report_number(table, "break_s", a_break);
	report_number(table, "floor_s", floor);
	report_number(table, "ratio", full / floor);
	table_set_text(table, "target", "0 to 5 us");
	if (met)
		table_set_text(table, "met", a_break > 0 ? met : "no");
}

static void fill_decode(struct table *table, const struct modes_run *run)
{
	for (uint32_t i = 0; i < run->lane->n_batches; i++) {
		const struct modes_batch *batch = &run->lane->batches[i];
		const char *note = is_host(run) ? CPU_NOTE : NULL;

		begin_row(table, run, "decode");
		table_set_count(table, "batch", batch->batch);
		table_set_count(table, "context", batch->context);
		set_batch(table, run, batch);
		report_common(table, &run->target, FLOOR_DECODE, batch->no_room ? NO_ROOM : note);
	}
}

/* ---- both ---- */

static int print_json(const struct modes_run *run)
{
	struct table *table;
	int r = table_new(&table, all_columns, N(all_columns), 0);

	if (r < 0)
		return r;
	fill_load(table, run);
	fill_decode(table, run);
	return report_whole(table, "modes", &run->target, true);
}

static int print_load(const struct modes_run *run)
{
	struct table *table;
	int r = table_new(&table, load_columns, N(load_columns), 0);

	if (r < 0)
		return r;
	fill_load(table, run);
	r = report_whole(table, "modes", &run->target, false);
	for (uint32_t i = 0; i < MODES_N && r == 0; i++) {
		const struct modes_daemon *daemon = &run->daemons[i];

		if (strcmp(daemon->resolved, graph_mode_name(daemon->mode)) != 0)
			printf("note: %s is %s: %s\n", graph_mode_name(daemon->mode),
				daemon->resolved, daemon->reason);
	}
	return r;
}

static int print_decode(const struct modes_run *run)
{
	struct table *table;
	bool no_room = false;
	int r = table_new(&table, decode_columns, N(decode_columns), 0);

	if (r < 0)
		return r;
	fill_decode(table, run);
	printf("\ndecode steps of one lane, in process: as one graph, in pieces, eager\n");
	r = report_table(table, false);
	table_free(table);
	for (uint32_t i = 0; i < run->lane->n_batches; i++)
		no_room = no_room || run->lane->batches[i].no_room;
	if (r == 0 && no_room)
		printf("note: a dash: %s\n", NO_ROOM);
	return r;
}

static int print(const struct modes_run *run)
{
	int r;

	if (run->options->json)
		return print_json(run);
	r = print_load(run);
	if (r == 0)
		r = print_decode(run);
	if (r < 0)
		return r;
	report_rates(FLOOR_LOAD, &run->lane->rates);
	printf("floor %s\n", FLOOR_DECODE);
	printf("step, padded: of the daemon's lane; token: from one to the next, as clients see "
	       "them; start: from the program's start to serving\n"
	       "launch: what the host needs to launch one step; a break: (piecewise - full) / "
	       "breaks\n");
	if (is_host(run))
		printf("note: %s\n", CPU_NOTE);
	return 0;
}

int bench_modes(const struct bench_options *options)
{
	struct modes_run run = {.options = options,
		.daemons = calloc(MODES_N, sizeof(struct modes_daemon)),
		.lane = modes_lane_new(options),
		.target = {.admin = -1}};
	int r = run.daemons && run.lane ? 0 : -ENOMEM;

	if (r == 0)
		r = modes_load(options, run.daemons, &run.target);
	if (r == 0)
		r = modes_lane_run(options, run.lane);
	if (r == 0)
		r = print(&run);
	modes_lane_free(run.lane);
	if (run.daemons)
		modes_load_free(run.daemons);
	free(run.daemons);
	return r;
}
