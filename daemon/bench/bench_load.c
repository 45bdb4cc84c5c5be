/* SPDX-License-Identifier: MIT */
/*
 * A mixed load: N processes that each keep several requests in flight, with prompt and output
 * lengths drawn from ranges by a seed, and what a user of one request sees: the time to its first
 * token, and from token to token. No token can come sooner behind another than a step takes to read
 * the model's weights, which is the floor.
 */
#include "daemon/bench/users.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/clients.h"
#include "daemon/bench/model_floor.h"
#include "daemon/graph/graph_set.h"

#define FLOOR "of the time between tokens: reading each weight once at the bandwidth of a device copy"

enum { STEPS, TOKENS_IN, PADDED_ROWS, LANE_NS, N_METRICS };
static const char *const metrics[N_METRICS] = {"mimeo_steps_total", "mimeo_tokens_processed_total",
	"mimeo_padded_rows_total", "mimeo_lane_nanoseconds_total"};

/* One number of processes. */
struct load_run {
	struct clients clients;
	bool counted; /* what follows is known: it comes over the daemon's admin socket */
	uint64_t counters[N_METRICS], eager[N_EAGER_REASONS];
};

/* What the daemon made of --graph-mode; empty if it is not known. */
struct load_graphs {
	char resolved[24], reason[256];
	uint64_t n;
	double capture_seconds;
};

static uint32_t load_between(uint64_t *state, uint32_t least, uint32_t most)
{
	assert(least <= most);
	return least + stats_random(state) % (most - least + 1);
}

/* The same lengths for each number of processes, and in every run with the seed. */
static void load_draw(const struct bench_options *o, struct clients *clients)
{
	uint64_t state = 0x9e3779b97f4a7c15ull ^ o->seed;

	clients->in_flight = o->in_flight;
	clients->seed = (uint64_t)o->seed << 32;
	for (uint32_t i = 0; i < clients->n * clients->n_requests; i++) {
		struct clients_request *request = &clients->requests[i];

		request->prompt = load_between(&state, o->prompt_least, o->prompt);
		request->tokens = load_between(&state, o->tokens_least, o->tokens);
	}
}

static void load_quantiles(struct results *results, const char *const keys[3],
	const char *const titles[3], struct samples *samples)
{
	static const double fractions[] = {0.5, 0.9, 0.99};

	for (uint32_t i = 0; i < 3; i++)
		results_seconds(results, keys[i], titles[i], samples_quantile(samples, fractions[i]));
}

/* "mixed 12, too_wide 1", or "0"; the sum of all. */
static uint64_t load_describe_eager(const struct load_run *run, char *ret, size_t size)
{
	uint64_t sum = 0;
	size_t used = 0;

	snprintf(ret, size, "0");
	for (int i = EAGER_NO + 1; i < N_EAGER_REASONS; i++) {
		if (run->eager[i] && used < size)
			used += (size_t)snprintf(ret + used, size - used, "%s%s %lu",
				used ? ", " : "", eager_reason_name((enum eager_reason)i),
				(unsigned long)run->eager[i]);
		sum += run->eager[i];
	}
	return sum;
}

/* In JSON alone. */
static void load_counters(
	struct results *results, const struct load_run *run, const struct load_graphs *graphs)
{
	const uint64_t *c = run->counters;
	double steps = (double)c[STEPS], in = (double)c[TOKENS_IN], padded = (double)c[PADDED_ROWS];
	char eager[256];

	if (!run->counted)
		return;
	results_value(results, "steps", NULL, TABLE_COUNT, steps);
	results_value(results, "tokens_taken_in", NULL, TABLE_COUNT, in);
	results_seconds(results, "step_mean_s", NULL, (double)c[LANE_NS] * 1e-9 / steps);
	results_number(results, "padded_percent", NULL, 100 * padded / (padded + in));
	results_count(results, "eager_steps", NULL,
		load_describe_eager(run, eager, sizeof(eager)));
	results_text(results, "eager", NULL, eager);
	results_text(results, "graph_mode", NULL, graphs->resolved);
	results_text(results, "graph_mode_reason", NULL, graphs->reason);
	results_count(results, "graphs", NULL, graphs->n);
	results_seconds(results, "capture_s", NULL, graphs->capture_seconds);
}

static int load_row(const struct bench_options *o, const struct load_run *run,
	const struct load_graphs *graphs, const struct model_floor *floor, struct results *results)
{
	const struct clients *clients = &run->clients;
	static const char *const first[] = {"first_median_s", "first_p90_s", "first_p99_s"};
	static const char *const between[] = {"between_median_s", "between_p90_s", "between_p99_s"};
	static const char *const titles[2][3] = {
		{"FIRST TOKEN", "P90", "P99"}, {"BETWEEN", "P90", "P99"}};
	CLEANUP(cleanup_samples) struct samples *firsts = clients_all(clients, clients->first);
	CLEANUP(cleanup_samples) struct samples *betweens = clients_all(clients, clients->between);
	double seconds = (double)clients->ns * 1e-9, n = clients->n * (double)clients->n_requests;
	double least = floor ? (double)floor->weight_bytes / floor->rates.copy : NAN;

	if (!firsts || !betweens)
		return -ENOMEM;
	results_row(results);
	results_count(results, "processes", "PROCESSES", clients->n);
	results_count(results, "in_flight", NULL, clients->in_flight);
	results_count(results, "requests", "REQUESTS", (uint64_t)n);
	results_count(results, "prefix", NULL, o->prefix);
	results_count(results, "prompt_tokens", "PROMPT TOKENS", clients_prompt_tokens(clients));
	results_count(results, "tokens", "TOKENS", clients_tokens(clients));
	results_seconds(results, "seconds", "TIME", seconds);
	results_number(results, "tokens_per_s", "TOKENS/S", clients_rate(clients));
	results_number(results, "requests_per_s", NULL, n / seconds);
	load_quantiles(results, first, titles[0], firsts);
	load_quantiles(results, between, titles[1], betweens);
	results_seconds(results, "floor_s", "FLOOR", least);
	results_number(results, "ratio", "RATIO", samples_quantile(betweens, 0.5) / least);
	results_count(results, "first_samples", NULL, firsts->n);
	results_count(results, "between_samples", NULL, betweens->n);
	load_counters(results, run, graphs);
	results_floor(results, floor ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
	return 0;
}

/* Subtracts what was counted before. */
static int load_eager(const struct target *target, uint64_t counts[N_EAGER_REASONS])
{
	struct answer *answer;
	char key[32];
	int rc = target_ask(target, "status", &answer);

	if (rc < 0)
		return rc;
	for (int i = EAGER_NO + 1; i < N_EAGER_REASONS; i++) {
		snprintf(key, sizeof(key), "eager_%s", eager_reason_name((enum eager_reason)i));
		counts[i] = answer_count(answer, 0, key, 0) - counts[i];
	}
	answer_free(answer);
	return 0;
}

static void load_ask_graphs(const struct target *target, struct load_graphs *ret)
{
	struct answer *answer;

	if (target_ask(target, "models", &answer) < 0)
		return;
	answer_text(answer, 0, "resolved", ret->resolved, sizeof(ret->resolved));
	answer_text(answer, 0, "reason", ret->reason, sizeof(ret->reason));
	ret->capture_seconds = answer_number(answer, 0, "capture_seconds");
	ret->n = answer_count(answer, 0, "graphs", 0);
	answer_free(answer);
}

static int load_run(
	const struct bench_options *options, const struct target *target, struct load_run *run)
{
	int rc = clients_warm_up(&run->clients, options, target);

	if (rc < 0)
		return rc;
	bool counting = target_metrics(target, metrics, N_METRICS, run->counters) == 0 &&
			load_eager(target, run->eager) == 0;
	rc = clients_run(&run->clients, options, target);
	run->counted = counting &&
		       target_metrics_since(target, metrics, N_METRICS, run->counters) == 0 &&
		       load_eager(target, run->eager) == 0;
	return rc;
}

static int load_serve(const struct bench_options *options, struct load_run *runs,
	struct load_graphs *graphs, struct results *results)
{
	uint32_t most = clients_most(options) * options->in_flight;
	struct target target;
	int rc = target_open(options,
		&(struct spawn_needs){
			.spin_us = options->spin_us,
			.graph_mode = options->graph_mode,
			.kv_pages = most * client_pages(options->prompt, options->tokens),
		},
		results, &target);

	if (rc == 0)
		load_ask_graphs(&target, graphs);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = load_run(options, &target, &runs[i]);
	target_close(&target); /* the floor may need its memory */
	return rc;
}

int bench_load(const struct bench_options *options, struct results *results)
{
	struct load_run runs[BENCH_LIST_MAX] = {0};
	struct load_graphs graphs = {.resolved = ""};
	struct model_floor floor = {0};
	int rc = 0;

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		rc = clients_init(
			&runs[i].clients, options, options->processes.at[i], options->requests);
		if (rc < 0)
			bench_fail(rc, "no memory");
		else
			load_draw(options, &runs[i].clients);
	}
	if (rc == 0)
		rc = load_serve(options, runs, &graphs, results);
	if (rc == 0 && options->model_dir)
		rc = model_floor(options, &floor);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = load_row(options, &runs[i], &graphs, options->model_dir ? &floor : NULL, results);
	for (uint32_t i = 0; i < options->processes.n; i++)
		clients_deinit(&runs[i].clients);
	results_explain(results, "prompts of %u to %u tokens, answers of %u to %u, %u requests in "
		"flight in each process, seed %u", options->prompt_least, options->prompt,
		options->tokens_least, options->tokens, options->in_flight, options->seed);
	return rc;
}
