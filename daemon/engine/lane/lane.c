/* SPDX-License-Identifier: MIT */
#include "daemon/engine/lane/lane.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "attention/kv_cache.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/sequence.h"
#include "ipc/clock.h"

static int lane_init_inflight(struct lane *lane, struct inflight *inflight)
{
	const struct device_ops *ops = lane->device->ops;
	const uint32_t n = lane->options->max_requests;
	int rc;

	inflight->rows = calloc(n, sizeof(*inflight->rows));
	inflight->sources = calloc((size_t)n * KV_SETS_MAX, sizeof(*inflight->sources));
	if (!inflight->rows || !inflight->sources)
		return -ENOMEM;
	rc = ops->event_new(lane->device, &inflight->end);
	return rc ? rc : ops->event_new(lane->device, &inflight->results);
}

int lane_init(struct lane *lane)
{
	struct stream **const streams[] = {&lane->stream, &lane->bell, &lane->late.stream};
	int rc;

#ifdef MIMEO_TEST_FAULTS
	const char *every = getenv("MIMEO_PREEMPT");

	lane->preempt_every = every ? (uint32_t)strtoul(every, NULL, 10) : 0;
#endif
	lane->late.lane = lane;
	lane->late.generation_ns = ENGINE_GENERATION_NS;
	lane->late.quiet_ns = ENGINE_QUIET_NS;
	lane->idle.sleepy = lane->options->spin_us == 0;
	for (unsigned i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
		rc = lane->device->ops->stream_new(lane->device, streams[i]);
		if (rc)
			return rc;
	}
	for (unsigned i = 0; i < LANE_STEPS; i++) {
		rc = lane_init_inflight(lane, &lane->inflight[i]);
		if (rc)
			return rc;
	}
	return 0;
}

void lane_deinit(struct lane *lane)
{
	struct stream *const streams[] = {lane->late.stream, lane->bell, lane->stream};

	for (unsigned i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
		if (streams[i])
			lane->device->ops->stream_free(streams[i]);
	}
	for (unsigned i = 0; i < LANE_STEPS; i++) {
		struct inflight *inflight = &lane->inflight[i];

		if (inflight->end)
			lane->device->ops->event_free(inflight->end);
		if (inflight->results)
			lane->device->ops->event_free(inflight->results);
		free(inflight->rows);
		free(inflight->sources);
	}
}

bool lane_is_ready(const struct lane *lane)
{
	const struct inflight *oldest = &lane->inflight[lane->first];

	if (!lane->n_inflight)
		return false;
	return inputs_slot_done(oldest->slot) ||
	       (inflight_is_divided(oldest) && !oldest->read && inputs_slot_has_results(oldest->slot));
}

void lane_work_begins(struct lane *lane)
{
	if (!lane->work_since_ns)
		lane->work_since_ns = clock_ns();
}

/* Nothing runs any more, so nothing names a page or a slot. */
static void lane_abandon(struct lane *lane)
{
	for (; lane->n_inflight; lane->n_inflight--) {
		struct inflight *inflight = lane_oldest(lane);

		kv_release(inflight->runner->kv, inflight->sources, inflight->n_sources);
		lane->first = (lane->first + 1) % LANE_STEPS;
	}
	for (uint32_t i = 0; i < lane->runners->n; i++) {
		struct runner *runner = lane->runners->all[i];
		struct slots *slots = &runner->slots;

		assert(runner->completed <= runner->launched);
		runner->completed = runner->launched;
		for (; slots->n_copies; slots->n_copies--)
			kv_release(runner->kv, &slots->copies[slots->n_copies - 1][0], 1);
		sequence_release_all(runner);
		assert(!slots->releasing);
	}
}

void lane_lose_device(struct lane *lane, int rc)
{
	struct accounting *accounting = lane->accounting;
	struct device_fault fault = {0};
	char text[256];

	if (accounting->lost)
		return;
	assert(rc);
	accounting->lost = true;
	atomic_store(&lane->stats->device_condition, rc);
	/* On the cpu device an op may still run; others answer at once. */
	lane->device->ops->stream_sync(lane->stream);
	accounting->completed = accounting->launched;
	finish_ended_steps(accounting);
	lane_abandon(lane);
	finish_all(accounting, MIMEO_E_DEVICE_LOST, NULL);
	assert(!accounting->n_requests && !accounting->ending && !lane->n_inflight);
	lane->device->ops->last_fault(lane->device, &fault);
	snprintf(text, sizeof(text), "%s, at %s", device_strerror(rc), fault.call ? fault.call : "?");
	reports_post(accounting->reports, ENGINE_DEVICE_LOST, NULL, text);
}
