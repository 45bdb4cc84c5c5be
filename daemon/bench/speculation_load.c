/* SPDX-License-Identifier: MIT */
#include "daemon/bench/speculation.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/client.h"
#include "daemon/graph/mode.h"

/* ---- what the daemon counted ---- */

/* A counter of each position, "1" and on. */
static void take_positions(
	const struct answer *answer, const char *name, uint64_t ret[SPECULATION_DRAFTS_MAX])
{
	char text[64];

	for (size_t i = 0; i < answer->n_rows; i++) {
		answer_text(answer, i, "name", text, sizeof(text));
		if (strcmp(text, name) != 0)
			continue;
		answer_text(answer, i, "label_2_value", text, sizeof(text));
		if (text[0] >= '1' && text[0] <= '0' + (int)SPECULATION_DRAFTS_MAX && !text[1])
			ret[text[0] - '1'] = answer_count(answer, i, "value", 0);
	}
}

static int look(const struct target *target, struct speculation_counters *ret)
{
	struct answer *answer;
	int r = target_ask(target, "metrics", &answer);

	if (r < 0)
		return r;
	*ret = (struct speculation_counters){
		.steps = answer_metric(answer, "mimeo_steps_total"),
		.lane_ns = answer_metric(answer, "mimeo_lane_nanoseconds_total"),
		.gaps = answer_metric(answer, "mimeo_lane_gaps_total"),
		.gap_ns = answer_metric(answer, "mimeo_lane_gap_nanoseconds_total"),
		.work_ns = answer_metric(answer, "mimeo_engine_work_nanoseconds_total"),
		.verified_rows = answer_metric(answer, "mimeo_verified_rows_total"),
		.verified_tokens = answer_metric(answer, "mimeo_verified_tokens_total"),
		.draft_steps = answer_metric(answer, "mimeo_draft_steps_total"),
		.draft_ns = answer_metric(answer, "mimeo_draft_nanoseconds_total"),
	};
	take_positions(answer, "mimeo_drafts_offered_total", ret->offered);
	take_positions(answer, "mimeo_drafts_accepted_total", ret->accepted);
	answer_free(answer);
	return 0;
}

static void subtract(struct speculation_counters *from, const struct speculation_counters *less)
{
	from->steps -= less->steps;
	from->lane_ns -= less->lane_ns;
	from->gaps -= less->gaps;
	from->gap_ns -= less->gap_ns;
	from->work_ns -= less->work_ns;
	from->verified_rows -= less->verified_rows;
	from->verified_tokens -= less->verified_tokens;
	from->draft_steps -= less->draft_steps;
	from->draft_ns -= less->draft_ns;
	for (unsigned i = 0; i < SPECULATION_DRAFTS_MAX; i++) {
		from->offered[i] -= less->offered[i];
		from->accepted[i] -= less->accepted[i];
	}
}

/* Of the smallest whole graph of such rows that holds them. */
static uint64_t nodes_of(
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

static int take_nodes(
	const struct target *target, uint32_t n_drafts, struct speculation_run *run)
{
	struct answer *answer;
	int r = target_ask(target, "graphs", &answer);

	if (r < 0)
		return r;
	run->nodes.target = nodes_of(answer, "target", run->crowd.n, 1 + n_drafts);
	if (n_drafts) {
		run->nodes.draft_prefill =
			nodes_of(answer, "draft prefill", run->crowd.n, 1 + n_drafts);
		run->nodes.draft_decode = nodes_of(answer, "draft decode", run->crowd.n, 1);
	}
	answer_free(answer);
	return 0;
}

/* ---- a daemon ---- */

/* The same load, unseen: whatever a device does at the first use of a size is behind it. */
static int warm_up(const struct bench_options *options, const struct target *target, uint32_t n)
{
	struct crowd crowd;
	int r = crowd_init(&crowd, n, options->tokens);

	if (r == 0)
		r = crowd_run(&crowd, options, target);
	crowd_deinit(&crowd);
	return r;
}

static int serve_one(const struct bench_options *options, const struct target *target,
	uint32_t n_drafts, struct speculation_run *run)
{
	struct speculation_counters before;
	int r = warm_up(options, target, run->crowd.n);

	if (r == 0)
		r = look(target, &before);
	if (r == 0)
		r = crowd_run(&run->crowd, options, target);
	if (r == 0)
		r = look(target, &run->counters);
	if (r < 0)
		return r;
	subtract(&run->counters, &before);
	return take_nodes(target, n_drafts, run);
}

static int serve(const struct bench_options *options, struct speculation_daemon *daemon,
	struct target *target)
{
	struct spawn_needs needs = {
		.spin_us = options->spin_us,
		.draft = daemon->n_drafts ? options->draft : NULL,
		.draft_tokens = daemon->n_drafts,
		.max_requests = 1,
	};
	int r = 0;

	for (uint32_t i = 0; i < options->n_processes; i++)
		needs.max_requests = options->processes[i] > needs.max_requests
					     ? options->processes[i] : needs.max_requests;
	needs.kv_pages = needs.max_requests * client_pages(options->prompt, options->tokens);
	for (uint32_t i = 0; i < options->n_processes && r == 0; i++)
		r = crowd_init(&daemon->runs[i].crowd, options->processes[i], options->tokens);
	if (r == 0)
		r = target_open(options, &needs, target);
	for (uint32_t i = 0; i < options->n_processes && r == 0; i++)
		r = serve_one(options, target, daemon->n_drafts, &daemon->runs[i]);
	target_close(target); /* its memory is the next one's */
	return r;
}

int speculation_load(const struct bench_options *options, struct speculation_daemon *daemons,
	struct target *ret_target)
{
	int r = 0;

	daemons[1].n_drafts = options->draft_tokens;
	for (uint32_t i = 0; i < SPECULATION_DAEMONS && r == 0; i++)
		r = serve(options, &daemons[i], ret_target);
	return r;
}

void speculation_load_free(struct speculation_daemon *daemons)
{
	for (uint32_t i = 0; i < SPECULATION_DAEMONS; i++)
		for (uint32_t j = 0; j < BENCH_RUNS_MAX; j++)
			crowd_deinit(&daemons[i].runs[j].crowd);
}
