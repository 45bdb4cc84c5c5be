/* SPDX-License-Identifier: MIT */
/*
 * Device buffers and fences: calls on the socket, one at a time; each waits for its reply. The library
 * knows no device: it passes handles on unchanged, and can map only memfds.
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
#include "ipc/socket.h"
#include "sdk/client.h"
#include "sdk/versioned.h"

#define REPLY_MS 5000u        /* for the rest of a reply that has begun */
#define LIFE_NS 5000000       /* how often a waiter checks that the daemon lives */

struct device_buffer {
	uint32_t id;
	bool imported;
	struct mimeo_handle handle;
	void *memory; /* mapped, or NULL */
	struct device_buffer *prev, *next;
};

/* Keep the sentence for mimeo_buffer_message. */
static int buffer_refuse(struct mimeo *m, int status, const char *text)
{
	snprintf(m->buffer_message, sizeof(m->buffer_message), "%s", text);
	return status;
}

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

/* Wait until the socket has something, or the daemon is dead. */
static bool buffer_await_reply(const struct mimeo *m)
{
	struct pollfd fds[CLIENT_WATCHED];

	client_watch(m, POLLIN, fds);
	while (poll(fds, CLIENT_WATCHED, -1) < 0) {
		if (errno != EINTR)
			return false;
	}
	return fds[0].revents & POLLIN;
}

/* The daemon is dead, or its replies break the protocol. */
static int buffer_lose_daemon(struct mimeo *m)
{
	m->gone = true;
	return MIMEO_E_GONE;
}

/* The status of a send that failed because of the descriptor, which the kernel refuses before it sends any
 * byte; else 0. */
static int buffer_send_status(struct mimeo *m, int error)
{
	if (error == -EBADF || error == -EINVAL)
		return buffer_refuse(m, MIMEO_E_INVALID, "the handle's descriptor cannot be sent");
	/* SO_PASSRIGHTS is off. */
	if (error == -EPERM)
		return buffer_refuse(m, MIMEO_E_DENIED,
			"the daemon accepts no descriptors from clients: see allow_client_ipc");
	if (error == -ETOOMANYREFS)
		return buffer_refuse(m, MIMEO_E_NO_MEMORY,
			"too many descriptors of this user are in flight");
	return 0;
}

/* One call and its reply. 0 and the descriptor that came, -1 if none did; or a status. */
static int buffer_call(struct mimeo *m, const struct msg_call *msg, int fd, struct msg_reply *ret,
	int *ret_fd)
{
	CLEANUP(cleanup_close) int received = -1;
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_detail detail;
	size_t n_fds = 0;
	int n = msg_call_encode(msg, bytes, sizeof(bytes));

	m->buffer_message[0] = '\0';
	if (m->gone)
		return MIMEO_E_GONE;
	if (n < 0)
		return buffer_refuse(m, MIMEO_E_INVALID, "a value out of range");
	int rc = socket_send(m->socket, bytes, (size_t)n, &fd, fd >= 0);
	int status = fd >= 0 ? buffer_send_status(m, rc) : 0;
	if (status < 0)
		return status;
	if (rc < 0 || !buffer_await_reply(m))
		return buffer_lose_daemon(m);
	ssize_t size = socket_receive(
		m->socket, bytes, sizeof(bytes), &received, 1, &n_fds, REPLY_MS);
	if (size < 0)
		return buffer_lose_daemon(m);
	if (msg_reply_decode(m->codec, bytes, (size_t)size, ret, &detail) < 0)
		return buffer_lose_daemon(m);
	if (ret->status < 0) {
		memcpy(m->buffer_message, ret->text, sizeof(m->buffer_message));
		return ret->status;
	}
	if (received == -EMFILE)
		return buffer_refuse(m, MIMEO_E_NO_MEMORY, "this process has no descriptor left");
	assert(received >= -1 && (received < 0) == (n_fds == 0));
	*ret_fd = STEAL_FD(received);
	return 0;
}

/* Close a buffer of the daemon that has no record here. */
static void buffer_disown(struct mimeo *m, uint32_t id)
{
	const struct msg_call msg = {.call = MSG_CALL_BUFFER_CLOSE, .buffer = id};
	CLEANUP(cleanup_close) int fd = -1;
	char why[sizeof(m->buffer_message)];
	struct msg_reply reply;

	memcpy(why, m->buffer_message, sizeof(why));
	buffer_call(m, &msg, -1, &reply, &fd);
	memcpy(m->buffer_message, why, sizeof(why));
}

/* ---- buffers ---- */

/* Or NULL, and the message says so. */
static struct device_buffer *buffer_find(struct mimeo *m, uint32_t id)
{
	struct device_buffer *buffer;

	m->buffer_message[0] = '\0';
	DL_FOREACH (m->buffers, buffer) {
		if (buffer->id == id)
			return buffer;
	}
	snprintf(m->buffer_message, sizeof(m->buffer_message), "buffer %u is not open", id);
	return NULL;
}

/* The same, for a buffer that was allocated here. */
static struct device_buffer *buffer_find_own(struct mimeo *m, uint32_t id)
{
	struct device_buffer *buffer = buffer_find(m, id);

	if (!buffer || !buffer->imported)
		return buffer;
	snprintf(m->buffer_message, sizeof(m->buffer_message),
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
		return buffer_lose_daemon(m);
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
		return buffer_refuse(m, MIMEO_E_INVALID, "an unknown kind of buffer");
	if (bytes == 0 || bytes > INT64_MAX || !ret_buffer)
		return buffer_refuse(m, MIMEO_E_INVALID,
			ret_buffer ? "an impossible size" : "nowhere to write the id");
	CLEANUP(cleanup_free) struct device_buffer *buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return buffer_refuse(m, MIMEO_E_NO_MEMORY, "out of this process's memory");
	int rc = buffer_call(m, &msg, -1, &reply, &fd);
	if (rc == MIMEO_E_NO_MEMORY && reply.status == 0 && reply.buffer != 0)
		buffer_disown(m, reply.buffer);
	if (rc < 0)
		return rc;
	if (!buffer_reply_handle(&reply, &fd, &buffer->handle))
		return buffer_lose_daemon(m);
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
		return buffer_refuse(m, MIMEO_E_INVALID,
			"no handle, or not one that MIMEO_HANDLE_INIT began");
	const char *refusal = buffer_import_refusal(&handle);
	if (refusal)
		return buffer_refuse(m, MIMEO_E_INVALID, refusal);
	handle_encode(&handle, msg.handle);
	CLEANUP(cleanup_free) struct device_buffer *buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return buffer_refuse(m, MIMEO_E_NO_MEMORY, "out of this process's memory");
	int rc = buffer_call(m, &msg, handle.fd, &reply, &fd);
	if (rc < 0)
		return rc;
	if (fd >= 0)
		return buffer_lose_daemon(m);
	buffer->imported = true;
	return buffer_add(m, STEAL(buffer), reply.buffer, ret_buffer);
}

int mimeo_buffer_handle(struct mimeo *m, uint32_t id, struct mimeo_handle *ret_handle)
{
	const struct device_buffer *buffer = buffer_find_own(m, id);

	if (!buffer)
		return MIMEO_E_UNKNOWN_BUFFER;
	if (!versioned_write(ret_handle, &buffer->handle, sizeof(buffer->handle)))
		return buffer_refuse(m, MIMEO_E_INVALID,
			"nowhere to write the handle, or not one that MIMEO_HANDLE_INIT began");
	return 0;
}

int mimeo_buffer_map(struct mimeo *m, uint32_t id, void **ret_memory)
{
	struct device_buffer *buffer = buffer_find_own(m, id);

	if (!buffer)
		return MIMEO_E_UNKNOWN_BUFFER;
	if (buffer->handle.kind != MIMEO_HANDLE_MEMFD)
		return buffer_refuse(m, MIMEO_E_UNSUPPORTED,
			"memory of a device: mimeo_cuda_map maps it");
	if (!buffer->memory) {
		void *memory = mmap(NULL, buffer->handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			buffer->handle.fd, (off_t)buffer->handle.offset);

		if (memory == MAP_FAILED)
			return buffer_refuse(m, MIMEO_E_NO_MEMORY,
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
	int rc = buffer_call(m, &msg, -1, &reply, &fd);
	/* Without a daemon, release what is held here too. */
	if (rc == 0 || rc == MIMEO_E_GONE)
		buffer_free(m, buffer);
	return rc;
}

const char *mimeo_buffer_message(const struct mimeo *m)
{
	return m->buffer_message;
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
	m->buffer_message[0] = '\0';
	if (!ret_fence ||
		(request->state != REQUEST_HELD && request->state != REQUEST_PREPARED))
		return buffer_refuse(m, MIMEO_E_INVALID,
			"the request was submitted or put back: ask for its fence before");
	if (!m->fences)
		m->fences = calloc(m->region.ring.entries, sizeof(*m->fences));
	if (!m->fences)
		return buffer_refuse(m, MIMEO_E_NO_MEMORY, "out of this process's memory");
	assert(request->index < m->region.ring.entries);
	struct mimeo_handle *fence = &m->fences[request->index];
	msg.request = request->index;
	if (fence->kind == 0) {
		int rc = buffer_call(m, &msg, -1, &reply, &fd);

		if (rc < 0)
			return rc;
		if (!buffer_reply_handle(&reply, &fd, fence))
			return buffer_lose_daemon(m);
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

	m->buffer_message[0] = '\0';
	if (!fence || fence->kind != MIMEO_HANDLE_MEMFD)
		return buffer_refuse(m, MIMEO_E_UNSUPPORTED,
			"a fence of a device: mimeo_cuda_fence_open makes an event of it");
	const struct page *page = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fence->fd, 0);
	if (page == MAP_FAILED)
		return buffer_refuse(m, MIMEO_E_NO_MEMORY,
			"the fence cannot be mapped: no address space or memory");
	int rc = buffer_wait_fence(m, page,
		timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * 1000000);
	munmap((void *)(uintptr_t)page, bytes);
	return rc;
}
