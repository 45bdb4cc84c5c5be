/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/internal.h"

#include <errno.h>
#include <stdlib.h>

#define POINT_BITS 48
#define POINT_MASK (((uint64_t)1 << POINT_BITS) - 1)

static uint64_t make_mark(uint32_t index, uint64_t point)
{
	return (uint64_t)index << POINT_BITS | (point & POINT_MASK);
}

static bool mark_captured(uint64_t mark)
{
	return mark >> POINT_BITS == EVENT_CAPTURED;
}

struct timeline *event_timeline(struct cpu_device *device, uint64_t mark, uint64_t *ret_point)
{
	*ret_point = mark & POINT_MASK;
	return &device->timelines[mark >> POINT_BITS];
}

static bool mark_done(struct cpu_device *device, uint64_t mark)
{
	uint64_t point;
	struct timeline *timeline = event_timeline(device, mark, &point);

	return atomic_load_explicit(&timeline->completed, memory_order_acquire) >= point;
}

int cpu_event_new(struct device *base, struct event **ret)
{
	struct cpu_device *device = cpu_device(base);
	struct event *event;
	int rc = cpu_status(device);

	if (rc != 0)
		return rc;
	event = calloc(1, sizeof(*event));
	if (event == NULL)
		return -ENOMEM;
	event->device = device;
	cpu_count(device, &device->live.events, 1);
	*ret = event;
	return 0;
}

void cpu_event_free(struct event *event)
{
	if (event == NULL)
		return;
	cpu_count(event->device, &event->device->live.events, -1);
	free(event);
}

int cpu_event_record(struct event *event, struct stream *stream)
{
	uint64_t mark;
	int rc = stream_enter(stream);

	if (rc != 0)
		return rc;
	if (stream_capturing(stream))
		mark = make_mark(EVENT_CAPTURED, stream->capture_id);
	else
		mark = make_mark(
			stream->index, atomic_load_explicit(&stream->tail, memory_order_relaxed));
	atomic_store_explicit(&event->mark, mark, memory_order_release);
	return 0;
}

/* Asking an event how far it is: its own capture is spoilt by that, else those of this thread. */
static int ask_enter(struct event *event, uint64_t mark)
{
	int rc;

	if (!mark_captured(mark))
		return cpu_enter(event->device);
	rc = cpu_status(event->device);
	if (rc != 0)
		return rc;
	return graph_capture_spoil(event->device, mark & POINT_MASK) ? DEVICE_E_CAPTURED_EVENT
								     : DEVICE_E_INVALID;
}

int cpu_event_query(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = ask_enter(event, mark);

	if (rc != 0)
		return rc;
	if (!mark_done(event->device, mark))
		return DEVICE_E_NOT_READY;
	return cpu_status(event->device);
}

int cpu_event_sync(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	struct timeline *timeline;
	uint64_t point;
	int rc = ask_enter(event, mark);

	if (rc != 0 && (!device_is_lost(rc) || mark_captured(mark)))
		return rc;
	timeline = event_timeline(event->device, mark, &point);
	timeline_wait(event->device, timeline, point);
	return cpu_status(event->device);
}

/* Within one capture the recording is in order as it is; anything else would need a second stream
 * in the capture. */
static int wait_captured(struct stream *stream, uint64_t mark)
{
	const uint64_t capture_id = mark & POINT_MASK;

	if (stream_capturing(stream) && stream->capture_id == capture_id)
		return 0;
	if (!graph_capture_spoil(stream->device, capture_id))
		return DEVICE_E_INVALID;
	stream_spoil(stream);
	return DEVICE_E_CAPTURE_UNSUPPORTED;
}

int cpu_stream_wait_event(struct stream *stream, struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	struct cpu_node *node;
	int rc = stream_enter(stream);

	if (rc != 0)
		return rc;
	if (mark_captured(mark))
		return wait_captured(stream, mark);
	if (stream_capturing(stream) && mark != 0) {
		stream_spoil(stream);
		return DEVICE_E_CAPTURE_ISOLATION;
	}
	if (mark >> POINT_BITS == stream->index || mark_done(stream->device, mark))
		return 0;
	node = stream_next(stream, CPU_NODE_WAIT);
	node->mark = mark;
	stream_push(stream);
	return 0;
}
