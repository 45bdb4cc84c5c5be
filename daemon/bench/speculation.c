/* SPDX-License-Identifier: MIT */
/*
 * What a draft is worth: the same processes with the same prompts under a daemon without it and
 * under one with it; and what a step of each takes, which says how many tokens a verification has
 * to give before the draft pays. The floor of a step is the time that a device copy's bandwidth
 * takes for the bytes that the step must read, the draft's passes among them.
 */
#include "daemon/bench/speculation.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/report.h"

#define FLOOR                                                                                      \
	"of a step: reading each weight and each row's keys and values once, and the draft's in "  \
	"each of its passes, at the bandwidth of a device copy"
#define CPU_NOTE "on the cpu device only ratios count"

static const struct table_column columns[] = {
	{"bench", NULL, TABLE_TEXT},
	{"model", NULL, TABLE_TEXT},
	{"draft", NULL, TABLE_TEXT},
	{"processes", "PROCESSES", TABLE_COUNT},
	{"draft_tokens", "GUESSES", TABLE_COUNT},
	{"prompt", NULL, TABLE_COUNT},
	{"tokens", NULL, TABLE_COUNT},
	{"tokens_per_s", "TOKENS/S", TABLE_NUMBER},
	{"against_none", "X NONE", TABLE_NUMBER},
	{"steps", "STEPS", TABLE_COUNT},
	{"step_mean_s", "STEP", TABLE_SECONDS},
	{"draft_mean_s", "DRAFT", TABLE_SECONDS},
	{"floor_s", "FLOOR", TABLE_SECONDS},
	{"ratio", "RATIO", TABLE_NUMBER},
	{"break_even", "BREAK-EVEN", TABLE_NUMBER},
	{"tokens_per_verification", "PER VERIFICATION", TABLE_NUMBER},
	{"acceptance", "ACCEPTANCE", TABLE_TEXT},
	{"nodes", "NODES", TABLE_TEXT},
	{"gap_mean_s", "GAP", TABLE_SECONDS},
	{"idle_percent", "IDLE, %", TABLE_NUMBER},
	{"engine_s", "ENGINE", TABLE_SECONDS},
	{"engine_idle_percent", "ENGINE IDLE, %", TABLE_NUMBER},
	{"verified_rows", NULL, TABLE_COUNT},
	{"verified_tokens", NULL, TABLE_COUNT},
	{"target_nodes", NULL, TABLE_COUNT},
	{"draft_prefill_nodes", NULL, TABLE_COUNT},
	{"draft_decode_nodes", NULL, TABLE_COUNT},
	{"copy_bytes_per_s", NULL, TABLE_NUMBER},
	REPORT_COLUMNS,
};

struct speculation {
	const struct bench_options *options;
	struct speculation_daemon daemons[SPECULATION_DAEMONS];
	struct speculation_floor floor;
	struct target target;
};

static double part(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : NAN;
}

static bool is_host(const struct speculation *s)
{
	return strncmp(s->target.device, "cpu", 3) == 0;
}

/* The whole step's, the draft's passes with it. */
static double step_seconds(const struct speculation_run *run)
{
	return part(run->counters.lane_ns, run->counters.steps) * 1e-9;
}

static void set_draft(struct table *table, const struct speculation_run *run,
	const struct speculation_run *without, uint32_t n_drafts)
{
	const struct speculation_counters *c = &run->counters;
	char text[SPECULATION_DRAFTS_MAX * sizeof("0.00 ")] = "";
	size_t used = 0;

	report_number(table, "draft_mean_s", part(c->draft_ns, c->draft_steps) * 1e-9);
	report_number(table, "break_even", step_seconds(run) / step_seconds(without));
	report_number(table, "tokens_per_verification", part(c->verified_tokens, c->verified_rows));
	table_set_count(table, "verified_rows", c->verified_rows);
	table_set_count(table, "verified_tokens", c->verified_tokens);
	for (uint32_t i = 0; i < n_drafts && c->offered[i]; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.2f", i ? " " : "",
			fmin(1, part(c->accepted[i], c->offered[i])));
	table_set_text(table, "acceptance", text);
}

/* "118", or with a draft's "127 + 34 + 3 x 29": what one step replays, where all of it are graphs. */
static void set_nodes(
	struct table *table, const struct speculation_nodes *nodes, uint32_t n_drafts)
{
	bool all = nodes->target && (!n_drafts || nodes->draft_prefill) &&
		(n_drafts < 2 || nodes->draft_decode);
	char text[96];
	int used;

	if (!all)
		return;
	used = snprintf(text, sizeof(text), "%" PRIu64, nodes->target);
	table_set_count(table, "target_nodes", nodes->target);
	if (n_drafts) {
		used += snprintf(text + used, sizeof(text) - (size_t)used, " + %" PRIu64,
			nodes->draft_prefill);
		table_set_count(table, "draft_prefill_nodes", nodes->draft_prefill);
	}
	if (n_drafts > 1) {
		snprintf(text + used, sizeof(text) - (size_t)used, " + %u x %" PRIu64, n_drafts - 1,
			nodes->draft_decode);
		table_set_count(table, "draft_decode_nodes", nodes->draft_decode);
	}
	table_set_text(table, "nodes", text);
}

static void set_lane(struct table *table, const struct speculation_counters *c)
{
	uint64_t time = c->lane_ns + c->gap_ns;

	report_number(table, "gap_mean_s", part(c->gap_ns, c->gaps) * 1e-9);
	report_number(table, "idle_percent", 100 * part(c->gap_ns, time));
	report_number(table, "engine_s", part(c->work_ns, c->steps) * 1e-9);
	report_number(table, "engine_idle_percent", fmax(0, 100 - 100 * part(c->work_ns, time)));
}

static void fill(struct table *table, const struct speculation *s, uint32_t i, uint32_t with)
{
	const struct bench_options *o = s->options;
	const struct speculation_daemon *daemon = &s->daemons[with];
	const struct speculation_run *run = &daemon->runs[i], *without = &s->daemons[0].runs[i];
	double floor = speculation_floor_seconds(&s->floor, daemon->n_drafts, run->crowd.n,
		o->prompt + o->tokens / 2);

	table_row(table);
	table_set_text(table, "bench", "speculation");
	report_model(table, o);
	if (daemon->n_drafts)
		table_set_text(table, "draft", o->draft);
	table_set_count(table, "processes", run->crowd.n);
	table_set_count(table, "draft_tokens", daemon->n_drafts);
	table_set_count(table, "prompt", o->prompt);
	table_set_count(table, "tokens", run->crowd.n * (uint64_t)o->tokens);
	report_number(table, "tokens_per_s", crowd_steady_rate(&run->crowd));
	report_number(table, "against_none",
		crowd_steady_rate(&run->crowd) / crowd_steady_rate(&without->crowd));
	table_set_count(table, "steps", run->counters.steps);
	report_number(table, "step_mean_s", step_seconds(run));
	report_number(table, "floor_s", floor);
	report_number(table, "ratio", step_seconds(run) / floor);
	if (daemon->n_drafts)
		set_draft(table, run, without, daemon->n_drafts);
	set_nodes(table, &run->nodes, daemon->n_drafts);
	set_lane(table, &run->counters);
	report_number(table, "copy_bytes_per_s", s->floor.copy_rate);
	report_common(table, &s->target, FLOOR, is_host(s) ? CPU_NOTE : NULL);
}

static void print_notes(const struct speculation *s)
{
	printf("floor: %s\n", FLOOR);
	printf("step: on the device, with the draft's part, prompts counted in; break-even: a step "
	       "by one without the draft, and so the tokens that a verification has to give before "
	       "the draft pays\n");
	printf("nodes: of the graphs of a step: target, draft's first pass, the others; idle: of the "
	       "device, between steps; engine: its thread's time a step, and the rest of a step\n");
	if (s->options->shape)
		printf("note: weights are random, so guesses do not hold: this is what they cost\n");
	if (is_host(s))
		printf("note: %s\n", CPU_NOTE);
}

static int print(const struct speculation *s)
{
	struct table *table;
	int r = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < s->options->n_processes; i++)
		for (uint32_t with = 0; with < SPECULATION_DAEMONS; with++)
			fill(table, s, i, with);
	r = report_whole(table, "speculation", &s->target, s->options->json);
	if (r == 0 && !s->options->json)
		print_notes(s);
	return r;
}

int bench_speculation(const struct bench_options *options)
{
	struct speculation *s = calloc(1, sizeof(*s));
	int r = s ? 0 : -ENOMEM;

	if (r < 0)
		return r;
	s->options = options;
	s->target.admin = -1;
	r = speculation_load(options, s->daemons, &s->target);
	if (r == 0)
		r = speculation_floor(options, &s->floor);
	if (r == 0)
		r = print(s);
	speculation_load_free(s->daemons);
	free(s);
	return r;
}
