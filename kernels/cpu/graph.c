/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct cpu_node *graph_nodes_new(uint32_t n)
{
	return aligned_alloc(alignof(struct cpu_node), n * sizeof(struct cpu_node));
}

/* ---- recording ---- */

static int cpu_graph_grow(struct graph *graph)
{
	const uint32_t capacity = graph->capacity == 0 ? 64 : graph->capacity * 2;
	struct cpu_node *nodes = graph_nodes_new(capacity);

	assert(graph->n_nodes == graph->capacity && capacity > graph->n_nodes);
	if (nodes == NULL)
		return -ENOMEM;
	if (graph->n_nodes != 0)
		memcpy(nodes, graph->nodes, graph->n_nodes * sizeof(*nodes));
	free(graph->nodes);
	graph->nodes = nodes;
	graph->capacity = capacity;
	return 0;
}

struct cpu_node *graph_record(struct stream *stream)
{
	struct graph *graph = stream->capture_graph;
	struct cpu_node *node;

	assert(graph != NULL && graph->n_nodes <= graph->capacity);
	if (graph->n_nodes == graph->capacity && cpu_graph_grow(graph) != 0) {
		capture_spoil(&stream->capture);
		return NULL;
	}
	node = &graph->nodes[graph->n_nodes++];
	memset(node, 0, sizeof(*node));
	node->kind = CPU_NODE_OP;
	return node;
}

int cpu_capture_begin(struct stream *stream)
{
	struct cpu_device *device = stream->device;
	struct graph *graph;
	int rc = cpu_status(device);

	if (rc)
		return rc;
	if (capture_is_on(&stream->capture))
		return DEVICE_E_ILLEGAL_STATE;
	graph = calloc(1, sizeof(*graph));
	if (graph == NULL)
		return -ENOMEM;
	graph->device = device;
	assert(stream->capture_graph == NULL);
	cpu_object_made(device);
	stream->capture_graph = graph;
	captures_begin(&device->captures, &stream->capture);
	return 0;
}

/* The recording; its capture is over. *ret_rc: captures_end's. */
static struct graph *cpu_graph_take_recording(struct stream *stream, int *ret_rc)
{
	struct graph *graph = stream->capture_graph;

	assert(graph != NULL);
	*ret_rc = captures_end(&stream->device->captures, &stream->capture);
	stream->capture_graph = NULL;
	return graph;
}

int cpu_capture_end(struct stream *stream, struct graph **ret_graph)
{
	struct graph *graph;
	int ended, rc = cpu_status(stream->device);

	if (!capture_is_on(&stream->capture))
		return rc ? rc : DEVICE_E_ILLEGAL_STATE;
	graph = cpu_graph_take_recording(stream, &ended);
	if (rc || ended) {
		cpu_graph_free(graph);
		return rc ? rc : ended;
	}
	*ret_graph = graph;
	return 0;
}

void cpu_capture_drop(struct stream *stream)
{
	int ended;

	cpu_graph_free(cpu_graph_take_recording(stream, &ended));
}

bool cpu_capturing(struct stream *stream)
{
	return capture_is_on(&stream->capture);
}

const char *cpu_graph_node_name(struct graph *graph, uint32_t index)
{
	return index < graph->n_nodes ? graph->nodes[index].op->name : NULL;
}

void cpu_graph_free(struct graph *graph)
{
	if (graph == NULL)
		return;
	cpu_object_freed(graph->device);
	free(graph->nodes);
	free(graph);
}

/* ---- replay ---- */

int cpu_graph_instantiate(struct device *base, struct graph *graph, struct graph_exec **ret)
{
	struct cpu_device *device = cpu_device(base);
	struct graph_exec *exec;
	int rc = cpu_enter(device);

	if (rc)
		return rc;
	exec = calloc(1, sizeof(*exec));
	if (exec == NULL)
		return -ENOMEM;
	exec->device = device;
	exec->n_nodes = graph->n_nodes;
	if (graph->n_nodes != 0) {
		exec->nodes = graph_nodes_new(graph->n_nodes);
		if (exec->nodes == NULL) {
			free(exec);
			return -ENOMEM;
		}
		memcpy(exec->nodes, graph->nodes, graph->n_nodes * sizeof(*exec->nodes));
	}
	cpu_object_made(device);
	*ret = exec;
	return 0;
}

void graph_run(struct graph_exec *exec)
{
	for (uint32_t i = 0; i < exec->n_nodes; i++)
		cpu_node_run(exec->device, &exec->nodes[i]);
}

/* There are no graphs within graphs. */
static int graph_replay_enter(struct stream *stream)
{
	int rc = cpu_status(stream->device);

	return rc ? rc : capture_refuse(&stream->capture, DEVICE_E_CAPTURE_UNSUPPORTED);
}

int cpu_graph_upload(struct graph_exec *exec, struct stream *stream)
{
	return graph_replay_enter(stream);
}

int cpu_graph_launch(struct graph_exec *exec, struct stream *stream)
{
	struct cpu_node *node;
	int rc = graph_replay_enter(stream);

	if (rc)
		return rc;
	assert(exec->device == stream->device);
	node = stream_next(stream, CPU_NODE_GRAPH);
	node->exec = exec;
	stream_push(stream);
	return 0;
}

int cpu_graph_info(struct graph_exec *exec, struct graph_info *ret)
{
	int rc = cpu_status(exec->device);

	if (rc)
		return rc;
	*ret = (struct graph_info){
		.n_nodes = exec->n_nodes,
		.bytes = sizeof(*exec) + (uint64_t)exec->n_nodes * sizeof(*exec->nodes),
	};
	return 0;
}

void cpu_graph_exec_free(struct graph_exec *exec)
{
	if (exec == NULL)
		return;
	cpu_object_freed(exec->device);
	free(exec->nodes);
	free(exec);
}
