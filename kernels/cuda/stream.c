/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int cuda_stream_new(struct device *base, struct stream **ret)
{
	struct cuda_device *device = cuda_device(base);
	struct stream *stream;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	stream = calloc(1, sizeof(*stream));
	if (stream == NULL)
		return -ENOMEM;
	stream->device = device;
	CUDA_RELAXED(device);
	rc = CUDA_TRY(base, cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking));
	if (rc) {
		free(stream);
		return rc;
	}
	*ret = stream;
	return 0;
}

int cuda_stream_new_dry(struct device *base, struct stream **ret)
{
	struct stream *stream;
	int rc = cuda_stream_new(base, &stream);

	if (rc)
		return rc;
	stream->dry = true;
	*ret = stream;
	return 0;
}

static void stream_free_list(struct device *base, _Atomic(struct workspace *) *list)
{
	struct workspace *workspace;

	while ((workspace = *list) != NULL) {
		assert(workspace->next == NULL || workspace->next->bytes < workspace->bytes);
		*list = workspace->next;
		CUDA_TRY(base, cudaFree(workspace->memory));
		free(workspace);
	}
}

void cuda_stream_free(struct stream *stream)
{
	struct device *base;

	if (stream == NULL)
		return;
	base = &stream->device->base;
	cuda_status(stream->device);
	if (capture_is_on(&stream->capture))
		cuda_capture_drop(stream);
	CUDA_RELAXED(stream->device);
	CUDA_TRY(base, cudaStreamSynchronize(stream->handle));
	CUDA_TRY(base, cudaStreamDestroy(stream->handle));
	stream_free_list(base, &stream->workspaces);
	stream_free_list(base, &stream->exchanges);
	free(stream);
}

/* Check before querying a stream: not allowed while this thread or the stream captures. */
static int cuda_stream_ask(struct stream *stream)
{
	int rc = cuda_enter(stream->device);

	return rc ? rc : capture_refuse(&stream->capture, DEVICE_E_CAPTURE_UNSUPPORTED);
}

int cuda_stream_sync(struct stream *stream)
{
	int rc = cuda_stream_ask(stream);

	if (rc)
		return rc;
	return CUDA_TRY(&stream->device->base, cudaStreamSynchronize(stream->handle));
}

int cuda_stream_query(struct stream *stream)
{
	int rc = cuda_stream_ask(stream);

	if (rc)
		return rc;
	return CUDA_TRY(&stream->device->base, cudaStreamQuery(stream->handle));
}

int cuda_enter_eager(struct stream *stream)
{
	int rc = cuda_stream_enter(stream);

	return rc ? rc : capture_refuse(&stream->capture, DEVICE_E_CAPTURE_UNSUPPORTED);
}

/* ---- host functions ---- */

struct host_call {
	struct cuda_device *device;
	void (*fn)(void *arg);
	void *arg;
};

static void CUDART_CB stream_call_host(cudaStream_t handle, cudaError_t status, void *data)
{
	struct host_call call = *(struct host_call *)data;
	int condition = cuda_condition(status);

	free(data);
	if (device_is_lost(condition)) /* the thread that fn wakes will read the status */
		cuda_fault(
			call.device, condition, "work before a host function", __FILE__, __LINE__);
	call.fn(call.arg);
}

/* Not cudaLaunchHostFunc, which does not call the function if the device is lost. */
int cuda_stream_host_func(struct stream *stream, void (*fn)(void *arg), void *arg)
{
	struct host_call *call;
	int rc = cuda_enter_eager(stream);

	if (rc)
		return rc;
	call = malloc(sizeof(*call));
	if (call == NULL)
		return -ENOMEM;
	*call = (struct host_call){.device = stream->device, .fn = fn, .arg = arg};
	rc = CUDA_TRY(&stream->device->base,
		cudaStreamAddCallback(stream->handle, stream_call_host, call, 0));
	if (rc)
		free(call);
	return rc;
}
