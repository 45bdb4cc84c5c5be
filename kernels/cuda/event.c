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

	if (rc != 0)
		return rc;
	event = calloc(1, sizeof(*event));
	if (event == NULL)
		return -ENOMEM;
	event->device = device;
	CUDA_RELAXED(device);
	rc = CUDA_TRY(base, cudaEventCreateWithFlags(&event->handle, flags));
	if (rc != 0) {
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

	if (rc != 0)
		return rc;
	event->shared = true;
	rc = CUDA_TRY(base, cudaIpcGetEventHandle(&ipc, event->handle));
	if (rc != 0) {
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
	int rc = stream_enter(stream);

	assert(event->device == stream->device);
	if (rc != 0)
		return rc;
	if (stream_capturing(stream) && event->shared) {
		stream_spoil(stream);
		return DEVICE_E_CAPTURE_UNSUPPORTED;
	}
	if (stream_capturing(stream)) {
		mark = stream->capture.id;
		assert(mark > EVENT_RECORDED);
	} else {
		rc = CUDA_TRY(&event->device->base, cudaEventRecord(event->handle, stream->handle));
		if (rc != 0)
			return rc;
	}
	atomic_store_explicit(&event->mark, mark, memory_order_release);
	return 0;
}

/* Asking an event how far it is: its own capture is spoilt by that, else those of this thread. */
static int event_ask(struct event *event, uint64_t mark)
{
	int rc;

	if (mark <= EVENT_RECORDED)
		return cuda_enter(event->device);
	rc = cuda_status(event->device);
	if (rc != 0)
		return rc;
	return captures_spoil(&event->device->captures, mark) ? DEVICE_E_CAPTURED_EVENT : DEVICE_E_INVALID;
}

int cuda_event_query(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = event_ask(event, mark);

	if (rc != 0 || mark == EVENT_NEVER)
		return rc;
	return CUDA_TRY(&event->device->base, cudaEventQuery(event->handle));
}

int cuda_event_sync(struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = event_ask(event, mark);

	if (rc != 0 || mark == EVENT_NEVER)
		return rc;
	return CUDA_TRY(&event->device->base, cudaEventSynchronize(event->handle));
}

/* Within one capture the recording is in order as it is; anything else would need a second stream
 * in the capture. */
static int event_wait_captured(struct stream *stream, uint64_t capture_id)
{
	if (stream_capturing(stream) && stream->capture.id == capture_id)
		return 0;
	if (!captures_spoil(&stream->device->captures, capture_id))
		return DEVICE_E_INVALID;
	stream_spoil(stream);
	return DEVICE_E_CAPTURE_UNSUPPORTED;
}

int cuda_stream_wait_event(struct stream *stream, struct event *event)
{
	const uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
	int rc = stream_enter(stream);

	if (rc != 0 || mark == EVENT_NEVER)
		return rc;
	if (mark > EVENT_RECORDED)
		return event_wait_captured(stream, mark);
	if (stream_capturing(stream)) {
		stream_spoil(stream);
		return DEVICE_E_CAPTURE_ISOLATION;
	}
	return CUDA_TRY(
		&stream->device->base, cudaStreamWaitEvent(stream->handle, event->handle, 0));
}
