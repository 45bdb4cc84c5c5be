/* SPDX-License-Identifier: MIT */
/*
 * What one more process costs: from mimeo_connect to the session, to its first token, and to its
 * second, which is the first of a decode and comes out of a captured graph.
 */
#include "daemon/bench/users.h"

#include <errno.h>
#include <string.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/floors.h"
#include "daemon/bench/spawn.h"

#define TARGET_SECONDS 0.010
#define REGION_BYTES (8ull << 20) /* the default arena; the rings are small beside it */
#define FLOOR                                                                                      \
	"connecting to a Unix socket, receiving a memfd of the same size, mapping and touching it"

enum leg { SESSION, FIRST, SECOND, N_LEGS };

static const char *const names[N_LEGS] = {
	"connect and handshake", "to the first token", "to the first decoded token"};

struct attach_work {
	const struct bench_options *options;
	struct results *results;
	const char *socket;
};

static int attach_once(const struct attach_work *work, struct samples *const *legs)
{
	const struct client_prompt prompt = {.model = work->options->model_name,
		.n_prompt = CLIENT_PROMPT_TOKENS,
		.n_tokens = 2};
	struct mimeo_event event;
	struct mimeo *m;
	uint32_t n_tokens = 0;
	uint64_t start = clock_ns();

	int rc = client_connect(&m, work->socket, MIMEO_SPIN_DEFAULT);
	if (rc < 0)
		return rc;
	samples_add(legs[SESSION], clock_ns() - start);
	rc = client_generate(m, &prompt);
	while (rc == 0 && n_tokens < 2) {
		rc = client_next(m, &event);
		if (rc < 0)
			break;
		uint64_t now = clock_ns();
		if (n_tokens == 0 && event.n_generated > 0)
			samples_add(legs[FIRST], now - start);
		n_tokens = event.n_generated;
		if (n_tokens == 2)
			samples_add(legs[SECOND], now - start);
		mimeo_event_seen(m, &event);
	}
	mimeo_close(m);
	return rc;
}

static void attach_rows(struct results *results, struct samples *const *legs)
{
	for (uint32_t i = 0; i < N_LEGS; i++) {
		results_row(results);
		results_text(results, "measure", "MEASURE", names[i]);
		results_samples(results, legs[i], legs[N_LEGS]);
		if (i != SESSION)
			results_target_seconds(
				results, samples_quantile(legs[i], 0.5), TARGET_SECONDS, true);
		results_floor(results, FLOOR);
	}
}

static int attach_child(void *arg, int fd)
{
	const struct attach_work *work = arg;
	uint32_t count = work->options->count;
	struct samples *legs[N_LEGS + 1]; /* the last one is the floor */
	CLEANUP(floor_attach_stop) struct floor_attach floor;
	int rc = floor_attach_start(&floor, REGION_BYTES);

	if (samples_make(legs, N_LEGS + 1, count) < 0)
		return bench_fail(1, "no memory");
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		rc = floor_attach_once(&floor, legs[N_LEGS]);
		if (rc == 0 && attach_once(work, legs) < 0)
			return 1; /* it has said why */
	}
	if (rc < 0)
		return bench_fail(1, "the floor: %s", strerror(-rc));
	attach_rows(work->results, legs);
	return 0;
}

int bench_attach(const struct bench_options *options, struct results *results)
{
	struct attach_work work = {options, results, NULL};
	struct target target;
	int rc = target_open(options, &(struct spawn_needs){.kv_pages = 64}, results, &target);

	work.socket = target.socket;
	if (rc == 0)
		rc = child_run("attach", attach_child, &work, options->timeout_s);
	target_close(&target);
	return rc;
}
