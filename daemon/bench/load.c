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

#include "daemon/bench/client.h"
#include "daemon/bench/clients.h"
#include "daemon/bench/model_floor.h"

#define FLOOR "of the time between tokens: reading each weight once at the bandwidth of a device copy"

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

static int load_row(const struct bench_options *o, const struct clients *clients,
	const struct model_floor *floor, struct results *results)
{
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
	results_floor(results, floor ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
	return 0;
}

static int load_serve(const struct bench_options *options, struct clients *all,
	struct results *results)
{
	uint32_t most = clients_most(options) * options->in_flight;
	struct target target;
	int rc = target_open(options,
		&(struct spawn_needs){
			.spin_us = options->spin_us,
			.kv_pages = most * client_pages(options->prompt, options->tokens),
		},
		&target);

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = clients_warm_up(&all[i], options, &target);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = clients_run(&all[i], options, &target);
	target_machine(&target, results);
	target_close(&target); /* the floor may need its memory */
	return rc;
}

int bench_load(const struct bench_options *options, struct results *results)
{
	struct clients all[BENCH_LIST_MAX] = {0};
	struct model_floor floor = {0};
	int rc = 0;

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		rc = clients_init(&all[i], options, options->processes.at[i], options->requests);
		if (rc < 0)
			bench_fail(rc, "no memory");
		else
			load_draw(options, &all[i]);
	}
	if (rc == 0)
		rc = load_serve(options, all, results);
	if (rc == 0 && options->model_dir)
		rc = model_floor(options, &floor);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = load_row(options, &all[i], options->model_dir ? &floor : NULL, results);
	for (uint32_t i = 0; i < options->processes.n; i++)
		clients_deinit(&all[i]);
	results_explain(results, "prompts of %u to %u tokens, answers of %u to %u, %u requests in "
		"flight in each process, seed %u", options->prompt_least, options->prompt,
		options->tokens_least, options->tokens, options->in_flight, options->seed);
	return rc;
}
