/* SPDX-License-Identifier: MIT */
/*
 * What closing memory costs others. Two clients generate without end, so that the lane does not run
 * empty between two requests: what waits for an empty lane would run there and cost no client
 * anything. In ROUNDS by turns a third one closes buffers, or does not, and the daemon says how long
 * its lane was idle between steps that generate.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "daemon/engine/builder.h"
#include "tests/bench/stream.h"

#define CLOSED 4u /* buffers in a round */
#define CLOSED_BYTES (2ull << 20)
#define ROUNDS 5u /* of each closing */
#define SHORT_ROUND_MS 300u
#define LONG_ROUND_MS (BUILDER_CLOSE_LIMIT_MS + 500u) /* to see memory given back */
#define SETTLE_MS 20u
#define FLOW_NS 20000000000ull /* for a gap to come at all */
#define FLOOR "of idle time: that of a round in which nothing is closed"

enum closing { NOTHING, DESCRIPTORS, HANDLES, N_CLOSINGS };

static const char *const names[N_CLOSINGS] = {
	[DESCRIPTORS] = "idle time, descriptors closed", [HANDLES] = "idle time, CUDA IPC closed"};

struct gaps {
	const struct buffer_bench *bench;
	struct samples *idle[N_CLOSINGS]; /* of the decoder, in each round */
};

static void gaps_pause(uint32_t ms)
{
	const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

static int gaps_look(const struct gaps *gaps, struct answer **ret)
{
	int rc = target_ask(gaps->bench->target, "metrics", ret);

	return rc < 0 ? bench_fail(rc, "the daemon's counters: %s", strerror(-rc)) : 0;
}

/* A round lasts until there was a gap: on a busy machine no token may have come before. */
static int gaps_count(
	const struct gaps *gaps, uint32_t ms, enum closing closing, const struct answer *before)
{
	static const char n[] = "mimeo_lane_gaps_total", ns[] = "mimeo_lane_gap_nanoseconds_total";
	uint64_t until = stats_now() + FLOW_NS, first = answer_metric(before, n, NULL);

	while (stats_now() < until) {
		CLEANUP(cleanup_answer) struct answer *now = NULL;

		gaps_pause(ms);
		int rc = gaps_look(gaps, &now);
		if (rc < 0)
			return rc;
		if (answer_metric(now, n, NULL) == first)
			continue;
		samples_add(gaps->idle[closing],
			answer_metric(now, ns, NULL) - answer_metric(before, ns, NULL));
		return 0;
	}
	return bench_fail(-1, "no tokens while buffers are closed");
}

static int gaps_round(const struct gaps *gaps, enum closing closing, uint32_t ms)
{
	struct mimeo *m = gaps->bench->m;
	CLEANUP(cleanup_answer) struct answer *before = NULL;
	uint32_t kind = closing == HANDLES ? MIMEO_HANDLE_CUDA_IPC : MIMEO_HANDLE_DEFAULT;
	uint32_t buffers[CLOSED], n = closing == NOTHING ? 0 : CLOSED;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = mimeo_buffer_alloc(m, kind, CLOSED_BYTES, &buffers[i]);
	if (rc < 0)
		return buffer_fail(gaps->bench, "a buffer", rc);
	gaps_pause(SETTLE_MS);
	rc = gaps_look(gaps, &before);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = mimeo_buffer_close(m, buffers[i]);
	return rc < 0 ? buffer_fail(gaps->bench, "closing a buffer", rc)
		      : gaps_count(gaps, ms, closing, before);
}

/* With buffers that have no descriptor, rounds last until they are given back. */
static int gaps_rounds(const struct gaps *gaps)
{
	struct mimeo *m = gaps->bench->m;
	uint32_t buffer;
	int rc = mimeo_buffer_alloc(m, MIMEO_HANDLE_CUDA_IPC, CLOSED_BYTES, &buffer);
	bool handles = rc == 0;
	uint32_t n = handles ? N_CLOSINGS : HANDLES, ms = handles ? LONG_ROUND_MS : SHORT_ROUND_MS;

	if (handles)
		rc = mimeo_buffer_close(m, buffer);
	rc = rc == MIMEO_E_UNSUPPORTED || rc == 0 ? 0 : buffer_fail(gaps->bench, "a buffer", rc);
	for (uint32_t i = 0; i < ROUNDS * n && rc == 0; i++)
		rc = gaps_round(gaps, (enum closing)(i % n), ms);
	return rc;
}

int buffer_gaps(const struct buffer_bench *bench)
{
	CLEANUP(child_kill) struct child first = {0}, second = {0};
	struct gaps gaps = {.bench = bench};
	int rc = buffer_samples(gaps.idle, N_CLOSINGS, ROUNDS);

	if (rc == 0)
		rc = stream_start(&first, bench->options, bench->target);
	if (rc == 0)
		rc = stream_start(&second, bench->options, bench->target);
	if (rc == 0)
		rc = gaps_rounds(&gaps);
	for (uint32_t i = DESCRIPTORS; i < N_CLOSINGS && rc == 0; i++) {
		if (gaps.idle[i]->n > 0)
			buffer_row(bench, names[i], gaps.idle[i], gaps.idle[NOTHING], FLOOR);
	}
	return rc;
}
