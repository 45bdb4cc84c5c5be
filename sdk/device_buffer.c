/* SPDX-License-Identifier: MIT */
/*
 * Device buffers and fences. The library knows no device: it passes handles on unchanged, and can map only
 * memfds.
 */
#include "sdk/device_buffer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "ipc/cleanup.h"
#include "ipc/clock.h"
#include "ipc/handle.h"
#include "sdk/call.h"
#include "sdk/client.h"
#include "sdk/versioned.h"

#define LIFE_NS 5000000 /* how often a waiter checks that the daemon lives */

struct device_buffer {
	uint32_t id;
	bool imported;
	struct mimeo_handle handle;
	void *memory; /* mapped, or NULL */
	struct device_buffer *prev, *next;
};

/* The handle in a reply takes the fd that came; false if they do not go together. */
static bool buffer_reply_handle(const struct msg_reply *reply, int *fd, struct mimeo_handle *ret)
{
	struct mimeo_handle handle;

	if (handle_decode(reply->handle, sizeof(reply->handle), &handle) != HANDLE_OK ||
		handle_has_fd(&handle) != (*fd >= 0))
		return false;
	handle.fd = STEAL_FD(*fd);
	*ret = handle;
	return true;
}

/* Close a buffer of the daemon that has no record here. */
static void buffer_disown(struct mimeo *m, uint32_t id)
{
	const struct msg_call msg = {.call = MSG_CALL_BUFFER_CLOSE, .buffer = id};
	CLEANUP(cleanup_close) int fd = -1;
	char why[sizeof(m->call_message)];
	struct msg_reply reply;

	memcpy(why, m->call_message, sizeof(why));
	call_daemon(m, &msg, -1, &reply, &fd, 1);
	memcpy(m->call_message, why, sizeof(why));
}

/* ---- buffers ---- */

/* NULL if it is not open; the message says so. */
static struct device_buffer *buffer_find(struct mimeo *m, uint32_t id)
{
	struct device_buffer *buffer;

	m->call_message[0] = '\0';
	DL_FOREACH (m->buffers, buffer) {
		if (buffer->id == id)
			return buffer;
	}
	snprintf(m->call_message, sizeof(m->call_message), "buffer %u is not open", id);
	return NULL;
}

/* The same, for a buffer that was allocated here. */
static struct device_buffer *buffer_find_own(struct mimeo *m, uint32_t id)
{
	struct device_buffer *buffer = buffer_find(m, id);

	if (!buffer || !buffer->imported)
		return buffer;
	snprintf(m->call_message, sizeof(m->call_message),
		"buffer %u was imported: its memory is the caller's own", id);
	return NULL;
}

static void buffer_free(struct mimeo *m, struct device_buffer *buffer)
{
	assert(m->buffers && (!buffer->memory || !buffer->imported));
	DL_DELETE(m->buffers, buffer);
	if (buffer->memory)
		munmap(buffer->memory, buffer->handle.bytes);
	if (!buffer->imported && buffer->handle.fd >= 0)
		close(buffer->handle.fd);
	free(buffer);
}

void device_buffers_deinit(struct mimeo *m)
{
	while (m->buffers)
		buffer_free(m, m->buffers);
	for (uint32_t i = 0; m->fences && i < m->region.ring.entries; i++) {
		if (m->fences[i].kind != 0 && m->fences[i].fd >= 0)
			close(m->fences[i].fd);
	}
	free(m->fences);
	m->fences = NULL;
}

/* Takes the buffer. 0, or GONE if the daemon gave no id. */
static int buffer_add(struct mimeo *m, struct device_buffer *buffer, uint32_t id, uint32_t *ret_id)
{
	buffer->id = id;
	DL_APPEND(m->buffers, buffer);
	if (id == 0) {
		buffer_free(m, buffer);
		return call_lose_daemon(m);
	}
	*ret_id = id;
	return 0;
}

int mimeo_buffer_alloc(struct mimeo *m, uint32_t kind, uint64_t bytes, uint32_t *ret_buffer)
{
	const struct msg_call msg = {
		.call = MSG_CALL_BUFFER_ALLOC, .kind = kind, .bytes = bytes};
	CLEANUP(cleanup_close) int fd = -1;
	struct msg_reply reply = {.buffer = 0};

	if (kind > MIMEO_HANDLE_CUDA_IPC)
		return call_refuse(m, MIMEO_E_INVALID, "an unknown kind of buffer");
	if (bytes == 0 || bytes > INT64_MAX || !ret_buffer)
		return call_refuse(m, MIMEO_E_INVALID,
			ret_buffer ? "an impossible size" : "nowhere to write the id");
	CLEANUP(cleanup_free) struct device_buffer *buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return call_refuse(m, MIMEO_E_NO_MEMORY, "out of this process's memory");
	int rc = call_daemon(m, &msg, -1, &reply, &fd, 1);
	if (rc == MIMEO_E_NO_MEMORY && reply.status == 0 && reply.buffer != 0)
		buffer_disown(m, reply.buffer);
	if (rc < 0)
		return rc;
	if (!buffer_reply_handle(&reply, &fd, &buffer->handle))
		return call_lose_daemon(m);
	return buffer_add(m, STEAL(buffer), reply.buffer, ret_buffer);
}

/* Why the handle is refused here, or NULL. The daemon checks whether its device has the kind, and the
 * uuid and opaque bytes of the kinds that only a device knows. */
static const char *buffer_import_refusal(const struct mimeo_handle *handle)
{
	enum handle_refusal refusal = handle_check(handle);

	if (handle->kind == MIMEO_HANDLE_DEFAULT)
		return "MIMEO_HANDLE_DEFAULT is for mimeo_buffer_alloc: an import says its kind";
	if (refusal != HANDLE_OK &&
		(handle->kind == MIMEO_HANDLE_MEMFD ||
			(refusal != HANDLE_UUID && refusal != HANDLE_OPAQUE)))
		return handle_refusal_text(refusal);
	if (handle->offset % MIMEO_PLACE_ALIGN != 0)
		return "the handle's offset is no multiple of 64";
	if (handle->kind == MIMEO_HANDLE_MEMFD && handle->fd < 0)
		return "the handle has no descriptor";
	if (handle->fd >= 0 && fcntl(handle->fd, F_GETFD) < 0)
		return "the handle's descriptor is not open";
	return NULL;
}

int mimeo_buffer_import(
	struct mimeo *m, const struct mimeo_handle *given, uint32_t *ret_buffer)
{
	struct msg_call msg = {.call = MSG_CALL_BUFFER_IMPORT};
	CLEANUP(cleanup_close) int fd = -1;
	struct mimeo_handle handle;
	struct msg_reply reply;

	if (!given || !ret_buffer ||
		!versioned_read(&handle, sizeof(handle), given, sizeof(handle)))
		return call_refuse(m, MIMEO_E_INVALID,
			"no handle, or not one that MIMEO_HANDLE_INIT began");
	const char *refusal = buffer_import_refusal(&handle);
	if (refusal)
		return call_refuse(m, MIMEO_E_INVALID, refusal);
	handle_encode(&handle, msg.handle);
	CLEANUP(cleanup_free) struct device_buffer *buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return call_refuse(m, MIMEO_E_NO_MEMORY, "out of this process's memory");
	int rc = call_daemon(m, &msg, handle.fd, &reply, &fd, 1);
	if (rc < 0)
		return rc;
	if (fd >= 0)
		return call_lose_daemon(m);
	buffer->imported = true;
	return buffer_add(m, STEAL(buffer), reply.buffer, ret_buffer);
}

int mimeo_buffer_handle(struct mimeo *m, uint32_t id, struct mimeo_handle *ret_handle)
{
	const struct device_buffer *buffer = buffer_find_own(m, id);

	if (!buffer)
		return MIMEO_E_UNKNOWN_BUFFER;
	if (!versioned_write(ret_handle, &buffer->handle, sizeof(buffer->handle)))
		return call_refuse(m, MIMEO_E_INVALID,
			"nowhere to write the handle, or not one that MIMEO_HANDLE_INIT began");
	return 0;
}

int mimeo_buffer_map(struct mimeo *m, uint32_t id, void **ret_memory)
{
	struct device_buffer *buffer = buffer_find_own(m, id);

	if (!buffer)
		return MIMEO_E_UNKNOWN_BUFFER;
	if (buffer->handle.kind != MIMEO_HANDLE_MEMFD)
		return call_refuse(m, MIMEO_E_UNSUPPORTED,
			"memory of a device: mimeo_cuda_map maps it");
	if (!buffer->memory) {
		void *memory = mmap(NULL, buffer->handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			buffer->handle.fd, (off_t)buffer->handle.offset);

		if (memory == MAP_FAILED)
			return call_refuse(m, MIMEO_E_NO_MEMORY,
				"the buffer cannot be mapped: no address space or memory");
		buffer->memory = memory;
	}
	*ret_memory = buffer->memory;
	return 0;
}

int mimeo_buffer_close(struct mimeo *m, uint32_t id)
{
	const struct msg_call msg = {.call = MSG_CALL_BUFFER_CLOSE, .buffer = id};
	struct device_buffer *buffer = buffer_find(m, id);
	CLEANUP(cleanup_close) int fd = -1;
	struct msg_reply reply;

	if (!buffer)
		return MIMEO_E_UNKNOWN_BUFFER;
	/* It takes effect behind what is in the ring. */
	if (m->committed && !m->gone)
		(void)request_flush(m);
	int rc = call_daemon(m, &msg, -1, &reply, &fd, 1);
	/* Without a daemon, release what is held here too. */
	if (rc == 0 || rc == MIMEO_E_GONE)
		buffer_free(m, buffer);
	return rc;
}

const char *mimeo_buffer_message(const struct mimeo *m)
{
	return m->call_message;
}

/* ---- fences ---- */

int mimeo_request_fence(struct mimeo_request *request, const struct mimeo_handle **ret_fence)
{
	struct msg_call msg = {.call = MSG_CALL_FENCE};
	CLEANUP(cleanup_close) int fd = -1;
	struct msg_reply reply;

	if (!request)
		return MIMEO_E_INVALID;
	struct mimeo *m = request->m;
	m->call_message[0] = '\0';
	if (!ret_fence ||
		(request->state != REQUEST_HELD && request->state != REQUEST_PREPARED))
		return call_refuse(m, MIMEO_E_INVALID,
			"the request was submitted or put back: ask for its fence before");
	if (!m->fences)
		m->fences = calloc(m->region.ring.entries, sizeof(*m->fences));
	if (!m->fences)
		return call_refuse(m, MIMEO_E_NO_MEMORY, "out of this process's memory");
	assert(request->index < m->region.ring.entries);
	struct mimeo_handle *fence = &m->fences[request->index];
	msg.request = request->index;
	if (fence->kind == 0) {
		int rc = call_daemon(m, &msg, -1, &reply, &fd, 1);

		if (rc < 0)
			return rc;
		if (!buffer_reply_handle(&reply, &fd, fence))
			return call_lose_daemon(m);
	}
	*ret_fence = fence;
	return 0;
}

/* The page of a memfd fence (see kernels/device.h); both counters wrap. */
struct page {
	uint32_t recorded, completed;
};

static bool buffer_daemon_lives(const struct mimeo *m)
{
	struct pollfd fds[CLIENT_WATCHED];

	client_watch(m, POLLRDHUP, fds);
	return !m->gone && poll(fds, CLIENT_WATCHED, 0) == 0;
}

static int buffer_wait_fence(struct mimeo *m, const struct page *page, uint64_t until)
{
	const struct timespec slice = {.tv_nsec = LIFE_NS};
	uint32_t target = __atomic_load_n(&page->recorded, __ATOMIC_SEQ_CST), seen;

	for (;;) {
		seen = __atomic_load_n(&page->completed, __ATOMIC_SEQ_CST);
		if ((int32_t)(seen - target) >= 0)
			return 1;
		if (clock_ns() >= until)
			return 0;
		if (!buffer_daemon_lives(m))
			return MIMEO_E_GONE;
		syscall(SYS_futex, &page->completed, FUTEX_WAIT, seen, &slice, NULL, 0);
	}
}

int mimeo_fence_wait(struct mimeo *m, const struct mimeo_handle *fence, int timeout_ms)
{
	const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);

	m->call_message[0] = '\0';
	if (!fence || fence->kind != MIMEO_HANDLE_MEMFD)
		return call_refuse(m, MIMEO_E_UNSUPPORTED,
			"a fence of a device: mimeo_cuda_fence_open makes an event of it");
	const struct page *page = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fence->fd, 0);
	if (page == MAP_FAILED)
		return call_refuse(m, MIMEO_E_NO_MEMORY,
			"the fence cannot be mapped: no address space or memory");
	int rc = buffer_wait_fence(m, page,
		timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * 1000000);
	munmap((void *)(uintptr_t)page, bytes);
	return rc;
}
