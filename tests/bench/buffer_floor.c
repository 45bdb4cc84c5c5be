/* SPDX-License-Identifier: MIT */
/*
 * What the same memory costs without a daemon: the device makes it and gives it back in this
 * process, and a message goes to another process and comes back, with a descriptor where the call
 * passes one.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/bench/probe.h"
#include "daemon/bench/report.h"
#include "ipc/socket.h"

#define MESSAGE_BYTES 128u /* about as long as calls and replies with a handle are */
#define REPLY_MS 5000u

struct made {
	void *memory;
	struct device_handle handle;
};

/* ---- the other process ---- */

/* Answers; what asks with a 1 gets a descriptor. */
static int echo(void *arg, int fd)
{
	const struct buffer_floor *floor = arg;
	uint8_t message[MESSAGE_BYTES];
	int memory = buffer_memfd(BUFFER_SMALLEST), came;
	size_t n;

	(void)fd;
	close(floor->ends[0]);
	if (memory < 0)
		return 1;
	for (;;) {
		came = -1;
		ssize_t size = socket_receive(
			floor->ends[1], message, sizeof(message), &came, 1, &n, UINT32_MAX / 2);
		if (size < 0)
			return 0;
		if (n > 0)
			close(came);
		if (socket_send(floor->ends[1], message, sizeof(message), &memory, message[0]) < 0)
			return 0;
	}
}

static int round_trip(const struct buffer_floor *floor, int fd, bool wants_fd)
{
	uint8_t message[MESSAGE_BYTES] = {wants_fd};
	int came = -1;
	size_t n = 0;

	int r = socket_send(floor->ends[0], message, sizeof(message), &fd, fd >= 0);
	if (r < 0)
		return r;
	ssize_t size =
		socket_receive(floor->ends[0], message, sizeof(message), &came, 1, &n, REPLY_MS);
	if (size >= 0 && n > 0)
		close(came);
	return size < 0 ? (int)size : 0;
}

/* ---- the device ---- */

static int make(
	struct device *device, enum buffer_way way, uint64_t bytes, int fd, struct made *ret)
{
	const struct device_ops *ops = device->ops;

	ret->handle.fd = -1;
	if (way == BUFFER_CUDA_IPC)
		return ops->export_ipc_alloc(device, bytes, &ret->memory, &ret->handle);
	if (way != BUFFER_IMPORT)
		return ops->export_alloc(device, bytes, &ret->memory, &ret->handle);
	int rc = ops->handle_of_fd(device, fd, bytes, &ret->handle);
	return rc ? rc : ops->import(device, &ret->handle, &ret->memory);
}

static void give_back(struct device *device, enum buffer_way way, struct made *made)
{
	if (way == BUFFER_CUDA_IPC)
		device->ops->export_ipc_free(device, made->memory);
	else if (way == BUFFER_IMPORT)
		device->ops->import_free(device, made->memory);
	else
		device->ops->export_free(device, made->memory);
	if (way != BUFFER_IMPORT && made->handle.fd >= 0)
		close(made->handle.fd);
}

int buffer_floor_once(const struct buffer_floor *floor, enum buffer_way way, uint64_t bytes,
	struct buffer_calls *ret)
{
	struct made made = {0};
	int fd = way == BUFFER_IMPORT ? buffer_memfd(bytes) : -1;

	if (way == BUFFER_IMPORT && fd < 0)
		return fd;
	uint64_t start = stats_now();
	int rc = make(floor->device, way, bytes, fd, &made);
	if (!rc)
		rc = round_trip(floor, fd, way == BUFFER_MEMFD || way == BUFFER_VMM_FD);
	if (!rc)
		samples_add(ret->make, stats_now() - start);
	if (fd >= 0)
		close(fd);
	start = stats_now();
	if (made.memory)
		give_back(floor->device, way, &made);
	if (!rc)
		rc = round_trip(floor, -1, false);
	if (!rc)
		samples_add(ret->close, stats_now() - start);
	return rc;
}

/* ---- its life ---- */

int buffer_floor_start(struct buffer_floor *ret)
{
	*ret = (struct buffer_floor){.ends = {-1, -1}};
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ret->ends) < 0)
		return -errno;
	return child_start(&ret->partner, echo, ret);
}

int buffer_floor_open(struct buffer_floor *floor, const char *device)
{
	struct device_info info;
	char why[256] = "";
	int rc = probe_device(device, &floor->device, &info, why, sizeof(why));

	close(floor->ends[1]);
	floor->ends[1] = -1;
	report_outcome("the floor", rc, why);
	return rc;
}

void buffer_floor_close(struct buffer_floor *floor)
{
	if (floor->device)
		floor->device->ops->free(floor->device);
	floor->device = NULL;
}

void buffer_floor_stop(struct buffer_floor *floor)
{
	child_kill(&floor->partner);
	for (uint32_t i = 0; i < 2; i++) {
		if (floor->ends[i] >= 0)
			close(floor->ends[i]);
	}
}
