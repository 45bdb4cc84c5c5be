/* SPDX-License-Identifier: MIT */
/*
 * Two users of weights 1 and 3 on one daemon; the user of weight 1 floods it with long prompts.
 *
 * LATENCY: processes of the other user with one request in flight each are measured alone, which is the floor, and
 * beside the flood. SHARES: then the other user has more requests than there are slots, too, and the tokens that the
 * daemon computes for both are counted. The daemon divides slots and pages by weight until one user has computed
 * SHARE_LEAD steps more than the other, by weight, and the tokens from then on: they are counted from then on.
 */
#include "daemon/bench/users.h"

#include <errno.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/clients.h"
#include "daemon/bench/spawn.h"
#include "daemon/engine/requests/share.h"

#define LIGHT_UID 60001u
#define HEAVY_UID 60003u
#define WEIGHTS "60001:1,60003:3"
#define FLOOD_TOKENS 16u
#define SLOTS_LEAST 4u /* that 1 and 3 can divide */
#define SETTLE 0.2       /* of the time in which tokens are counted: between two looks before that time */
#define SETTLE_MOST 0.33 /* of --timeout, which ends the flood */
#define LEAD_PART 0.8    /* of SHARE_LEAD steps; what has started counts for the daemon, and not here */
#define LEAD_MORE 0.5    /* of the time until then: until the daemon acts on it */

#define TARGET_TOKENS 3.0
#define TOLERANCE 0.05
#define TARGET_P99 1.5
#define TARGET "tokens 1:3 +-5 %, P99 <= 1.5 x alone"
#define FLOOR "the time of a token of the same requests without the other user"
#define FEW_CPUS                                                                                   \
	"there are fewer CPUs than processes of both users and daemon threads: the targets are not judged"

struct fair {
	struct clients flood;  /* of the user of weight 1 */
	struct clients steady; /* of the user of weight 3: a request in flight in each process */
	struct clients busy;   /* of the same: more requests than there is room for */
	double alone_s, alone_p99_s, beside_s, beside_p99_s;
	uint64_t light, heavy; /* tokens computed */
	double seconds, settled_s;
	double lead; /* in tokens, by weight: what settles */
};

/* The options of each load. */
struct fair_loads {
	struct bench_options flood, steady, busy;
};

static struct fair_loads fair_loads(const struct bench_options *options)
{
	struct fair_loads ret = {.flood = *options, .steady = *options, .busy = *options};

	ret.flood.prompt = options->flood;
	ret.flood.prompt_least = options->flood_least;
	ret.flood.tokens = ret.flood.tokens_least = FLOOD_TOKENS;
	ret.steady.prompt = ret.steady.prompt_least = CLIENT_PROMPT_TOKENS;
	ret.steady.tokens_least = options->tokens;
	ret.steady.in_flight = 1;
	return ret;
}

/* Half of what each user has in flight. */
static uint32_t fair_slots(const struct bench_options *options)
{
	uint32_t ret = UINT32_MAX;

	for (uint32_t i = 0; i < options->processes.n; i++) {
		uint32_t n = options->processes.at[i] * options->in_flight / 2;

		ret = n < ret ? n : ret;
	}
	return ret > SLOTS_LEAST ? ret : SLOTS_LEAST;
}

/* What one user may have more than the other before the daemon acts on it. */
static int fair_ask_lead(const struct target *target, double *ret)
{
	struct mimeo *m;
	int rc = client_connect(&m, target->socket, 0);

	if (rc < 0)
		return rc;
	*ret = LEAD_PART * SHARE_LEAD * mimeo_model_get(m, 0)->max_batch_tokens;
	mimeo_close(m);
	return 0;
}

static int fair_init(struct fair *fair, const struct fair_loads *loads, uint32_t n)
{
	int rc = clients_init(&fair->flood, &loads->flood, n);

	if (rc == 0)
		rc = clients_init(&fair->steady, &loads->steady, n);
	if (rc == 0)
		rc = clients_init(&fair->busy, &loads->busy, n);
	fair->flood.endless = fair->busy.endless = true;
	fair->flood.uid = LIGHT_UID;
	fair->steady.uid = fair->busy.uid = HEAVY_UID;
	return rc < 0 ? bench_fail(rc, "no memory") : 0;
}

static void fair_deinit(struct fair *fair)
{
	clients_stop(&fair->busy);
	clients_stop(&fair->flood);
	clients_deinit(&fair->busy);
	clients_deinit(&fair->steady);
	clients_deinit(&fair->flood);
}

/* ---- latency ---- */

static int fair_steady(struct fair *fair, const struct fair_loads *loads, const struct target *target,
	double *ret_median, double *ret_p99)
{
	clients_clear(&fair->steady);
	fair->steady.round++;
	int rc = clients_run(&fair->steady, &loads->steady, target);
	if (rc < 0)
		return rc;
	*ret_median = samples_quantile(fair->steady.between, 0.5);
	*ret_p99 = samples_quantile(fair->steady.between, 0.99);
	return 0;
}

/* The flood goes on afterwards. */
static int fair_latency(struct fair *fair, const struct fair_loads *loads, const struct target *target)
{
	/* A daemon that has just started is slower. */
	int rc = clients_run(&fair->steady, &loads->steady, target);

	if (rc < 0)
		return rc;
	rc = fair_steady(fair, loads, target, &fair->alone_s, &fair->alone_p99_s);
	if (rc < 0)
		return rc;
	rc = clients_start(&fair->flood, &loads->flood, target);
	if (rc < 0)
		return rc;
	rc = clients_let(&fair->flood, SETTLE * loads->flood.seconds);
	if (rc < 0)
		return rc;
	return fair_steady(fair, loads, target, &fair->beside_s, &fair->beside_p99_s);
}

/* ---- shares ---- */

/* Tokens that were computed for the sessions of both users; the user's own counters of prompts include what the
 * prefix cache had. */
static int fair_ask(const struct target *target, uint64_t *ret_light, uint64_t *ret_heavy)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;
	uint64_t light = 0, heavy = 0;
	int rc = target_ask(target, "sessions", &answer);

	if (rc < 0)
		return bench_fail(rc, "sessions of the daemon: %s", strerror(-rc));
	for (size_t row = 0; row < answer->n_rows; row++) {
		uint64_t n = answer_count(answer, row, "prompt_tokens", 0) -
			     answer_count(answer, row, "cached_tokens", 0) + answer_count(answer, row, "tokens", 0);

		*(answer_count(answer, row, "uid", 0) == LIGHT_UID ? &light : &heavy) += n;
	}
	*ret_light = light;
	*ret_heavy = heavy;
	return 0;
}

/* How far one of the users is ahead of the other, in tokens of weight 1. */
static double fair_lead(uint64_t light, uint64_t heavy)
{
	return fabs((double)light - (double)heavy / TARGET_TOKENS);
}

/* Until one user has the lead that the daemon allows. Without one, where the slots alone divide the tokens by weight,
 * that does not come. */
static int fair_settle(struct fair *fair, const struct target *target, const struct bench_options *options)
{
	uint64_t light, heavy, light_now, heavy_now, start = clock_ns();
	double passed = 0;
	int rc = fair_ask(target, &light, &heavy);

	if (rc < 0)
		return rc;
	do {
		rc = clients_let(&fair->busy, SETTLE * options->seconds);
		if (rc < 0)
			return rc;
		rc = fair_ask(target, &light_now, &heavy_now);
		if (rc < 0)
			return rc;
		passed = (double)(clock_ns() - start) * 1e-9;
	} while (fair_lead(light_now - light, heavy_now - heavy) < fair->lead && passed < SETTLE_MOST * options->timeout_s);
	fair->settled_s = (1 + LEAD_MORE) * passed;
	return clients_let(&fair->busy, LEAD_MORE * passed);
}

static int fair_shares(struct fair *fair, const struct fair_loads *loads, const struct target *target)
{
	uint64_t light, heavy;
	double seconds = loads->busy.seconds;
	int rc = clients_start(&fair->busy, &loads->busy, target);

	if (rc < 0)
		return rc;
	rc = fair_settle(fair, target, &loads->busy);
	if (rc < 0)
		return rc;
	rc = fair_ask(target, &light, &heavy);
	if (rc < 0)
		return rc;
	uint64_t start = clock_ns();
	rc = clients_let(&fair->busy, seconds);
	if (rc < 0)
		return rc;
	rc = fair_ask(target, &fair->light, &fair->heavy);
	if (rc < 0)
		return rc;
	fair->seconds = (double)(clock_ns() - start) * 1e-9;
	fair->light -= light;
	fair->heavy -= heavy;
	return clients_let(&fair->flood, 0); /* it has not failed */
}

/* ---- results ---- */

static void fair_row(const struct bench_options *options, const struct fair *fair, struct results *results)
{
	double ratio = fair->light ? (double)fair->heavy / (double)fair->light : NAN;
	double p99 = fair->beside_p99_s / fair->alone_p99_s;
	bool fit = results_n_cpus() >= 2 * fair->flood.n + 2;
	bool met = fabs(ratio / TARGET_TOKENS - 1) <= TOLERANCE && p99 <= TARGET_P99;

	results_row(results);
	results_count(results, "processes", "PROCESSES", fair->flood.n);
	results_count(results, "in_flight", NULL, options->in_flight);
	results_count(results, "slots", "SLOTS", fair_slots(options));
	results_count(results, "light_tokens", NULL, fair->light);
	results_count(results, "heavy_tokens", NULL, fair->heavy);
	results_seconds(results, "settled_s", NULL, fair->settled_s);
	results_seconds(results, "counted_s", NULL, fair->seconds);
	results_number(results, "light_tokens_per_s", "WEIGHT 1", (double)fair->light / fair->seconds);
	results_number(results, "heavy_tokens_per_s", "WEIGHT 3", (double)fair->heavy / fair->seconds);
	results_number(results, "tokens_ratio", "3:1", ratio);
	results_seconds(results, "alone_median_s", NULL, fair->alone_s);
	results_seconds(results, "beside_median_s", NULL, fair->beside_s);
	results_seconds(results, "beside_p99_s", "P99", fair->beside_p99_s);
	results_seconds(results, "alone_p99_s", "FLOOR", fair->alone_p99_s);
	results_number(results, "ratio", "RATIO", p99);
	results_count(results, "samples", NULL, fair->steady.between->n);
	results_text(results, "met", "MET", fit ? (met ? "yes" : "no") : NULL);
	results_text(results, "target", NULL, TARGET);
	results_number(results, "target_tokens_ratio", NULL, TARGET_TOKENS);
	results_number(results, "target_ratio", NULL, TARGET_P99);
	results_text(results, "token_us", NULL, options->token_us);
	results_floor(results, FLOOR);
	results_note(results, !fit ? FEW_CPUS : results_on_cpu(results) ? RESULTS_ON_CPU : NULL);
}

static int fair_measure(const struct bench_options *options, const struct fair_loads *loads,
	const struct target *target, uint32_t n, struct results *results)
{
	CLEANUP(fair_deinit) struct fair fair = {0};
	int rc = fair_init(&fair, loads, n);

	if (rc == 0)
		rc = fair_ask_lead(target, &fair.lead);
	if (rc == 0)
		rc = fair_latency(&fair, loads, target);
	if (rc == 0)
		rc = fair_shares(&fair, loads, target);
	if (rc == 0)
		fair_row(options, &fair, results);
	return rc;
}

int bench_fair(const struct bench_options *options, struct results *results)
{
	CLEANUP(target_close) struct target target = {.admin = -1};
	struct fair_loads loads = fair_loads(options);
	uint32_t slots = fair_slots(options);

	if (geteuid() != 0)
		return bench_fail(-EPERM, "two users cannot be measured: only root can start clients with uids %u and %u",
			LIGHT_UID, HEAVY_UID);
	int rc = target_open(options,
		&(struct spawn_needs){
			.spin_us = options->spin_us,
			.token_us = options->token_us,
			.weights = WEIGHTS,
			.max_requests = slots,
			.kv_pages = slots * client_pages(options->prompt > options->flood ? options->prompt : options->flood,
						    options->tokens > FLOOD_TOKENS ? options->tokens : FLOOD_TOKENS),
		},
		results, &target);

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = fair_measure(options, &loads, &target, options->processes.at[i], results);
	results_explain(results, "targets: tokens of weight 3 are %g times those of weight 1, within %g %%; P99 of the time "
		"of a token beside the flood <= %g of that alone", TARGET_TOKENS, 100 * TOLERANCE, TARGET_P99);
	results_explain(results, "prompts of the flood of %u to %u tokens, seed %u", options->flood_least, options->flood,
		options->seed);
	return rc;
}
