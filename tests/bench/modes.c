/* SPDX-License-Identifier: MIT */
/*
 * What each graph mode is worth. A part of it is served: the same processes with the same long and
 * short prompts under a daemon of each mode, the one without graphs being the anchor. The other
 * part is one lane in this process: the same decode step as one graph, in pieces and without a
 * graph, and what one of the breaks between the pieces costs.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/bench/client.h"
#include "daemon/bench/clients.h"
#include "daemon/bench/model_floor.h"
#include "daemon/bench/replay.h"
#include "daemon/graph/mode.h"

#define SEED 0x6d696d656f67726dull
#define REQUESTS 4u /* of each process, one behind the other */
#define BREAK_SECONDS 5e-6
#define FLOOR_LOAD                                                                                 \
	"of a served step: reading each weight once at the bandwidth of a device copy, or the "    \
	"layers' products of all tokens at the rate of a large one, whichever takes longer"
#define FLOOR_DECODE                                                                               \
	"of a decode step: reading each weight and each row's keys and values once, at the "       \
	"bandwidth of a device copy"
#define NO_SPACE "the KV cache has no space for it"

static const enum graph_mode order[] = {
	GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_AND_PIECEWISE, GRAPH_FULL};
#define N_MODES (sizeof(order) / sizeof(order[0]))

enum { STEPS, TOKENS_IN, PADDED_ROWS, LANE_NS, N_METRICS };
static const char *const metrics[N_METRICS] = {"mimeo_steps_total", "mimeo_tokens_processed_total",
	"mimeo_padded_rows_total", "mimeo_lane_nanoseconds_total"};

/* One number of processes under one mode. */
struct modes_load {
	struct clients clients;
	uint64_t counters[N_METRICS], eager[N_EAGER_REASONS];
};

struct modes_daemon {
	enum graph_mode mode; /* configured */
	bool measured;        /* false: it becomes what another row shows, or is refused */
	char resolved[24], reason[256];
	double startup_seconds, capture_seconds;
	uint64_t capture_bytes, n_graphs;
	struct modes_load loads[BENCH_LIST_MAX];
};

struct modes_bench {
	const struct bench_options *options;
	struct results *results;
	struct model_floor floor;
	struct modes_daemon daemons[N_MODES];
	enum attention_support support;
	char backend[32];
};

/* ---- a daemon of each mode ---- */

static uint32_t modes_between(uint64_t *state, uint32_t least, uint32_t most)
{
	least = least ? least : 1;
	return most > least ? least + stats_random(state) % (most - least + 1) : least;
}

/* The same in every run: by turns a prompt of options->prompt tokens, or down to half as many, with
 * a short answer, and a short prompt with an answer of options->tokens, or down to half as many. */
static void modes_draw(const struct bench_options *o, struct clients *clients)
{
	uint64_t state = SEED;

	for (uint32_t i = 0; i < clients->n * REQUESTS; i++) {
		bool is_long = (i / REQUESTS + i) % 2 == 0;
		struct clients_request *request = &clients->requests[i];

		request->prompt = is_long ? modes_between(&state, o->prompt / 2, o->prompt)
					  : modes_between(&state, o->prompt / 64, o->prompt / 8);
		request->tokens = is_long ? modes_between(&state, o->tokens / 8, o->tokens / 4)
					  : modes_between(&state, o->tokens / 2, o->tokens);
	}
}

/* Subtracts what was counted before. */
static int modes_eager(const struct target *target, uint64_t counts[N_EAGER_REASONS])
{
	struct answer *answer;
	char key[32];
	int rc = target_ask(target, "status", &answer);

	for (int i = EAGER_NO + 1; i < N_EAGER_REASONS && rc == 0; i++) {
		snprintf(key, sizeof(key), "eager_%s", eager_reason_name((enum eager_reason)i));
		counts[i] = answer_count(answer, 0, key, 0) - counts[i];
	}
	if (rc == 0)
		answer_free(answer);
	return rc;
}

static int modes_serve(const struct bench_options *options, const struct target *target,
	uint32_t n_processes, struct modes_load *load)
{
	int rc = clients_init(&load->clients, options, n_processes, REQUESTS);

	if (rc < 0)
		return rc;
	modes_draw(options, &load->clients);
	rc = clients_warm_up(&load->clients, options, target);
	if (rc == 0)
		rc = target_metrics(target, metrics, N_METRICS, load->counters);
	if (rc == 0)
		rc = modes_eager(target, load->eager);
	if (rc == 0)
		rc = clients_run(&load->clients, options, target);
	if (rc == 0)
		rc = target_metrics_since(target, metrics, N_METRICS, load->counters);
	return rc == 0 ? modes_eager(target, load->eager) : rc;
}

static int modes_facts(
	const struct target *target, struct modes_bench *bench, struct modes_daemon *daemon)
{
	struct answer *answer;
	char text[32];
	int rc = target_ask(target, "models", &answer);

	if (rc < 0)
		return bench_fail(rc, "models: %s", strerror(-rc));
	answer_text(answer, 0, "resolved", daemon->resolved, sizeof(daemon->resolved));
	answer_text(answer, 0, "reason", daemon->reason, sizeof(daemon->reason));
	daemon->capture_seconds = answer_number(answer, 0, "capture_seconds");
	daemon->capture_bytes = answer_count(answer, 0, "graph_bytes", 0);
	daemon->n_graphs = answer_count(answer, 0, "graphs", 0);
	answer_text(answer, 0, "attention", bench->backend, sizeof(bench->backend));
	answer_text(answer, 0, "support", text, sizeof(text));
	for (int i = ATTENTION_NEVER; i <= ATTENTION_ALWAYS; i++) {
		if (strcmp(text, attention_support_name((enum attention_support)i)) == 0)
			bench->support = (enum attention_support)i;
	}
	answer_free(answer);
	return 0;
}

static int modes_daemon(struct modes_bench *bench, struct modes_daemon *daemon)
{
	const struct bench_options *o = bench->options;
	const struct spawn_needs needs = {.graph_mode = graph_mode_name(daemon->mode),
		.spin_us = o->spin_us,
		.kv_pages = clients_most(o) * client_pages(o->prompt, o->tokens)};
	struct target target;
	uint64_t start = stats_now();
	int rc = target_open(o, &needs, &target);

	daemon->startup_seconds = (double)(stats_now() - start) * 1e-9;
	if (rc == 0)
		rc = modes_facts(&target, bench, daemon);
	for (uint32_t i = 0; i < o->processes.n && rc == 0; i++)
		rc = modes_serve(o, &target, o->processes.at[i], &daemon->loads[i]);
	target_machine(&target, bench->results);
	target_close(&target); /* the next one needs its memory */
	daemon->measured = rc == 0;
	return rc;
}

/* What FULL becomes if the attention does not allow it: another row, which is not measured twice. */
static bool modes_becomes_another(const struct modes_bench *bench, struct modes_daemon *daemon)
{
	const struct mode_request request = {
		.configured = daemon->mode,
		.support = bench->support,
		.backend = bench->backend,
		.decode_query = 1,
		.piecewise_available = true,
	};
	struct mode_resolution resolution;
	int rc = mode_resolve(&request, &resolution);

	if (daemon->mode != GRAPH_FULL || (rc == 0 && resolution.resolved == GRAPH_FULL))
		return false;
	snprintf(daemon->resolved, sizeof(daemon->resolved), "%s",
		rc < 0 ? "refused" : graph_mode_name(resolution.resolved));
	snprintf(daemon->reason, sizeof(daemon->reason), "%s", resolution.reason);
	return true;
}

/* ---- rows of the load ---- */

/* "mixed 12, too_wide 1", or "0"; the sum of all. */
static uint64_t modes_describe_eager(const struct modes_load *load, char *ret, size_t size)
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

static int modes_served(const struct modes_bench *bench, const struct modes_daemon *daemon,
	const struct modes_load *load, const struct modes_load *none)
{
	struct results *results = bench->results;
	CLEANUP(cleanup_samples) struct samples *tokens =
		clients_all(&load->clients, load->clients.between);
	double steps = (double)load->counters[STEPS], in = (double)load->counters[TOKENS_IN];
	double padded = (double)load->counters[PADDED_ROWS];
	double step = (double)load->counters[LANE_NS] * 1e-9 / steps;
	double floor = fmax((double)bench->floor.weight_bytes / bench->floor.rates.copy,
		in / steps * bench->floor.token_flop / bench->floor.rates.product);
	bool judged = strcmp(daemon->resolved, graph_mode_name(GRAPH_FULL_AND_PIECEWISE)) == 0;
	char eager[256];
	uint64_t n_eager = modes_describe_eager(load, eager, sizeof(eager));

	if (!tokens)
		return -ENOMEM;
	results_count(results, "requests", NULL, load->clients.n * REQUESTS);
	results_count(results, "prompt_tokens", NULL, clients_prompt_tokens(&load->clients));
	results_count(results, "tokens", NULL, clients_tokens(&load->clients));
	results_value(results, "tokens_taken_in", NULL, TABLE_COUNT, in);
	results_number(results, "tokens_per_s", "TOKENS/S", clients_rate(&load->clients));
	results_number(results, "against_none", "X NONE",
		clients_rate(&load->clients) / clients_rate(&none->clients));
	results_seconds(results, "token_median_s", "TOKEN", samples_quantile(tokens, 0.5));
	results_seconds(results, "token_p99_s", "P99", samples_quantile(tokens, 0.99));
	results_value(results, "steps", "STEPS", TABLE_COUNT, steps);
	results_seconds(results, "step_mean_s", "STEP", step);
	results_number(results, "padded_percent", "PADDED, %", 100 * padded / (padded + in));
	results_count(results, "eager_steps", NULL, n_eager);
	results_text(results, "eager", "EAGER", eager);
	results_count(results, "graphs", "GRAPHS", daemon->n_graphs);
	results_seconds(results, "capture_s", "CAPTURE", daemon->capture_seconds);
	results_value(
		results, "capture_bytes", "BYTES", TABLE_BYTES, (double)daemon->capture_bytes);
	results_seconds(results, "startup_s", "START", daemon->startup_seconds);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", step / floor);
	/* With a graph for every batch no step may run without one. */
	if (judged)
		results_target(results, "0 eager", n_eager ? "no" : "yes");
	return 0;
}

static int modes_rows(struct modes_bench *bench)
{
	struct results *results = bench->results;

	for (uint32_t i = 0; i < bench->options->processes.n * N_MODES; i++) {
		const struct modes_daemon *daemon = &bench->daemons[i % N_MODES];
		uint32_t index = i / N_MODES;

		results_row(results);
		results_text(results, "part", NULL, "load");
		results_text(results, "mode", "MODE", graph_mode_name(daemon->mode));
		results_text(results, "resolved", "RESOLVED", daemon->resolved);
		results_text(results, "reason", NULL, daemon->reason);
		results_count(results, "processes", "PROCESSES", bench->options->processes.at[index]);
		results_floor(results, FLOOR_LOAD);
		results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
		if (!daemon->measured) {
			results_number(results, "tokens_per_s", "TOKENS/S", NAN);
			continue;
		}
		int rc = modes_served(bench, daemon, &daemon->loads[index],
			&bench->daemons[0].loads[index]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- decode steps ---- */

static const struct {
	enum graph_mode mode;
	const char *key, *title, *p99_key, *launch_key, *launch_title;
} ways[] = {
	{GRAPH_FULL, "full_s", "FULL", "full_p99_s", "full_launch_s", NULL},
	{GRAPH_PIECEWISE, "piecewise_s", "PIECEWISE", "piecewise_p99_s", "piecewise_launch_s",
		"LAUNCH"},
	{GRAPH_NONE, "none_s", "NONE", "none_p99_s", "none_launch_s", "LAUNCH"},
};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))

/* The row's values of one way: its median, NAN where the cache has no space. */
static int modes_way(
	const struct modes_bench *bench, struct lane *lane, uint32_t index, size_t way, double *ret)
{
	const struct bench_options *o = bench->options;
	struct results *results = bench->results;
	CLEANUP(cleanup_samples) struct samples *steps = samples_new(o->count);
	CLEANUP(cleanup_samples) struct samples *launches = samples_new(o->count + REPLAY_WARM_UPS);
	struct replay_run run = replay_at(o, index, ways[way].mode);

	if (!steps || !launches)
		return -ENOMEM;
	run.steps = steps;
	run.launches = launches;
	int rc = replay_run(lane, &run);
	if (rc == -ENOSPC)
		results_note(results, NO_SPACE);
	else if (rc)
		return rc;
	*ret = samples_quantile(steps, 0.5);
	results_count(results, "samples", NULL, steps->n);
	results_seconds(results, ways[way].key, ways[way].title, *ret);
	results_seconds(results, ways[way].p99_key, NULL, samples_quantile(steps, 0.99));
	results_seconds(results, ways[way].launch_key, ways[way].launch_title,
		samples_quantile(launches, 0.5));
	return 0;
}

static int modes_decode_row(const struct modes_bench *bench, struct lane *lane, uint32_t index)
{
	struct results *results = bench->results;
	const struct replay_run run = replay_at(bench->options, index, GRAPH_FULL);
	uint64_t kv = lane_kv_bytes(lane, run.n_rows, replay_middle(&run));
	double floor = (double)(bench->floor.weight_bytes + kv) / bench->floor.rates.copy;
	double medians[N_WAYS];
	struct graph_entry *pieces;

	results_row(results);
	results_text(results, "part", NULL, "decode");
	results_count(results, "batch", "BATCH", run.n_rows);
	results_count(results, "context", "CONTEXT",
		bench->options->contexts.at[index % bench->options->contexts.n]);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
	for (size_t way = 0; way < N_WAYS; way++) {
		int rc = modes_way(bench, lane, index, way, &medians[way]);

		if (rc)
			return rc;
	}
	int rc = lane_graph(lane, run.n_rows, GRAPH_PIECEWISE, &pieces);
	if (rc)
		return rc;
	double a_break = (medians[1] - medians[0]) / pieces->pieces.n_breaks;
	bool judged = !results_on_cpu(results) && isfinite(a_break);
	results_count(results, "breaks", "BREAKS", pieces->pieces.n_breaks);
	results_seconds(results, "break_s", "A BREAK", a_break);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", medians[0] / floor);
	/* In pieces it has to be slower: otherwise something else is wrong with the whole graph. */
	results_target(results, "0 to 5 us",
		judged ? (a_break > 0 && a_break <= BREAK_SECONDS ? "yes" : "no") : NULL);
	results_floor(results, FLOOR_DECODE);
	return 0;
}

static int modes_child(void *arg, int fd)
{
	static struct lane lane;
	const struct modes_bench *bench = arg;
	const struct bench_options *o = bench->options;
	struct lane_options needs = {
		.device = o->device, .model_dir = o->model_dir, .attention = o->attention};
	struct model_error error = {""};

	for (uint32_t i = 0; i < o->batches.n * o->contexts.n; i++) {
		const struct replay_run run = replay_at(o, i, GRAPH_FULL);

		replay_needs(&run, &needs);
	}
	int rc = lane_open(&lane, &needs, &error);
	for (uint32_t i = 0; i < o->batches.n * o->contexts.n && !rc; i++)
		rc = modes_decode_row(bench, &lane, i);
	lane_close(&lane);
	return bench_fail_device(rc, "modes", error.text) != 0;
}

/* ---- both ---- */

static int modes_run(struct modes_bench *bench)
{
	struct results *results = bench->results;
	int rc = 0;

	for (uint32_t i = 0; i < N_MODES && rc == 0; i++) {
		bench->daemons[i].mode = order[i];
		if (!modes_becomes_another(bench, &bench->daemons[i]))
			rc = modes_daemon(bench, &bench->daemons[i]);
	}
	if (rc == 0)
		rc = model_floor(bench->options, &bench->floor);
	if (rc == 0)
		rc = modes_rows(bench);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < N_MODES; i++) {
		const struct modes_daemon *daemon = &bench->daemons[i];

		if (strcmp(daemon->resolved, graph_mode_name(daemon->mode)) != 0)
			results_explain(results, "note: %s is %s: %s", graph_mode_name(daemon->mode),
				daemon->resolved, daemon->reason);
	}
	results_explain(results, "step, padded: of the daemon's lane; token: from one to the next, as "
		"clients see them; start: from the program's start to serving; launch: what the host "
		"needs to launch one step; a break: (piecewise - full) / breaks");
	results_part(results, "decode steps of one lane, in process: as one graph, in pieces, eager");
	return child_run("modes", modes_child, bench, bench->options->timeout_s);
}

int bench_modes(const struct bench_options *options, struct results *results)
{
	struct modes_bench bench = {.options = options, .results = results};
	int rc = modes_run(&bench);

	for (uint32_t i = 0; i < N_MODES; i++)
		for (uint32_t j = 0; j < options->processes.n; j++)
			clients_deinit(&bench.daemons[i].loads[j].clients);
	return rc;
}
