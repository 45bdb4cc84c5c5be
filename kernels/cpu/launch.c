/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- launching ---- */

static int launch_grow_workspace(struct stream *stream, size_t bytes)
{
	void *memory;
	int rc;

	if (posix_memalign(&memory, 256, bytes) != 0)
		return DEVICE_E_MEMORY;
	memset(memory, 0xff, bytes);
	rc = workspace_push(&stream->workspaces, memory, bytes);
	if (rc)
		free(memory);
	return rc;
}

int cpu_stream_match(struct stream *stream, const struct stream *like)
{
	const size_t bytes = workspace_bytes(like->workspaces);
	int rc = cpu_enter_growth(stream->device);

	if (rc || bytes <= workspace_bytes(stream->workspaces))
		return rc;
	return launch_grow_workspace(stream, bytes);
}

int cpu_launch(struct stream *stream, const struct cpu_op *op, const void *args, size_t bytes,
	size_t ws_bytes)
{
	struct cpu_device *device = stream->device;
	const bool capturing = capture_is_on(&stream->capture);
	struct cpu_node *node;
	int rc = cpu_stream_enter(stream);

	if (rc)
		return rc;
	if (bytes > CPU_ARGS_MAX)
		return -EINVAL;
	if (!loaded_has(&device->loaded, op)) {
		rc = cpu_enter_growth(device);
		if (rc)
			return rc;
		rc = loaded_add(&device->loaded, op);
		if (rc)
			return rc;
	}
	if (ws_bytes > workspace_bytes(stream->workspaces)) {
		rc = cpu_enter_growth(device);
		if (rc)
			return rc;
		rc = launch_grow_workspace(stream, ws_bytes);
		if (rc)
			return rc;
	}
	if (stream->dry && !capturing)
		return 0;
	node = capturing ? graph_record(stream) : stream_next(stream, CPU_NODE_OP);
	if (node == NULL)
		return -ENOMEM;
	assert(ws_bytes <= workspace_bytes(stream->workspaces) && node->kind == CPU_NODE_OP);
	node->op = op;
	node->workspace = workspace_memory(stream->workspaces);
	if (bytes != 0)
		memcpy(node->args, args, bytes);
	if (!capturing)
		stream_push(stream);
	return 0;
}

/* ---- copies and fills ---- */

struct copy_args {
	void *dst;
	const void *src;
	size_t bytes;
};

static void launch_copy(const void *args, void *workspace)
{
	const struct copy_args *copy = args;

	memcpy(copy->dst, copy->src, copy->bytes);
}

struct fill_args {
	void *dst;
	size_t bytes;
	uint8_t value;
};

static void launch_fill(const void *args, void *workspace)
{
	const struct fill_args *fill = args;

	memset(fill->dst, fill->value, fill->bytes);
}

static const struct cpu_op copy_op = {.name = "copy", .run = launch_copy};
static const struct cpu_op fill_op = {.name = "fill", .run = launch_fill};

void cpu_load_own(struct cpu_device *device)
{
	int rc = loaded_add(&device->loaded, &copy_op);

	assert(rc == 0);
	rc = loaded_add(&device->loaded, &fill_op);
	assert(rc == 0); /* the set was empty */
}

int cpu_copy_async(struct stream *stream, void *dst, const void *src, size_t bytes)
{
	const struct copy_args args = {.dst = dst, .src = src, .bytes = bytes};

	if (bytes == 0)
		return cpu_stream_enter(stream);
	if (dst == NULL || src == NULL)
		return DEVICE_E_INVALID;
	return cpu_launch(stream, &copy_op, &args, sizeof(args), 0);
}

int cpu_fill_async(struct stream *stream, void *dst, uint8_t value, size_t bytes)
{
	const struct fill_args args = {.dst = dst, .bytes = bytes, .value = value};

	if (bytes == 0)
		return cpu_stream_enter(stream);
	if (dst == NULL)
		return DEVICE_E_INVALID;
	return cpu_launch(stream, &fill_op, &args, sizeof(args), 0);
}

int cpu_copy(struct device *base, void *dst, const void *src, size_t bytes)
{
	struct cpu_device *device = cpu_device(base);
	int rc = cpu_status(device);

	if (rc)
		return rc;
	rc = cpu_refuse_capture(device, DEVICE_E_CAPTURE_IMPLICIT);
	if (rc || bytes == 0)
		return rc;
	if (dst == NULL || src == NULL)
		return DEVICE_E_INVALID;
	memcpy(dst, src, bytes);
	return 0;
}
