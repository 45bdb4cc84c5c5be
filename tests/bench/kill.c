/* SPDX-License-Identifier: MIT */
/*
 * How soon what a client had is back when it is killed in the middle of a stream. The daemon is
 * asked without pause, so a time is as exact as one question and its answer.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"
#include "daemon/bench/spawn.h"
#include "tests/bench/stream.h"

#define TARGET_SECONDS 0.050
#define BACK_TIMEOUT_NS 10000000000ull
#define FLOOR "a process that only waits is killed, and a pipe that it held hangs up"

enum resource { PAGES, SLOTS, FDS, ALL, N_RESOURCES };

static const struct {
	const char *name, *key; /* of the daemon's status */
} resources[N_RESOURCES] = {
	{"pages back", "pages_free"},
	{"slots back", "slots_free"},
	{"file descriptors back", "open_fds"}, /* the one that grows with use */
	{"all of it back", "sessions"},
};

static int kill_floor_child(void *arg, int fd)
{
	if (write(fd, "", 1) != 1)
		return 1;
	for (;;)
		pause();
	return 0;
}

/* The end of the pipe is noticed before the process is reaped. */
static int kill_floor(struct samples *floor)
{
	CLEANUP(child_kill) struct child child = {0};
	struct pollfd hangup = {.events = POLLIN};
	int rc = child_start(&child, kill_floor_child, NULL);

	if (rc == 0)
		rc = child_next(&child, clock_ns() + BACK_TIMEOUT_NS);
	if (rc != 1)
		return rc < 0 ? rc : -ECHILD;
	hangup.fd = child.fd;
	uint64_t before = clock_ns();
	kill(child.pid, SIGKILL);
	if (poll(&hangup, 1, 1000) != 1)
		return -ETIMEDOUT;
	samples_add(floor, clock_ns() - before);
	return 0;
}

static int kill_look(const struct target *target, uint64_t ret[N_RESOURCES])
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;
	int rc = target_ask(target, "status", &answer);

	if (rc < 0)
		return bench_fail(rc, "%s: the status on the operators' socket: %s", target->socket,
			strerror(-rc));
	for (int i = 0; i < N_RESOURCES; i++)
		ret[i] = answer_count(answer, 0, resources[i].key, UINT64_MAX);
	return 0;
}

/* Ask until all is back. */
static int kill_await(const struct target *target, const uint64_t *before, uint64_t killed,
	struct samples *const *samples)
{
	bool back[N_RESOURCES] = {false};
	uint64_t now[N_RESOURCES];

	while (!back[ALL]) {
		int rc = kill_look(target, now);
		uint64_t time = clock_ns() - killed;

		if (rc < 0)
			return rc;
		if (time > BACK_TIMEOUT_NS)
			return bench_fail(
				-ETIMEDOUT, "the resources of a killed client did not come back");
		for (int i = 0; i < N_RESOURCES; i++) {
			bool is_back = i == ALL ? back[PAGES] && back[SLOTS] && back[FDS]
				       : i == FDS ? now[i] <= before[i]
						  : now[i] >= before[i];

			if (!back[i] && is_back)
				samples_add(samples[i], time);
			back[i] = back[i] || is_back;
		}
	}
	return 0;
}

static int kill_once(const struct target_work *work, struct samples *const *back)
{
	CLEANUP(child_kill) struct child child = {0};
	uint64_t before[N_RESOURCES], during[N_RESOURCES];
	int rc = kill_floor(back[N_RESOURCES]);

	if (rc < 0)
		return bench_fail(rc, "the floor: %s", strerror(-rc));
	rc = kill_look(work->target, before);
	if (rc == 0)
		rc = stream_start(&child, work->options, work->target);
	if (rc == 0)
		rc = kill_look(work->target, during);
	if (rc < 0)
		return rc;
	/* A client that has nothing would be back at once. */
	if (during[ALL] != before[ALL] + 1 || during[PAGES] >= before[PAGES] ||
		during[SLOTS] >= before[SLOTS])
		return bench_fail(-EBUSY, "other clients come and go: what belonged to the one that "
			"was killed cannot be determined");
	uint64_t killed = clock_ns();
	kill(child.pid, SIGKILL);
	return kill_await(work->target, before, killed, back);
}

static int kill_child(void *arg, int fd)
{
	const struct target_work *work = arg;
	struct samples *back[N_RESOURCES + 1]; /* the last one is the floor */

	if (samples_make(back, N_RESOURCES + 1, work->options->count) < 0)
		return bench_fail(1, "no memory");
	for (uint32_t i = 0; i < work->options->count; i++) {
		if (kill_once(work, back) < 0)
			return 1;
	}
	for (int i = 0; i < N_RESOURCES; i++) {
		results_row(work->results);
		results_text(work->results, "measure", "MEASURE", resources[i].name);
		results_samples(work->results, back[i], back[N_RESOURCES]);
		results_target(work->results, TABLE_SECONDS, samples_quantile(back[i], 0.5),
			TARGET_SECONDS, true);
		results_floor(work->results, FLOOR);
	}
	return 0;
}

int bench_kill(const struct bench_options *options, struct results *results)
{
	uint32_t kv_pages = 2 * client_pages(CLIENT_PROMPT_TOKENS, STREAM_TOKENS);

	return target_run(options, &(struct spawn_needs){.kv_pages = kv_pages}, results, "kill",
		kill_child, NULL);
}
