/* SPDX-License-Identifier: MIT */
#include "tests/bench/modes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/client.h"

#define SEED 0x6d696d656f67726dull

static const enum graph_mode order[MODES_N] = {
	GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_AND_PIECEWISE, GRAPH_FULL};

/* ---- what is asked for ---- */

/* Marsaglia's xorshift, its upper bits. */
static uint32_t between(uint64_t *x, uint32_t least, uint32_t most)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	if (least < 1)
		least = 1;
	return most > least ? least + (uint32_t)((*x >> 32) % (most - least + 1)) : least;
}

void modes_requests(const struct bench_options *o, uint32_t n, struct crowd_request *requests)
{
	uint64_t x = SEED;

	for (uint32_t i = 0; i < n * MODES_REQUESTS; i++) {
		bool is_long = (i / MODES_REQUESTS + i) % 2 == 0;

		requests[i].prompt = is_long ? between(&x, o->prompt / 2, o->prompt)
					     : between(&x, o->prompt / 64, o->prompt / 8);
		requests[i].tokens = is_long ? between(&x, o->tokens / 8, o->tokens / 4)
					     : between(&x, o->tokens / 2, o->tokens);
	}
}

static int load_init(struct modes_load *load, const struct bench_options *options, uint32_t n)
{
	struct crowd_request *requests = calloc((size_t)n * MODES_REQUESTS, sizeof(*requests));
	uint32_t most = MODES_REQUESTS * options->tokens;
	int r = crowd_init(&load->crowd, n, most);

	load->crowd.requests = requests;
	load->crowd.n_requests = MODES_REQUESTS;
	load->tokens = samples_new(n * most);
	if (r < 0 || !requests || !load->tokens)
		return -ENOMEM;
	modes_requests(options, n, requests);
	for (uint32_t i = 0; i < n * MODES_REQUESTS; i++)
		load->n_tokens += requests[i].tokens;
	return 0;
}

static void load_deinit(struct modes_load *load)
{
	samples_free(load->tokens);
	free((void *)load->crowd.requests);
	crowd_deinit(&load->crowd);
}

void modes_load_free(struct modes_daemon *daemons)
{
	for (uint32_t i = 0; i < MODES_N; i++)
		for (uint32_t j = 0; j < BENCH_RUNS_MAX; j++)
			load_deinit(&daemons[i].loads[j]);
}

/* ---- what the daemon counted ---- */

/* The counters of a load that is not there yet are those since the daemon's start. */
static int look(const struct target *target, struct modes_load *ret)
{
	struct answer *answer;
	char key[32];
	int r = target_ask(target, "metrics", &answer);

	if (r < 0)
		return r;
	ret->steps = answer_metric(answer, "mimeo_steps_total");
	ret->tokens_in = answer_metric(answer, "mimeo_tokens_processed_total");
	ret->padded_rows = answer_metric(answer, "mimeo_padded_rows_total");
	ret->lane_ns = answer_metric(answer, "mimeo_lane_nanoseconds_total");
	answer_free(answer);
	r = target_ask(target, "status", &answer);
	if (r < 0)
		return r;
	for (int i = EAGER_NO + 1; i < N_EAGER_REASONS; i++) {
		snprintf(key, sizeof(key), "eager_%s", eager_reason_name((enum eager_reason)i));
		ret->eager[i] = answer_count(answer, 0, key, 0);
	}
	answer_free(answer);
	return 0;
}

/* The same load, unseen: whatever a device does at the first use of a size is behind it. */
static int warm_up(
	const struct bench_options *options, const struct target *target, struct modes_load *load)
{
	struct crowd crowd;
	int r = crowd_init(&crowd, load->crowd.n, load->crowd.tokens);

	crowd.requests = load->crowd.requests;
	crowd.n_requests = load->crowd.n_requests;
	if (r == 0)
		r = crowd_run(&crowd, options, target);
	crowd_deinit(&crowd);
	return r;
}

static int serve_one(
	const struct bench_options *options, const struct target *target, struct modes_load *load)
{
	struct modes_load before = {.steps = 0}, after = {.steps = 0};
	int r = warm_up(options, target, load);

	if (r == 0)
		r = look(target, &before);
	if (r == 0)
		r = crowd_run(&load->crowd, options, target);
	if (r == 0)
		r = look(target, &after);
	if (r < 0)
		return r;
	load->steps = after.steps - before.steps;
	load->tokens_in = after.tokens_in - before.tokens_in;
	load->padded_rows = after.padded_rows - before.padded_rows;
	load->lane_ns = after.lane_ns - before.lane_ns;
	for (int i = 0; i < N_EAGER_REASONS; i++)
		load->eager[i] = after.eager[i] - before.eager[i];
	for (uint32_t i = 0; i < load->crowd.n; i++)
		for (uint32_t j = 0; j < load->crowd.each[i]->n; j++)
			samples_add(load->tokens, load->crowd.each[i]->ns[j]);
	return 0;
}

/* ---- a daemon of each mode ---- */

struct support {
	enum attention_support level;
	char backend[32];
};

static int take_facts(
	const struct target *target, struct modes_daemon *daemon, struct support *support)
{
	struct answer *answer;
	char text[32];
	int r = target_ask(target, "models", &answer);

	if (r < 0)
		return r;
	answer_text(answer, 0, "resolved", daemon->resolved, sizeof(daemon->resolved));
	answer_text(answer, 0, "reason", daemon->reason, sizeof(daemon->reason));
	daemon->capture_seconds = answer_number(answer, 0, "capture_seconds");
	daemon->capture_bytes = answer_count(answer, 0, "graph_bytes", 0);
	daemon->n_graphs = answer_count(answer, 0, "graphs", 0);
	answer_text(answer, 0, "attention", support->backend, sizeof(support->backend));
	answer_text(answer, 0, "support", text, sizeof(text));
	support->level = ATTENTION_NEVER;
	for (int i = ATTENTION_NEVER; i <= ATTENTION_ALWAYS; i++) {
		if (strcmp(text, attention_support_name((enum attention_support)i)) == 0)
			support->level = (enum attention_support)i;
	}
	answer_free(answer);
	return 0;
}

static int serve(const struct bench_options *options, struct modes_daemon *daemon,
	struct support *support, struct target *target)
{
	struct spawn_needs needs = {
		.graph_mode = graph_mode_name(daemon->mode), .spin_us = options->spin_us};
	uint64_t start = stats_now();
	uint32_t most = 1;

	for (uint32_t i = 0; i < options->n_processes; i++)
		most = options->processes[i] > most ? options->processes[i] : most;
	needs.kv_pages = most * client_pages(options->prompt, options->tokens);
	int r = target_open(options, &needs, target);
	daemon->startup_seconds = (double)(stats_now() - start) * 1e-9;
	if (r == 0 && (r = take_facts(target, daemon, support)) < 0)
		fprintf(stderr, "mimeo-bench: models: %s\n", strerror(-r));
	for (uint32_t i = 0; i < options->n_processes && r == 0; i++) {
		r = load_init(&daemon->loads[i], options, options->processes[i]);
		if (r == 0)
			r = serve_one(options, target, &daemon->loads[i]);
	}
	target_close(target); /* its memory is the next one's */
	daemon->measured = r == 0;
	return r;
}

/* What FULL becomes if the attention does not allow it: another row, which is not measured twice.
 */
static bool becomes_another(struct modes_daemon *daemon, const struct support *support)
{
	const struct mode_request request = {
		.configured = daemon->mode,
		.support = support->level,
		.backend = support->backend,
		.decode_query = 1,
		.piecewise_available = true,
	};
	struct mode_resolution resolution;
	int r = mode_resolve(&request, &resolution);

	if (r == 0 && resolution.resolved == GRAPH_FULL)
		return false;
	snprintf(daemon->resolved, sizeof(daemon->resolved), "%s",
		r < 0 ? "refused" : graph_mode_name(resolution.resolved));
	snprintf(daemon->reason, sizeof(daemon->reason), "%s", resolution.reason);
	return true;
}

int modes_load(const struct bench_options *options, struct modes_daemon *daemons,
	struct target *ret_target)
{
	struct support support = {.level = ATTENTION_NEVER};
	int r = 0;

	for (uint32_t i = 0; i < MODES_N && r == 0; i++) {
		daemons[i].mode = order[i];
		if (order[i] == GRAPH_FULL && becomes_another(&daemons[i], &support))
			continue;
		r = serve(options, &daemons[i], &support, ret_target);
	}
	return r;
}
