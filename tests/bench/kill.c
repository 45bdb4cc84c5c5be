/* SPDX-License-Identifier: MIT */
/*
 * How soon what a client had is back when it is killed in the middle of a stream. The daemon is
 * asked without pause, so a time is as exact as one question and its answer.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/client.h"
#include "daemon/bench/floors.h"
#include "daemon/bench/report.h"

#define DEFAULT_COUNT 30u
#define TARGET_SECONDS 0.050
#define VICTIM_TOKENS 1500u
#define KILLED_AT 4u /* tokens */
#define BACK_TIMEOUT_NS 10000000000ull
#define FLOOR "a process that only waits is killed, and a socket that it held hangs up"

enum resource { PAGES, SLOTS, FDS, N_RESOURCES };

static const struct {
	const char *name, *key;
} resources[N_RESOURCES] = {
	{"pages back", "pages_free"},
	{"slots back", "slots_free"},
	{"file descriptors back", "open_fds"}, /* the one that grows with use */
};

struct counts {
	uint64_t of[N_RESOURCES];
	uint64_t sessions;
};

struct kill_work {
	const struct bench_options *options;
	const struct target *target;
	struct samples *back[N_RESOURCES + 1]; /* the last: all of them */
	struct samples *floor;
};

static int look(const struct target *target, struct counts *ret)
{
	struct answer *answer;
	int r = target_ask(target, "status", &answer);

	if (r < 0) {
		fprintf(stderr, "mimeo-bench: %s: asking for the status: %s\n", target->socket,
			strerror(-r));
		return r;
	}
	for (int i = 0; i < N_RESOURCES; i++)
		ret->of[i] = answer_count(answer, 0, resources[i].key, UINT64_MAX);
	ret->sessions = answer_count(answer, 0, "sessions", UINT64_MAX);
	answer_free(answer);
	return 0;
}

/* Streams until it is killed; says so once it is in the middle. */
static int victim(void *arg, int fd)
{
	const struct kill_work *work = arg;
	struct mimeo_event event;
	struct mimeo *m;
	bool told = false;

	if (client_connect(&m, work->target->socket, MIMEO_SPIN_DEFAULT) < 0 ||
		client_generate(
			m, work->options->model_name, CLIENT_PROMPT_TOKENS, VICTIM_TOKENS) < 0)
		return 1;
	while (client_next(m, &event) == 0) {
		if (!told && event.n_generated >= KILLED_AT)
			told = write(fd, "", 1) == 1;
		if (event.kind == MIMEO_EVENT_FINAL)
			break;
		mimeo_event_seen(m, &event);
	}
	fprintf(stderr, "mimeo-bench: the stream ended before its client was killed\n");
	return 1;
}

static bool is_back(int resource, const struct counts *before, const struct counts *now)
{
	if (resource == FDS)
		return now->of[FDS] <= before->of[FDS];
	return now->of[resource] >= before->of[resource];
}

/* Ask until all is back. */
static int await_back(struct kill_work *work, const struct counts *before, uint64_t killed)
{
	bool back[N_RESOURCES] = {false};
	unsigned n_back = 0;
	struct counts now;

	while (n_back < N_RESOURCES) {
		int r = look(work->target, &now);
		uint64_t time = stats_now();

		if (r < 0)
			return r;
		for (int i = 0; i < N_RESOURCES; i++) {
			if (back[i] || !is_back(i, before, &now))
				continue;
			back[i] = true;
			n_back++;
			samples_add(work->back[i], time - killed);
			if (n_back == N_RESOURCES)
				samples_add(work->back[N_RESOURCES], time - killed);
		}
		if (time - killed > BACK_TIMEOUT_NS)
			return -ETIMEDOUT;
	}
	return 0;
}

static int kill_once(struct kill_work *work)
{
	struct child child = {0};
	struct counts before, during;
	int r = look(work->target, &before);

	if (r == 0)
		r = child_start(&child, victim, work);
	if (r == 0)
		r = child_next(&child, stats_now() + work->options->timeout_s * 1000000000ull);
	if (r != 1) {
		child_kill(&child);
		return r == 0 ? -ECHILD : r;
	}
	r = look(work->target, &during);
	/* A victim that held nothing would be given back at once. */
	if (r == 0 &&
		(during.sessions != before.sessions + 1 || during.of[PAGES] >= before.of[PAGES] ||
			during.of[SLOTS] >= before.of[SLOTS])) {
		fprintf(stderr, "mimeo-bench: other clients come and go: "
				"what belonged to the one that was killed cannot be told\n");
		r = -EBUSY;
	}
	if (r == 0) {
		uint64_t killed = stats_now();

		kill(child.pid, SIGKILL);
		r = await_back(work, &before, killed);
	}
	child_kill(&child);
	return r;
}

static int work_kills(struct kill_work *work, uint32_t count)
{
	int r = 0;

	for (uint32_t i = 0; i < count && r == 0; i++) {
		r = floor_death(work->floor);
		if (r == 0)
			r = kill_once(work);
	}
	if (r == -ETIMEDOUT)
		fprintf(stderr, "mimeo-bench: what a killed client had did not come back\n");
	else if (r < 0 && r != -EINTR && r != -EBUSY)
		fprintf(stderr, "mimeo-bench: kill: %s\n", strerror(-r));
	return r;
}

static int run(struct kill_work *work, uint32_t count)
{
	const struct bench_options *options = work->options;
	struct report report = {.bench = "kill", .json = options->json};
	struct measure measure = {
		.floor = work->floor, .floor_name = FLOOR, .target_seconds = TARGET_SECONDS};
	struct target target;

	int r = target_open(options,
		&(struct spawn_needs){
			.kv_pages = 2 * client_pages(CLIENT_PROMPT_TOKENS, VICTIM_TOKENS)},
		&target);
	work->target = &target;
	if (r == 0 && target.admin < 0) {
		fprintf(stderr, "mimeo-bench: %s: the admin socket is needed and does not answer\n",
			target.socket);
		r = -EACCES;
	}
	if (r == 0)
		r = work_kills(work, count);
	target_close(&target);
	if (r < 0)
		return r;
	for (int i = 0; i <= N_RESOURCES; i++) {
		measure.name = i < N_RESOURCES ? resources[i].name : "all of it back";
		measure.result = work->back[i];
		report_add(&report, &measure);
	}
	return report_print(&report, &target);
}

int bench_kill(const struct bench_options *options)
{
	uint32_t count = options->count ? options->count : DEFAULT_COUNT;
	struct kill_work work = {.options = options, .floor = samples_new(count)};
	bool ok = work.floor;

	for (int i = 0; i <= N_RESOURCES; i++) {
		work.back[i] = samples_new(count);
		ok = ok && work.back[i];
	}
	int r = ok ? run(&work, count) : -ENOMEM;
	for (int i = 0; i <= N_RESOURCES; i++)
		samples_free(work.back[i]);
	samples_free(work.floor);
	return r;
}
