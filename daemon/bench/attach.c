/* SPDX-License-Identifier: MIT */
/*
 * What one more process costs: from mimeo_connect to the session, to its first token, and to its
 * second, which is the first of a decode, and comes out of a captured graph.
 */
#include "daemon/bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/client.h"
#include "daemon/bench/floors.h"
#include "daemon/bench/report.h"

#define DEFAULT_COUNT 50u
#define TARGET_SECONDS 0.010
#define REGION_BYTES (8ull << 20) /* the default arena; the rings are small beside it */
#define FLOOR                                                                                      \
	"connecting to a Unix socket, receiving a memfd of the same size, mapping and touching it"

struct attach_work {
	const char *socket, *model_name;
	uint32_t count;
	struct samples *session, *first, *second, *floor;
};

static int attach_once(const struct attach_work *work)
{
	struct mimeo_event event;
	struct mimeo *m;
	uint32_t n_tokens = 0;
	uint64_t start = stats_now();

	int r = client_connect(&m, work->socket, MIMEO_SPIN_DEFAULT);
	if (r < 0)
		return r;
	samples_add(work->session, stats_now() - start);
	r = client_generate(m, work->model_name, CLIENT_PROMPT_TOKENS, 2);
	while (r == 0 && n_tokens < 2) {
		r = client_next(m, &event);
		if (r < 0)
			break;
		uint64_t now = stats_now();
		if (n_tokens == 0 && event.n_generated > 0)
			samples_add(work->first, now - start);
		n_tokens = event.n_generated;
		if (n_tokens == 2)
			samples_add(work->second, now - start);
		mimeo_event_seen(m, &event);
	}
	mimeo_close(m);
	return r;
}

static int work_attaches(void *arg, int fd)
{
	const struct attach_work *work = arg;
	struct floor_attach floor = {0};
	int r = floor_attach_start(&floor, REGION_BYTES);

	(void)fd;
	for (uint32_t i = 0; i < work->count && r == 0; i++) {
		r = floor_attach_once(&floor, REGION_BYTES, work->floor);
		if (r == 0 && attach_once(work) < 0)
			r = -ECANCELED; /* it has told why */
	}
	floor_attach_stop(&floor);
	if (r < 0 && r != -ECANCELED)
		fprintf(stderr, "mimeo-bench: the floor: %s\n", strerror(-r));
	return r < 0;
}

static int run(const struct bench_options *options, struct attach_work *work)
{
	struct report report = {.bench = "attach", .json = options->json};
	struct target target;
	struct measure measure = {
		.result = work->session, .floor = work->floor, .floor_name = FLOOR};
	int r = target_open(options, &(struct spawn_needs){.kv_pages = 64}, &target);

	work->socket = target.socket;
	if (r == 0)
		r = child_run("attach", work_attaches, work, options->timeout_s);
	target_close(&target);
	if (r < 0)
		return r;
	measure.name = "connect and handshake";
	report_add(&report, &measure);
	measure.target_seconds = TARGET_SECONDS;
	measure.name = "to the first token";
	measure.result = work->first;
	report_add(&report, &measure);
	measure.name = "to the first decoded token";
	measure.result = work->second;
	report_add(&report, &measure);
	return report_print(&report, &target);
}

int bench_attach(const struct bench_options *options)
{
	uint32_t count = options->count ? options->count : DEFAULT_COUNT;
	struct attach_work work = {
		.model_name = options->model_name,
		.count = count,
		.session = samples_new(count),
		.first = samples_new(count),
		.second = samples_new(count),
		.floor = samples_new(count),
	};
	int r = -ENOMEM;

	if (work.session && work.first && work.second && work.floor)
		r = run(options, &work);
	samples_free(work.floor);
	samples_free(work.second);
	samples_free(work.first);
	samples_free(work.session);
	return r;
}
