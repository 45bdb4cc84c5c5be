/* SPDX-License-Identifier: MIT */
/*
 * A mixed load: N processes that each keep several requests in flight, with prompt and output lengths drawn
 * at random from ranges. It measures the time to a request's first token and between its tokens. The floor of
 * the latter is the time to read the model's weights, because every token takes a step.
 */
#include "daemon/bench/users.h"

#include <stdio.h>

#include "daemon/bench/model_floor.h"
#include "daemon/bench/served.h"
#include "daemon/graph/mode.h"

#define FLOOR "of the time between tokens: reading each weight once at the bandwidth of a device copy"

static void load_quantiles(struct results *results, const char *const keys[3],
	const char *title, struct samples *samples)
{
	results_seconds(results, keys[0], title, samples_quantile(samples, 0.5));
	results_seconds(results, keys[1], "P90", samples_quantile(samples, 0.9));
	results_seconds(results, keys[2], "P99", samples_quantile(samples, 0.99));
}

/* Steps without a graph by reason: "mixed 12, too_wide 1", or "0". */
static void load_eager(struct results *results, const struct served *run)
{
	double sum = 0;
	size_t used = 0;
	char text[256] = "0";

	for (int i = EAGER_NO + 1; i < N_EAGER_REASONS; i++) {
		const char *reason = eager_reason_name((enum eager_reason)i);
		double n = served_count(run, "mimeo_eager_steps_total", reason);

		if (n > 0 && used < sizeof(text))
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %.0f",
				used ? ", " : "", reason, n);
		sum += n;
	}
	results_value(results, "eager_steps", NULL, TABLE_COUNT, sum);
	results_text(results, "eager", NULL, text);
}

/* In JSON alone. */
static void load_counters(struct results *results, const struct served *run)
{
	double steps = served_count(run, "mimeo_steps_total", NULL);
	double in = served_count(run, "mimeo_tokens_processed_total", NULL);
	double padded = served_count(run, "mimeo_padded_rows_total", NULL);
	char text[256];

	if (!isfinite(steps))
		return;
	results_value(results, "steps", NULL, TABLE_COUNT, steps);
	results_value(results, "tokens_taken_in", NULL, TABLE_COUNT, in);
	results_value(results, "cached_tokens", NULL, TABLE_COUNT,
		served_count(run, "mimeo_cached_tokens_total", NULL));
	results_seconds(results, "step_mean_s", NULL,
		served_count(run, "mimeo_lane_seconds_total", NULL) / steps);
	results_number(results, "padded_percent", NULL, 100 * padded / (padded + in));
	load_eager(results, run);
	if (!run->models)
		return;
	results_text(results, "graph_mode", NULL,
		answer_text(run->models, 0, "resolved", text, sizeof(text)));
	results_text(results, "graph_mode_reason", NULL,
		answer_text(run->models, 0, "reason", text, sizeof(text)));
	results_count(results, "graphs", NULL, answer_count(run->models, 0, "graphs", 0));
	results_seconds(
		results, "capture_s", NULL, answer_number(run->models, 0, "capture_seconds"));
}

/* floor_s: NAN, not measured. */
static void load_row(const struct bench_options *o, const struct served *run, double floor_s,
	struct results *results)
{
	static const char *const first[] = {"first_median_s", "first_p90_s", "first_p99_s"};
	static const char *const between[] = {"between_median_s", "between_p90_s", "between_p99_s"};
	const struct clients *clients = &run->clients;
	double seconds = (double)clients->ns * 1e-9, n = clients->n * (double)clients->n_requests;

	results_row(results);
	results_count(results, "processes", "PROCESSES", clients->n);
	results_count(results, "in_flight", NULL, clients->in_flight);
	results_count(results, "requests", "REQUESTS", (uint64_t)n);
	results_count(results, "prefix", NULL, o->prefix);
	results_count(results, "prompt_tokens", "PROMPT TOKENS", clients->n_prompt_tokens);
	results_count(results, "tokens", "TOKENS", clients->n_tokens);
	results_seconds(results, "seconds", "TIME", seconds);
	results_number(results, "tokens_per_s", "TOKENS/S", clients_rate(clients));
	results_number(results, "requests_per_s", NULL, n / seconds);
	load_quantiles(results, first, "FIRST TOKEN", clients->first);
	load_quantiles(results, between, "BETWEEN", clients->between);
	results_seconds(results, "floor_s", "FLOOR", floor_s);
	results_number(results, "ratio", "RATIO", samples_quantile(clients->between, 0.5) / floor_s);
	results_count(results, "first_samples", NULL, clients->first->n);
	results_count(results, "between_samples", NULL, clients->between->n);
	load_counters(results, run);
	results_floor(results, isfinite(floor_s) ? FLOOR : RESULTS_NO_FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
}

int bench_load(const struct bench_options *options, struct results *results)
{
	struct served runs[BENCH_LIST_MAX] = {0};
	struct model_floor floor;
	double floor_s = NAN;
	int rc = served_measure(options, NULL, results, runs);

	if (rc == 0 && options->model_dir) {
		rc = model_floor(options, &floor);
		floor_s = (double)floor.weight_bytes / floor.copy_rate;
	}
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		load_row(options, &runs[i], floor_s, results);
	served_free(options, runs);
	results_explain(results, "prompts of %u to %u tokens, answers of %u to %u, %u requests in "
		"flight in each process, seed %u", options->prompt_least, options->prompt,
		options->tokens_least, options->tokens, options->in_flight, options->seed);
	return rc;
}
