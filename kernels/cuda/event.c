/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int event_new(struct device *base, unsigned int flags, struct event **ret)
{
	struct cuda_device *device = cuda_device(base);
	struct event *event;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	event = calloc(1, sizeof(*event));
	if (event == NULL)
		return -ENOMEM;
	event->device = device;
	CUDA_RELAXED(device);
	rc = CUDA_TRY(base, cudaEventCreateWithFlags(&event->handle, flags));
	if (rc) {
		free(event);
		return rc;
	}
	*ret = event;
	return 0;
}

int cuda_event_new(struct device *base, struct event **ret)
{
	return event_new(base, cudaEventDisableTiming, ret);
}

int cuda_event_new_shared(
	struct device *base, struct event **ret, struct device_handle *ret_handle)
{
	struct device_handle handle = {.fd = -1};
	cudaIpcEventHandle_t ipc;
	struct event *event;
	int rc = event_new(base, cudaEventDisableTiming | cudaEventInterprocess, &event);

	if (rc)
		return rc;
	event->shared = true;
	rc = CUDA_TRY(base, cudaIpcGetEventHandle(&ipc, event->handle));
	if (rc) {
		cuda_event_free(event);
		return rc;
	}
	_Static_assert(sizeof(ipc) == DEVICE_HANDLE_BYTES, "a CUDA IPC handle fills a handle");
	memcpy(handle.bytes, &ipc, sizeof(ipc));
	*ret = event;
	*ret_handle = handle;
	return 0;
}

void cuda_event_free(struct event *event)
{
	if (event == NULL)
		return;
	cuda_status(event->device);
	CUDA_RELAXED(event->device);
	CUDA_TRY(&event->device->base, cudaEventDestroy(event->handle));
	free(event);
}

int cuda_event_record(struct event *event, struct stream *stream)
{
	uint64_t mark = EVENT_RECORDED;
	int rc = cuda_stream_enter(stream);

	assert(event->device == stream->device);
	if (rc)
		return rc;
	if (event->shared) {
		rc = capture_refuse(&stream->capture, DEVICE_E_CAPTURE_UNSUPPORTED);
		if (rc)
			return rc;
	}
	if (capture_is_on(&stream->capture)) {
		mark = stream->capture.id;
		assert(mark > EVENT_RECORDED);
	} else {
		rc = CUDA_TRY(&event->device->base, cudaEventRecord(event->handle, stream->handle));
		if (rc)
			return rc;
	}
	atomic_store_explicit(&event->mark, mark, memory_order_release);
	return 0;
}

/* Check before querying an event: a query invalidates the capture in which it was recorded, or else those of
 * this thread. */
static int cuda_event_ask(struct event *event, uint64_t mark)
{
	int rc;

	if (mark <= EVENT_RECORDED)
		return cuda_enter(event->device);
	rc = cuda_status(event->device);
	return rc ? rc : captures_ask_event(&event->device->captures, mark);
}

int cuda_event_query(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = cuda_event_ask(event, mark);

	if (rc || mark == EVENT_NEVER)
		return rc;
	return CUDA_TRY(&event->device->base, cudaEventQuery(event->handle));
}

int cuda_event_sync(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = cuda_event_ask(event, mark);

	if (rc || mark == EVENT_NEVER)
		return rc;
	return CUDA_TRY(&event->device->base, cudaEventSynchronize(event->handle));
}

int cuda_stream_wait_event(struct stream *stream, struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = cuda_stream_enter(stream);

	if (rc || mark == EVENT_NEVER)
		return rc;
	if (mark > EVENT_RECORDED)
		return captures_wait_event(&stream->device->captures, mark, &stream->capture);
	rc = capture_refuse(&stream->capture, DEVICE_E_CAPTURE_ISOLATION);
	if (rc)
		return rc;
	return CUDA_TRY(
		&stream->device->base, cudaStreamWaitEvent(stream->handle, event->handle, 0));
}
