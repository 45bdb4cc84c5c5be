/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* ---- recording ---- */

static cudaError_t graph_of_capture(cudaStream_t handle, cudaGraph_t *ret)
{
	enum cudaStreamCaptureStatus status;
#if CUDART_VERSION >= 12030
	/* without asking for the edges' data the call fails if there are programmatic edges */
	const cudaGraphEdgeData *edges;
	const cudaGraphNode_t *nodes;
	size_t n;
#endif

#if CUDART_VERSION >= 13000
	return cudaStreamGetCaptureInfo(handle, &status, NULL, ret, &nodes, &edges, &n);
#elif CUDART_VERSION >= 12030
	return cudaStreamGetCaptureInfo_v3(handle, &status, NULL, ret, &nodes, &edges, &n);
#else
	return cudaStreamGetCaptureInfo_v2(handle, &status, NULL, ret, NULL, NULL);
#endif
}

static int cuda_graph_grow(struct graph *graph, size_t n)
{
	size_t capacity = graph->capacity == 0 ? 256 : graph->capacity;
	const char **names;

	assert(n <= UINT32_MAX / 2);
	while (capacity < n)
		capacity *= 2;
	if (capacity == graph->capacity)
		return 0;
	names = realloc(graph->names, capacity * sizeof(*names));
	if (names == NULL)
		return -ENOMEM;
	graph->names = names;
	graph->capacity = (uint32_t)capacity;
	return 0;
}

/* The nodes recorded since the last call are of the op `name`. */
static int graph_name_nodes(struct stream *stream, const char *name)
{
	struct graph *graph = stream->capture_graph;
	struct device *base = &stream->device->base;
	cudaGraph_t handle = NULL;
	size_t n = 0;
	int rc = CUDA_TRY(base, graph_of_capture(stream->handle, &handle));

	if (rc)
		return rc;
	if (handle == NULL)
		return DEVICE_E_CAPTURE_INVALIDATED;
	rc = CUDA_TRY(base, cudaGraphGetNodes(handle, NULL, &n));
	if (rc)
		return rc;
	assert(graph != NULL && n >= graph->n_nodes);
	rc = cuda_graph_grow(graph, n);
	if (rc)
		return rc;
	while (graph->n_nodes < n)
		graph->names[graph->n_nodes++] = name;
	return 0;
}

int cuda_graph_mark(struct stream *stream, const char *name)
{
	int rc = graph_name_nodes(stream, name);

	if (rc)
		capture_spoil(&stream->capture);
	return rc;
}

int cuda_capture_begin(struct stream *stream)
{
	struct cuda_device *device = stream->device;
	struct graph *graph;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	if (capture_is_on(&stream->capture))
		return DEVICE_E_ILLEGAL_STATE;
	graph = calloc(1, sizeof(*graph));
	if (graph == NULL)
		return -ENOMEM;
	graph->device = device;
	rc = CUDA_TRY(&device->base,
		cudaStreamBeginCapture(stream->handle, cudaStreamCaptureModeThreadLocal));
	if (rc) {
		free(graph);
		return rc;
	}
	assert(stream->capture_graph == NULL);
	stream->capture_graph = graph;
	stream->inputs_recorded = false;
	captures_begin(&device->captures, &stream->capture);
	return 0;
}

/* End the capture and return its recording. *ret_rc: the result of captures_end, or CUDA's error. */
static struct graph *cuda_graph_take_recording(struct stream *stream, int *ret_rc)
{
	struct graph *graph = stream->capture_graph;
	int rc = captures_end(&stream->device->captures, &stream->capture);
	int ended = CUDA_TRY(&stream->device->base,
		cudaStreamEndCapture(stream->handle, &graph->handle));

	assert(graph != NULL);
	*ret_rc = rc ? rc : ended;
	stream->capture_graph = NULL;
	return graph;
}

int cuda_capture_end(struct stream *stream, struct graph **ret_graph)
{
	struct graph *graph;
	int ended, rc = cuda_status(stream->device);

	if (!capture_is_on(&stream->capture))
		return rc ? rc : DEVICE_E_ILLEGAL_STATE;
	graph = cuda_graph_take_recording(stream, &ended);
	if (rc || ended) {
		cuda_graph_free(graph);
		return rc ? rc : ended;
	}
	*ret_graph = graph;
	return 0;
}

void cuda_capture_drop(struct stream *stream)
{
	int ended;

	cuda_graph_free(cuda_graph_take_recording(stream, &ended));
}

bool cuda_capturing(struct stream *stream)
{
	return capture_is_on(&stream->capture);
}

const char *cuda_graph_node_name(struct graph *graph, uint32_t index)
{
	return index < graph->n_nodes ? graph->names[index] : NULL;
}

void cuda_graph_free(struct graph *graph)
{
	if (graph == NULL)
		return;
	cuda_status(graph->device);
	if (graph->handle != NULL)
		CUDA_TRY(&graph->device->base, cudaGraphDestroy(graph->handle));
	free(graph->names);
	free(graph);
}

/* ---- replay ---- */

static size_t graph_free_memory(struct cuda_device *device)
{
	size_t free_bytes = 0, total_bytes;

	CUDA_TRY(&device->base, cudaMemGetInfo(&free_bytes, &total_bytes));
	return free_bytes;
}

/* CUDA does not report the memory of an executable graph. This takes the decrease of free memory, which has
 * the granularity of the allocator and includes what others allocate meanwhile. */
static void graph_count_bytes(struct graph_exec *exec, size_t before)
{
	size_t after = graph_free_memory(exec->device);

	if (after < before)
		atomic_fetch_add(&exec->bytes, before - after);
}

int cuda_graph_instantiate(struct device *base, struct graph *graph, struct graph_exec **ret)
{
	struct cuda_device *device = cuda_device(base);
	struct graph_exec *exec;
	size_t before;
	int rc = cuda_enter(device);

	if (rc)
		return rc;
	exec = calloc(1, sizeof(*exec));
	if (exec == NULL)
		return -ENOMEM;
	exec->device = device;
	exec->n_nodes = graph->n_nodes;
	before = graph_free_memory(device);
	rc = CUDA_TRY(base, cudaGraphInstantiate(&exec->handle, graph->handle, 0));
	if (rc) {
		free(exec);
		return rc;
	}
	graph_count_bytes(exec, before);
	*ret = exec;
	return 0;
}

int cuda_graph_upload(struct graph_exec *exec, struct stream *stream)
{
	size_t before;
	int rc = cuda_enter_eager(stream);

	if (rc)
		return rc;
	before = graph_free_memory(exec->device);
	rc = CUDA_TRY(&exec->device->base, cudaGraphUpload(exec->handle, stream->handle));
	if (rc)
		return rc;
	graph_count_bytes(exec, before);
	return 0;
}

int cuda_graph_launch(struct graph_exec *exec, struct stream *stream)
{
	int rc = cuda_enter_eager(stream);

	assert(exec->device == stream->device);
	if (rc)
		return rc;
	rc = cuda_forced_fault(stream, "graph");
	if (rc)
		return rc;
	return CUDA_TRY(&exec->device->base, cudaGraphLaunch(exec->handle, stream->handle));
}

int cuda_graph_info(struct graph_exec *exec, struct graph_info *ret)
{
	int rc = cuda_status(exec->device);

	if (rc)
		return rc;
	*ret = (struct graph_info){.n_nodes = exec->n_nodes, .bytes = atomic_load(&exec->bytes)};
	return 0;
}

void cuda_graph_exec_free(struct graph_exec *exec)
{
	if (exec == NULL)
		return;
	cuda_status(exec->device);
	CUDA_RELAXED(exec->device);
	CUDA_TRY(&exec->device->base, cudaGraphExecDestroy(exec->handle));
	free(exec);
}
