/* SPDX-License-Identifier: MIT */
/*
 * What a draft model is worth: the same processes with the same prompts under a daemon without it
 * and under one with it; and what a step of each takes, which says how many tokens a verification
 * has to give before the draft model pays. The floor of a step is the time that a device copy's
 * bandwidth takes for the bytes that the step must read, the draft passes among them.
 */
#include "daemon/bench/users.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/clients.h"
#include "daemon/bench/model_floor.h"
#include "daemon/graph/mode.h"
#include "daemon/graph/speculator.h"

#define FLOOR                                                                                      \
	"of a step: reading each weight and each row's keys and values once, and the draft model's " \
	"in each of its passes, at the bandwidth of a device copy"

enum { STEPS, LANE_NS, GAPS, GAP_NS, WORK_NS, VERIFIED_ROWS, VERIFIED_TOKENS, DRAFT_STEPS, DRAFT_NS,
	N_METRICS };
static const char *const metrics[N_METRICS] = {"mimeo_steps_total", "mimeo_lane_nanoseconds_total",
	"mimeo_lane_gaps_total", "mimeo_lane_gap_nanoseconds_total",
	"mimeo_engine_work_nanoseconds_total", "mimeo_verified_rows_total",
	"mimeo_verified_tokens_total", "mimeo_draft_steps_total", "mimeo_draft_nanoseconds_total"};

/* Draft tokens by position. */
struct positions {
	uint64_t offered[SPECULATE_MAX], accepted[SPECULATE_MAX];
};

/* Nodes of the graphs that a decode step replays; 0: there is no such graph. */
struct nodes {
	uint64_t target, draft_prefill, draft_decode;
};

/* One number of processes under one daemon. */
struct speculation_run {
	uint32_t n_processes, n_drafts; /* 0: without the draft model */
	double tokens_per_s;
	uint64_t counters[N_METRICS];
	struct positions positions;
	struct nodes nodes;
};

/* ---- what the daemon counted ---- */

/* A counter of each position, labelled "1" and on. */
static void speculation_take(const struct answer *answer, const char *name, uint64_t *ret)
{
	char text[64];

	for (size_t i = 0; i < answer->n_rows; i++) {
		answer_text(answer, i, "name", text, sizeof(text));
		if (strcmp(text, name) != 0)
			continue;
		answer_text(answer, i, "label_2_value", text, sizeof(text));
		if (text[0] >= '1' && text[0] <= '0' + (int)SPECULATE_MAX && !text[1])
			ret[text[0] - '1'] = answer_count(answer, i, "value", 0);
	}
}

/* Subtracts what was counted before. */
static int speculation_positions(const struct target *target, struct positions *counts)
{
	const struct positions before = *counts;
	struct answer *answer;
	int rc = target_ask(target, "metrics", &answer);

	if (rc < 0)
		return rc;
	speculation_take(answer, "mimeo_drafts_offered_total", counts->offered);
	speculation_take(answer, "mimeo_drafts_accepted_total", counts->accepted);
	answer_free(answer);
	for (uint32_t i = 0; i < SPECULATE_MAX; i++) {
		counts->offered[i] -= before.offered[i];
		counts->accepted[i] -= before.accepted[i];
	}
	return 0;
}

/* Of the smallest whole graph of such rows that holds them. */
static uint64_t speculation_nodes_of(
	const struct answer *answer, const char *owner, uint32_t n_rows, uint32_t query_len)
{
	uint64_t best = UINT64_MAX, nodes = 0;
	char text[32];

	for (size_t i = 0; i < answer->n_rows; i++) {
		uint64_t rows = answer_count(answer, i, "rows", 0);

		answer_text(answer, i, "owner", text, sizeof(text));
		if (strcmp(text, owner) != 0)
			continue;
		answer_text(answer, i, "mode", text, sizeof(text));
		if (strcmp(text, graph_mode_name(GRAPH_FULL)) != 0 || rows < n_rows || rows >= best ||
			answer_count(answer, i, "query_len", 0) != query_len)
			continue;
		best = rows;
		nodes = answer_count(answer, i, "nodes", 0);
	}
	return nodes;
}

static int speculation_nodes(const struct target *target, struct speculation_run *run)
{
	struct answer *answer;
	uint32_t n = run->n_processes, query_len = 1 + run->n_drafts;
	int rc = target_ask(target, "graphs", &answer);

	if (rc < 0)
		return bench_fail(rc, "graphs: %s", strerror(-rc));
	run->nodes = (struct nodes){
		.target = speculation_nodes_of(answer, "target", n, query_len),
		.draft_prefill = speculation_nodes_of(answer, "draft prefill", n, query_len),
		.draft_decode = speculation_nodes_of(answer, "draft decode", n, 1),
	};
	answer_free(answer);
	return 0;
}

/* ---- the two daemons ---- */

static int speculation_serve(const struct bench_options *options, const struct target *target,
	struct speculation_run *run)
{
	struct clients clients;
	int rc = clients_init(&clients, options, run->n_processes, 1);

	if (rc == 0)
		rc = clients_warm_up(&clients, options, target);
	if (rc == 0)
		rc = target_metrics(target, metrics, N_METRICS, run->counters);
	if (rc == 0)
		rc = speculation_positions(target, &run->positions);
	if (rc == 0)
		rc = clients_run(&clients, options, target);
	if (rc == 0)
		rc = target_metrics_since(target, metrics, N_METRICS, run->counters);
	if (rc == 0)
		rc = speculation_positions(target, &run->positions);
	if (rc == 0)
		rc = speculation_nodes(target, run);
	run->tokens_per_s = clients_steady_rate(&clients);
	clients_deinit(&clients);
	return rc;
}

static int speculation_daemon(const struct bench_options *options, uint32_t n_drafts,
	struct speculation_run *runs, struct results *results)
{
	uint32_t most = clients_most(options);
	struct target target;
	int rc = target_open(options,
		&(struct spawn_needs){
			.spin_us = options->spin_us,
			.draft = n_drafts ? options->draft : NULL,
			.draft_tokens = n_drafts,
			.max_requests = most,
			.kv_pages = most * client_pages(options->prompt, options->tokens),
		},
		results, &target);

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		runs[i].n_processes = options->processes.at[i];
		runs[i].n_drafts = n_drafts;
		rc = speculation_serve(options, &target, &runs[i]);
	}
	target_close(&target); /* the next one needs its memory */
	return rc;
}

/* ---- rows ---- */

static double speculation_part(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : NAN;
}

/* Of the whole step, draft passes included. */
static double speculation_step(const struct speculation_run *run)
{
	return speculation_part(run->counters[LANE_NS], run->counters[STEPS]) * 1e-9;
}

static void speculation_acceptance(struct results *results, const struct speculation_run *run)
{
	const struct positions *p = &run->positions;
	char text[SPECULATE_MAX * sizeof("0.00 ")] = "";
	size_t used = 0;

	for (uint32_t i = 0; i < run->n_drafts && p->offered[i]; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.2f", i ? " " : "",
			fmin(1, speculation_part(p->accepted[i], p->offered[i])));
	results_text(results, "acceptance", "ACCEPTANCE", run->n_drafts ? text : NULL);
}

/* "118", or with a draft model "127 + 34 + 3 x 29": what one step replays, where all of it are
 * graphs. */
static void speculation_graphs(struct results *results, const struct speculation_run *run)
{
	const struct nodes *nodes = &run->nodes;
	uint32_t n_drafts = run->n_drafts;
	bool whole = nodes->target && (!n_drafts || nodes->draft_prefill) &&
		     (n_drafts < 2 || nodes->draft_decode);
	char text[160], decodes[48] = "";

	if (n_drafts > 1)
		snprintf(decodes, sizeof(decodes), " + %u x %" PRIu64, n_drafts - 1,
			nodes->draft_decode);
	if (n_drafts)
		snprintf(text, sizeof(text), "%" PRIu64 " + %" PRIu64 "%s", nodes->target,
			nodes->draft_prefill, decodes);
	else
		snprintf(text, sizeof(text), "%" PRIu64, nodes->target);
	results_text(results, "nodes", "NODES", whole ? text : NULL);
	results_value(results, "target_nodes", NULL, TABLE_COUNT,
		whole ? (double)nodes->target : NAN);
	results_value(results, "draft_prefill_nodes", NULL, TABLE_COUNT,
		whole && n_drafts ? (double)nodes->draft_prefill : NAN);
	results_value(results, "draft_decode_nodes", NULL, TABLE_COUNT,
		whole && n_drafts > 1 ? (double)nodes->draft_decode : NAN);
}

static void speculation_row(const struct bench_options *o, const struct speculation_run *run,
	const struct speculation_run *without, const struct model_floor *floors,
	struct results *results)
{
	const uint64_t *c = run->counters;
	double step = speculation_step(run), drafts = run->n_drafts ? 1 : NAN;
	double floor = model_floor_seconds(
		floors, run->n_drafts, run->n_processes, o->prompt + o->tokens / 2);
	uint64_t time = c[LANE_NS] + c[GAP_NS];

	results_row(results);
	results_text(results, "draft", NULL, run->n_drafts ? o->draft : NULL);
	results_count(results, "processes", "PROCESSES", run->n_processes);
	results_count(results, "draft_tokens", "DRAFT TOKENS", run->n_drafts);
	results_count(results, "prompt", NULL, o->prompt);
	results_count(results, "tokens", NULL, run->n_processes * (uint64_t)o->tokens);
	results_number(results, "tokens_per_s", "TOKENS/S", run->tokens_per_s);
	results_number(results, "against_none", "X NONE", run->tokens_per_s / without->tokens_per_s);
	results_count(results, "steps", "STEPS", c[STEPS]);
	results_seconds(results, "step_mean_s", "STEP", step);
	results_seconds(results, "draft_mean_s", "DRAFT",
		drafts * speculation_part(c[DRAFT_NS], c[DRAFT_STEPS]) * 1e-9);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", step / floor);
	results_number(results, "break_even", "BREAK-EVEN", drafts * step / speculation_step(without));
	results_number(results, "tokens_per_verification", "PER VERIFICATION",
		drafts * speculation_part(c[VERIFIED_TOKENS], c[VERIFIED_ROWS]));
	speculation_acceptance(results, run);
	speculation_graphs(results, run);
	results_seconds(results, "gap_mean_s", "GAP", speculation_part(c[GAP_NS], c[GAPS]) * 1e-9);
	results_number(results, "idle_percent", "IDLE, %", 100 * speculation_part(c[GAP_NS], time));
	results_seconds(results, "engine_s", "ENGINE", speculation_part(c[WORK_NS], c[STEPS]) * 1e-9);
	results_number(results, "engine_idle_percent", "ENGINE IDLE, %",
		fmax(0, 100 - 100 * speculation_part(c[WORK_NS], time)));
	results_value(results, "verified_rows", NULL, TABLE_COUNT, drafts * (double)c[VERIFIED_ROWS]);
	results_value(
		results, "verified_tokens", NULL, TABLE_COUNT, drafts * (double)c[VERIFIED_TOKENS]);
	results_number(results, "copy_bytes_per_s", NULL, floors->rates.copy);
	results_floor(results, FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
}

int bench_speculation(const struct bench_options *options, struct results *results)
{
	struct speculation_run without[BENCH_LIST_MAX] = {0}, with[BENCH_LIST_MAX] = {0};
	struct model_floor floors;
	int rc = speculation_daemon(options, 0, without, results);

	if (rc == 0)
		rc = speculation_daemon(options, options->draft_tokens, with, results);
	if (rc == 0)
		rc = model_floor(options, &floors);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < options->processes.n; i++) {
		speculation_row(options, &without[i], &without[i], &floors, results);
		speculation_row(options, &with[i], &without[i], &floors, results);
	}
	results_explain(results, "step: on the device, with the draft's part, prompts included; "
		"break-even: a step by one without the draft model, and so the tokens that a "
		"verification has to give before the draft model pays");
	results_explain(results, "nodes: of the graphs of a step: target, first draft pass, the "
		"others; idle: of the device, between steps; engine: its thread's time a step, and the "
		"rest of a step");
	if (options->shape)
		results_explain(results, "note: weights are random, so draft tokens are not accepted: "
			"this is what they cost");
	return 0;
}
