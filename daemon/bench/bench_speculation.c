/* SPDX-License-Identifier: MIT */
/*
 * The gain and the cost of a draft model: the same processes and prompts with a daemon without it and with
 * one that has it; and the step times of both, whose ratio is the number of tokens that a verification must
 * yield for the draft model to pay. The floor of a step is the time in which the device copies the bytes that
 * the step must read, including those of the draft passes.
 */
#include "daemon/bench/users.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/bench/model_floor.h"
#include "daemon/bench/served.h"
#include "daemon/graph/speculator.h"

#define FLOOR                                                                                      \
	"of a step: reading each weight and each row's keys and values once, and the draft model's " \
	"in each of its passes, at the bandwidth of a device copy"

static double speculation_count(const struct served *run, const char *name)
{
	return served_count(run, name, NULL);
}

/* Mean time of a step, including draft passes. */
static double speculation_step(const struct served *run)
{
	return speculation_count(run, "mimeo_lane_seconds_total") / speculation_count(run, "mimeo_steps_total");
}

/* How often the draft token of each position was accepted. */
static void speculation_acceptance(
	struct results *results, const struct served *run, uint32_t n_drafts)
{
	char text[SPECULATE_MAX * sizeof("0.00 ")] = "";
	size_t used = 0;

	for (uint32_t i = 0; i < n_drafts; i++) {
		const char position[] = {(char)('1' + i), '\0'};
		double offered = served_count(run, "mimeo_drafts_offered_total", position);
		double accepted = served_count(run, "mimeo_drafts_accepted_total", position);

		if (offered > 0)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.2f",
				i ? " " : "", fmin(1, accepted / offered));
	}
	results_text(results, "acceptance", "ACCEPTANCE", n_drafts ? text : NULL);
}

/* n_drafts: 0, without the draft model. */
static void speculation_row(const struct bench_options *o, const struct served *run,
	const struct served *without, uint32_t n_drafts, const struct model_floor *floors,
	struct results *results)
{
	const struct clients *clients = &run->clients;
	double step = speculation_step(run), drafts = n_drafts ? 1 : NAN;
	double floor = model_floor_seconds(floors, n_drafts, clients->n, o->prompt + o->tokens / 2);
	double steps = speculation_count(run, "mimeo_steps_total");
	double gap = speculation_count(run, "mimeo_lane_gap_seconds_total");
	double work = speculation_count(run, "mimeo_engine_work_seconds_total");
	double time = speculation_count(run, "mimeo_lane_seconds_total") + gap;
	double rows = drafts * speculation_count(run, "mimeo_verified_rows_total");
	double tokens = drafts * speculation_count(run, "mimeo_verified_tokens_total");
	double rate = clients_steady_rate(clients);

	results_row(results);
	results_text(results, "draft", NULL, n_drafts ? o->draft : NULL);
	results_count(results, "processes", "PROCESSES", clients->n);
	results_count(results, "draft_tokens", "DRAFT TOKENS", n_drafts);
	results_count(results, "prompt", NULL, o->prompt);
	results_count(results, "tokens", NULL, clients->n_tokens);
	results_number(results, "tokens_per_s", "TOKENS/S", rate);
	results_number(
		results, "against_none", "X NONE", rate / clients_steady_rate(&without->clients));
	results_value(results, "steps", "STEPS", TABLE_COUNT, steps);
	results_seconds(results, "step_mean_s", "STEP", step);
	results_seconds(results, "draft_mean_s", "DRAFT",
		drafts * speculation_count(run, "mimeo_draft_seconds_total") /
			speculation_count(run, "mimeo_draft_steps_total"));
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", step / floor);
	results_number(results, "break_even", "BREAK-EVEN", drafts * step / speculation_step(without));
	results_number(results, "tokens_per_verification", "PER VERIFICATION", tokens / rows);
	speculation_acceptance(results, run, n_drafts);
	results_seconds(results, "gap_mean_s", "GAP",
		gap / speculation_count(run, "mimeo_lane_gaps_total"));
	results_number(results, "idle_percent", "IDLE, %", 100 * gap / time);
	results_seconds(results, "engine_s", "ENGINE", work / steps);
	results_number(
		results, "engine_idle_percent", "ENGINE IDLE, %", fmax(0, 100 - 100 * work / time));
	results_value(results, "verified_rows", NULL, TABLE_COUNT, rows);
	results_value(results, "verified_tokens", NULL, TABLE_COUNT, tokens);
	results_number(results, "copy_bytes_per_s", NULL, floors->copy_rate);
	results_floor(results, FLOOR);
	results_note(results, results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
}

int bench_speculation(const struct bench_options *options, struct results *results)
{
	struct served without[BENCH_LIST_MAX] = {0}, with[BENCH_LIST_MAX] = {0};
	struct model_floor floors;
	int rc = served_measure(options, NULL, results, without);

	if (rc == 0)
		rc = served_measure(options, options->draft, results, with);
	if (rc == 0)
		rc = model_floor(options, &floors);
	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++) {
		speculation_row(options, &without[i], &without[i], 0, &floors, results);
		speculation_row(
			options, &with[i], &without[i], options->draft_tokens, &floors, results);
	}
	served_free(options, with);
	served_free(options, without);
	results_explain(results, "step: mean time on the device, including draft passes and prompts; "
		"break-even: step time divided by that without the draft model, which is how many tokens "
		"a verification must yield to pay");
	results_explain(results, "idle: of the device, between steps; engine: the working time of its "
		"thread per step, and its idle time");
	if (options->shape)
		results_explain(results, "note: weights are random, so draft tokens are not accepted and "
			"the rows show only their cost");
	return rc;
}
