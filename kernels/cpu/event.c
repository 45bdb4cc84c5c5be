/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/internal.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define POINT_BITS 48
#define POINT_MASK (((uint64_t)1 << POINT_BITS) - 1)

static uint64_t event_mark(uint32_t index, uint64_t point)
{
	assert(index <= EVENT_CAPTURED && point <= POINT_MASK);
	return (uint64_t)index << POINT_BITS | point;
}

static bool event_mark_captured(uint64_t mark)
{
	return mark >> POINT_BITS == EVENT_CAPTURED;
}

struct timeline *event_timeline(struct cpu_device *device, uint64_t mark, uint64_t *ret_point)
{
	assert(mark >> POINT_BITS < CPU_STREAMS_MAX);
	*ret_point = mark & POINT_MASK;
	return &device->timelines[mark >> POINT_BITS];
}

static bool event_mark_done(struct cpu_device *device, uint64_t mark)
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

	if (rc)
		return rc;
	event = calloc(1, sizeof(*event));
	if (event == NULL)
		return -ENOMEM;
	event->device = device;
	cpu_object_made(device);
	*ret = event;
	return 0;
}

/* ---- events that other processes wait for ---- */

/* Two words in a memfd of our own, which others can only map for reading: *ret_page and the fd, or
 * -errno. */
static int event_page_new(struct event_page **ret_page)
{
	const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct event_page *page = MAP_FAILED;
	int rc, fd = cpu_memfd("mimeo-event", bytes, F_SEAL_SHRINK | F_SEAL_GROW);

	if (fd < 0)
		return fd;
	page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) {
		rc = -errno;
		close(fd);
		return rc;
	}
	/* Kernels before 5.1 lack the last one: a waiter can then mislead itself, and no other
	 * process. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
		fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL);
	*ret_page = page;
	return fd;
}

int cpu_event_new_shared(
	struct device *base, struct event **ret, struct device_handle *ret_handle)
{
	struct event *event;
	int fd, rc = cpu_event_new(base, &event);

	if (rc)
		return rc;
	fd = event_page_new(&event->page);
	if (fd < 0) {
		cpu_event_free(event);
		return fd;
	}
	cpu_handle_fill(ret_handle, fd, 0);
	*ret = event;
	return 0;
}

/* On the stream's worker. */
static void event_complete(void *arg)
{
	struct event *event = arg;
	uint32_t *word = &event->page->completed;
	__atomic_store_n(word, ++event->n_completed, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* The recording is counted before there is work that counts it as completed. */
static int event_record_shared(struct event *event, struct stream *stream)
{
	int rc;

	__atomic_store_n(&event->page->recorded, ++event->n_recorded, __ATOMIC_SEQ_CST);
	rc = cpu_stream_host_func(stream, event_complete, event);
	if (rc) /* no work will complete it */
		__atomic_store_n(&event->page->recorded, --event->n_recorded, __ATOMIC_SEQ_CST);
	return rc;
}

void cpu_event_free(struct event *event)
{
	if (event == NULL)
		return;
	if (event->page != NULL)
		munmap(event->page, (size_t)sysconf(_SC_PAGESIZE));
	cpu_object_freed(event->device);
	free(event);
}

int cpu_event_record(struct event *event, struct stream *stream)
{
	uint64_t mark;
	int rc = cpu_stream_enter(stream);

	if (rc)
		return rc;
	if (event->page != NULL) {
		rc = capture_refuse(&stream->capture, DEVICE_E_CAPTURE_UNSUPPORTED);
		if (rc)
			return rc;
		rc = event_record_shared(event, stream);
		if (rc)
			return rc;
	}
	if (capture_is_on(&stream->capture))
		mark = event_mark(EVENT_CAPTURED, stream->capture.id);
	else
		mark = event_mark(
			stream->index, atomic_load_explicit(&stream->tail, memory_order_relaxed));
	atomic_store_explicit(&event->mark, mark, memory_order_release);
	return 0;
}

/* Asking an event how far it is: its own capture is spoilt by that, else those of this thread. */
static int cpu_event_ask(struct event *event, uint64_t mark)
{
	int rc;

	if (!event_mark_captured(mark))
		return cpu_enter(event->device);
	rc = cpu_status(event->device);
	return rc ? rc : captures_ask_event(&event->device->captures, mark & POINT_MASK);
}

int cpu_event_query(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = cpu_event_ask(event, mark);

	if (rc)
		return rc;
	if (!event_mark_done(event->device, mark))
		return DEVICE_E_NOT_READY;
	return cpu_status(event->device);
}

int cpu_event_sync(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	struct timeline *timeline;
	uint64_t point;
	int rc = cpu_event_ask(event, mark);

	if (rc && (!device_is_lost(rc) || event_mark_captured(mark)))
		return rc;
	timeline = event_timeline(event->device, mark, &point);
	timeline_wait(event->device, timeline, point);
	return cpu_status(event->device);
}

int cpu_stream_wait_event(struct stream *stream, struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	struct cpu_node *node;
	int rc = cpu_stream_enter(stream);

	if (rc)
		return rc;
	if (event_mark_captured(mark))
		return captures_wait_event(
			&stream->device->captures, mark & POINT_MASK, &stream->capture);
	if (mark != 0) {
		rc = capture_refuse(&stream->capture, DEVICE_E_CAPTURE_ISOLATION);
		if (rc)
			return rc;
	}
	if (mark >> POINT_BITS == stream->index || event_mark_done(stream->device, mark))
		return 0;
	node = stream_next(stream, CPU_NODE_WAIT);
	node->mark = mark;
	stream_push(stream);
	return 0;
}
