/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

cudaStream_t cuda_stream(struct stream *stream)
{
	return stream->handle;
}

struct device *cuda_stream_device(struct stream *stream)
{
	return &stream->device->base;
}

const struct cuda_limits *cuda_limits(struct stream *stream)
{
	return &stream->device->limits;
}

/* ---- loading ---- */

/* CUDA loads a kernel when it is first launched or queried, which may allocate and wait. Therefore all
 * variants are loaded during set-up, also those that warm-up does not use. */
static int launch_load_module(struct cuda_device *device, cudaFunction_t function)
{
#if CUDA_VERSION >= 12040
	const struct driver *driver = &device->driver;
	struct device *base = &device->base;
	CUfunction *functions;
	CUmodule module;
	unsigned int n = 0;
	int rc = CUDA_TRY_DRIVER(base, driver->function_module(&module, (CUfunction)function));

	if (rc)
		return rc;
	rc = CUDA_TRY_DRIVER(base, driver->module_count(&n, module));
	if (rc)
		return rc;
	functions = calloc(n + 1, sizeof(CUfunction));
	if (functions == NULL)
		return -ENOMEM;
	rc = CUDA_TRY_DRIVER(base, driver->module_functions(functions, n, module));
	for (unsigned int i = 0; !rc && i < n; i++)
		rc = CUDA_TRY_DRIVER(base, driver->function_load(functions[i]));
	free(functions);
	return rc;
#else
	return 0;
#endif
}

static int launch_load_kernel(struct cuda_device *device, const void *kernel)
{
	struct cudaFuncAttributes attributes;
	cudaFunction_t function;
	int rc = CUDA_TRY(&device->base, cudaFuncGetAttributes(&attributes, kernel));

	if (rc)
		return rc;
	rc = CUDA_TRY(&device->base, cudaGetFuncBySymbol(&function, kernel));
	return rc ? rc : launch_load_module(device, function);
}

static int launch_load(struct cuda_device *device, const char *name, const void *kernel)
{
	int rc = cuda_enter_growth(device);

	if (rc)
		return rc;
	rc = kernel != NULL ? launch_load_kernel(device, kernel) : 0;
	return rc ? rc : loaded_add(&device->loaded, name);
}

/* ---- launching ---- */

int cuda_launch_begin(struct stream *stream, const char *name, const void *kernel)
{
	int rc = cuda_stream_enter(stream);

	if (rc)
		return rc;
	if (!loaded_has(&stream->device->loaded, name)) {
		rc = launch_load(stream->device, name, kernel);
		if (rc)
			return rc;
	}
	return cuda_forced_fault(stream, name);
}

int cuda_allow_shared(struct stream *stream, const char *name, const void *const *kernels,
	uint32_t n, uint32_t shared_bytes)
{
	struct cuda_device *device = stream->device;
	int rc;

	if (loaded_has(&device->loaded, name))
		return 0;
	assert(shared_bytes <= device->limits.shared_bytes_optin);
	rc = cuda_enter_growth(device);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		rc = CUDA_TRY(&device->base,
			cudaFuncSetAttribute(kernels[i],
				cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
		if (rc)
			return rc;
	}
	return loaded_add(&device->loaded, name);
}

static void launch_kernel(struct stream *stream, const void *kernel, struct dim3 grid,
	struct dim3 block, uint32_t cluster, size_t shared_bytes, void **params)
{
	cudaLaunchAttribute attributes[2];
	cudaLaunchConfig_t config = {
		.gridDim = grid,
		.blockDim = block,
		.dynamicSmemBytes = shared_bytes,
		.stream = stream->handle,
		.attrs = attributes,
	};

	assert(kernel != NULL && grid.x > 0 && grid.y > 0 && grid.z > 0 && block.x > 0);
	assert(cluster > 0 && grid.x % cluster == 0);
	assert(shared_bytes <= stream->device->limits.shared_bytes_optin);
	if (stream->device->overlap)
		attributes[config.numAttrs++] = (cudaLaunchAttribute){
			.id = cudaLaunchAttributeProgrammaticStreamSerialization,
			.val = {.programmaticStreamSerializationAllowed = 1},
		};
	if (cluster > 1)
		attributes[config.numAttrs++] = (cudaLaunchAttribute){
			.id = cudaLaunchAttributeClusterDimension,
			.val = {.clusterDim = {cluster, 1, 1}},
		};
	if (!cuda_runs_dry(stream))
		cudaLaunchKernelExC(&config, kernel, params); /* the end asks for the error */
}

void cuda_launch(struct stream *stream, const void *kernel, struct dim3 grid, struct dim3 block,
	size_t shared_bytes, void **params)
{
	launch_kernel(stream, kernel, grid, block, 1, shared_bytes, params);
}

void cuda_launch_clusters(struct stream *stream, const void *kernel, uint32_t grid, uint32_t block,
	uint32_t cluster, size_t shared_bytes, void **params)
{
	launch_kernel(stream, kernel, (struct dim3){grid, 1, 1}, (struct dim3){block, 1, 1},
		cluster, shared_bytes, params);
}

uint32_t cuda_clusters_at_once(struct stream *stream, const void *kernel, uint32_t cluster, uint32_t block,
	size_t shared_bytes)
{
	const uint32_t n_sms = cuda_limits(stream)->n_sms;
	cudaLaunchAttribute attribute = {
		.id = cudaLaunchAttributeClusterDimension,
		.val = {.clusterDim = {cluster, 1, 1}},
	};
	const cudaLaunchConfig_t config = {
		.gridDim = {cluster * n_sms, 1, 1},
		.blockDim = {block, 1, 1},
		.dynamicSmemBytes = shared_bytes,
		.attrs = &attribute,
		.numAttrs = 1,
	};
	int n = 0;

	if (cluster == 1)
		return n_sms;
	if (cudaOccupancyMaxActiveClusters(&n, kernel, &config) != cudaSuccess)
		cudaGetLastError(); /* clears the error; n stays 0 */
	return n < 0 ? 0 : (uint32_t)n;
}

/* Work of `name` was put on the stream with this result: a capture names its nodes, or is
 * spoilt. */
static int launch_queued(struct stream *stream, int rc, const char *name)
{
	if (!capture_is_on(&stream->capture))
		return rc;
	if (rc) {
		capture_spoil(&stream->capture);
		return rc;
	}
	return cuda_graph_mark(stream, name);
}

int cuda_launch_end(struct stream *stream, const char *name)
{
	struct cuda_device *device = stream->device;
	int rc = cuda_condition(cudaGetLastError());
	char call[80];

	if (device_is_lost(rc)) {
		snprintf(call, sizeof(call), "%s launch", name);
		cuda_fault(device, rc, call, NULL, 0);
		return rc;
	}
	return launch_queued(stream, rc, name);
}

void cuda_inputs_written(struct stream *stream)
{
	stream->inputs_recorded = true;
}

bool cuda_inputs_settled(struct stream *stream)
{
	return capture_is_on(&stream->capture) && !stream->inputs_recorded;
}

static int launch_alloc(struct cuda_device *device, size_t bytes, void **ret)
{
	int rc = cuda_enter_growth(device);

	return rc ? rc : CUDA_TRY(&device->base, cudaMalloc(ret, bytes));
}

/* Takes the memory over. */
static int launch_push(struct stream *stream, _Atomic(struct workspace *) *list, void *memory, size_t bytes)
{
	int rc = workspace_push(list, memory, bytes);

	if (rc)
		CUDA_TRY(&stream->device->base, cudaFree(memory));
	return rc;
}

static int launch_grow_workspace(struct stream *stream, size_t bytes)
{
	void *memory;
	int rc = launch_alloc(stream->device, bytes, &memory);

	return rc ? rc : launch_push(stream, &stream->workspaces, memory, bytes);
}

/* `handle`: the stream on which the memory gets its first contents. */
static int launch_grow_exchange(struct stream *stream, size_t bytes, cudaStream_t handle)
{
	struct device *device = &stream->device->base;
	void *memory;
	int rc = launch_alloc(stream->device, bytes, &memory);

	if (rc)
		return rc;
	rc = CUDA_TRY(device, cudaMemsetAsync(memory, 0xff, bytes, handle));
	if (!rc)
		rc = CUDA_TRY(device, cudaMemsetAsync(memory, 0, 256, handle));
	if (!rc && handle != stream->handle)
		rc = CUDA_TRY(device, cudaStreamSynchronize(handle));
	if (!rc)
		return launch_push(stream, &stream->exchanges, memory, bytes);
	CUDA_TRY(device, cudaFree(memory));
	return rc;
}

int cuda_workspace(struct stream *stream, size_t bytes, void **ret)
{
	int rc = bytes <= workspace_bytes(stream->workspaces) ? 0 : launch_grow_workspace(stream, bytes);

	if (!rc)
		*ret = workspace_memory(stream->workspaces);
	return rc;
}

int cuda_exchange(struct stream *stream, size_t bytes, void **ret, size_t *ret_bytes)
{
	const struct workspace *exchange;
	int rc = bytes <= workspace_bytes(stream->exchanges)
			 ? 0
			 : launch_grow_exchange(stream, bytes, stream->handle);

	if (rc)
		return rc;
	exchange = stream->exchanges;
	*ret = workspace_memory(exchange);
	*ret_bytes = workspace_bytes(exchange);
	return 0;
}

int cuda_stream_match(struct stream *stream, const struct stream *like)
{
	const size_t workspace = workspace_bytes(like->workspaces), exchange = workspace_bytes(like->exchanges);
	int rc = cuda_enter_growth(stream->device);

	if (!rc && workspace > workspace_bytes(stream->workspaces))
		rc = launch_grow_workspace(stream, workspace);
	if (!rc && exchange > workspace_bytes(stream->exchanges))
		rc = launch_grow_exchange(stream, exchange, like->handle);
	return rc;
}

/* ---- copies and fills ---- */

int cuda_copy_async(struct stream *stream, void *dst, const void *src, size_t bytes)
{
	int rc = cuda_stream_enter(stream);

	if (rc || bytes == 0 || cuda_runs_dry(stream))
		return rc;
	if (dst == NULL || src == NULL)
		return DEVICE_E_INVALID;
	rc = CUDA_TRY(&stream->device->base,
		cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream->handle));
	return launch_queued(stream, rc, "copy");
}

int cuda_fill_async(struct stream *stream, void *dst, uint8_t value, size_t bytes)
{
	int rc = cuda_stream_enter(stream);

	if (rc || bytes == 0 || cuda_runs_dry(stream))
		return rc;
	if (dst == NULL)
		return DEVICE_E_INVALID;
	rc = CUDA_TRY(&stream->device->base, cudaMemsetAsync(dst, value, bytes, stream->handle));
	return launch_queued(stream, rc, "fill");
}

/* Not cudaMemcpy, which uses the default stream and may return before the last bytes are copied; our streams
 * do not wait for that stream. */
int cuda_copy(struct device *base, void *dst, const void *src, size_t bytes)
{
	struct cuda_device *device = cuda_device(base);
	int rc = cuda_status(device);

	if (rc)
		return rc;
	rc = cuda_refuse_capture(device, DEVICE_E_CAPTURE_IMPLICIT);
	if (rc || bytes == 0)
		return rc;
	if (dst == NULL || src == NULL)
		return DEVICE_E_INVALID;
	rc = CUDA_TRY(base, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, device->utility));
	if (rc)
		return rc;
	return CUDA_TRY(base, cudaStreamSynchronize(device->utility));
}
