/* SPDX-License-Identifier: MIT */
/*
 * Memory and events between two processes with contexts of their own: here the device table, there
 * (this program again, with arguments) what <mimeo/mimeo-cuda.h> makes of the handles.
 */
#include "tests/kernels/cuda_fixture.h"

#include <signal.h>
#include <sys/socket.h>

#include <mimeo/mimeo-cuda.h>

#define TALK_FD CHILD_FD
#define BYTES (MIB + 4096)

/* ---- the other process ---- */

static int child_hear(void *data, size_t size)
{
	return recv(TALK_FD, data, size, MSG_WAITALL) == (ssize_t)size ? 0 : -1;
}

/* The handle, and its descriptor if it has one. */
static int child_handle(struct mimeo_handle *ret)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = ret, .iov_len = sizeof(*ret)};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *rights;

	if (recvmsg(TALK_FD, &message, MSG_WAITALL) != (ssize_t)sizeof(*ret))
		return -1;
	rights = CMSG_FIRSTHDR(&message);
	ret->fd = -1;
	if (rights != NULL)
		memcpy(&ret->fd, CMSG_DATA(rights), sizeof(int));
	return 0;
}

static void child_say(char what)
{
	(void)!send(TALK_FD, &what, 1, MSG_NOSIGNAL);
}

#define TRY(call)                                                                                  \
	do {                                                                                       \
		int error_ = (int)(call);                                                          \
		if (error_ != 0) {                                                                 \
			fprintf(stderr, "child: line %d: %d\n", __LINE__, error_);                 \
			return 2;                                                                  \
		}                                                                                  \
	} while (0)

/* Maps, sees zeroes, writes 0x5a over them. */
static int child_map(void)
{
	static uint8_t bytes[BYTES];
	struct mimeo_cuda_memory memory;
	struct mimeo_handle handle, wrong;

	TRY(child_handle(&handle));
	wrong = handle;
	wrong.uuid[7] ^= 1;
	if (mimeo_cuda_map(&wrong, &memory) != cudaErrorInvalidDevice)
		return 3;
	TRY(mimeo_cuda_map(&handle, &memory));
	TRY(cudaMemcpy(bytes, memory.address, handle.bytes, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < handle.bytes; i++) {
		if (bytes[i] != 0)
			return 4;
	}
	TRY(cudaMemset(memory.address, 0x5a, handle.bytes));
	TRY(cudaDeviceSynchronize());
	TRY(mimeo_cuda_unmap(&memory));
	child_say('m');
	return 0;
}

/* Its stream waits for the event, then reads the memory: not before the other side's gate opens. */
static int child_wait(void)
{
	struct mimeo_cuda_memory memory;
	struct mimeo_handle handle, fence;
	cudaStream_t stream;
	cudaEvent_t event;
	uint8_t *bytes, go;

	TRY(child_handle(&handle));
	TRY(child_handle(&fence));
	TRY(mimeo_cuda_map(&handle, &memory));
	TRY(mimeo_cuda_fence_open(&fence, &event));
	TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	TRY(cudaHostAlloc((void **)&bytes, 64, cudaHostAllocDefault));
	memset(bytes, 1, 64);
	/* Not recorded: nothing to wait for. */
	TRY(cudaStreamWaitEvent(stream, event, 0));
	TRY(cudaStreamSynchronize(stream));
	child_say('r');
	TRY(child_hear(&go, 1)); /* recorded */
	TRY(cudaStreamWaitEvent(stream, event, 0));
	TRY(cudaMemcpyAsync(bytes, memory.address, 64, cudaMemcpyDeviceToHost, stream));
	for (int i = 0; i < 50; i++) {
		if (cudaStreamQuery(stream) != cudaErrorNotReady || bytes[0] != 1)
			return 5;
		usleep(1000);
	}
	child_say('w');
	TRY(cudaStreamSynchronize(stream));
	for (int i = 0; i < 64; i++) {
		if (bytes[i] != 7)
			return 6;
	}
	TRY(cudaEventDestroy(event));
	TRY(mimeo_cuda_unmap(&memory));
	return 0;
}

/* Allocates, fills with 9, exports, and stays until it hears from its parent (or is killed). */
static int child_export(const char *kind, const char *offset_text)
{
	const size_t offset = (size_t)atol(offset_text);
	struct mimeo_cuda_memory memory;
	struct mimeo_handle handle;
	uint8_t *block, go;

	if (strcmp(kind, "fd") == 0) {
		TRY(mimeo_cuda_alloc(BYTES, &memory, &handle));
		block = memory.address;
	} else {
		TRY(cudaMalloc((void **)&block, offset + BYTES));
		TRY(mimeo_cuda_export(block + offset, BYTES, &handle));
		block += offset;
	}
	TRY(cudaMemset(block, 9, BYTES));
	TRY(cudaDeviceSynchronize());
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = &handle, .iov_len = sizeof(handle)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (handle.fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &handle.fd, sizeof(int));
	}
	if (sendmsg(TALK_FD, &message, 0) != (ssize_t)sizeof(handle))
		return 7;
	child_hear(&go, 1);
	return 0;
}

/* ---- this one ---- */

struct child {
	pid_t pid;
	int fd;
};

static struct child child_start(const char *what, const char *a, const char *b)
{
	extern char **environ;
	char *argv[] = {"child", (char *)(uintptr_t)what, (char *)(uintptr_t)a,
		(char *)(uintptr_t)b, NULL};
	posix_spawn_file_actions_t actions;
	struct child child;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], TALK_FD);
	assert_int_equal(
		posix_spawn(&child.pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	child.fd = ends[0];
	return child;
}

static int child_end(struct child *child)
{
	int status = -1;

	close(child->fd);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The next thing that the child says; 0: it ended. */
static char hear(const struct child *child)
{
	char what = 0;

	(void)!recv(child->fd, &what, 1, 0);
	return what;
}

static void say(const struct child *child)
{
	assert_int_equal(send(child->fd, "g", 1, MSG_NOSIGNAL), 1);
}

/* Give the device's handle away as the library would. */
static void give(struct fixture *f, const struct child *child, const struct device_handle *from,
	uint32_t kind, uint64_t bytes)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	struct device_info info;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = &handle, .iov_len = sizeof(handle)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	assert_int_equal(f->ops->info(f->device, &info), 0);
	handle.kind = kind;
	handle.bytes = bytes;
	memcpy(handle.uuid, info.uuid, sizeof(handle.uuid));
	if (kind == MIMEO_HANDLE_CUDA_IPC)
		memcpy(handle.opaque, from->bytes, sizeof(handle.opaque));
	if (from->fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &from->fd, sizeof(int));
	}
	assert_int_equal(sendmsg(child->fd, &message, 0), sizeof(handle));
}

static void assert_byte(struct fixture *f, const void *memory, size_t at, uint8_t expected)
{
	uint8_t byte = (uint8_t)~expected;

	assert_int_equal(f->ops->copy(f->device, &byte, (const uint8_t *)memory + at, 1), 0);
	assert_int_equal(byte, expected);
}

static void test_memory_by_descriptor_is_mapped_by_the_header(void **state)
{
	struct fixture *f = *state;
	struct child child = child_start("map", NULL, NULL);
	struct device_handle handle;
	void *memory;

	assert_int_equal(f->ops->lock(f->device), 0);
	assert_int_equal(f->ops->export_alloc(f->device, BYTES, &memory, &handle), 0);
	give(f, &child, &handle, MIMEO_HANDLE_VMM_FD, BYTES);
	close(handle.fd);
	assert_int_equal(hear(&child), 'm');
	assert_byte(f, memory, 0, 0x5a);
	assert_byte(f, memory, BYTES - 1, 0x5a);
	assert_int_equal(child_end(&child), 0);
	f->ops->export_free(f->device, memory);
}

static void test_memory_by_cuda_ipc_is_a_zeroed_block_of_its_own(void **state)
{
	struct fixture *f = *state;
	struct child child = child_start("map", NULL, NULL);
	struct device_handle handle, neighbour;
	void *memory, *other;

	assert_int_equal(f->ops->lock(f->device), 0);
	assert_int_equal(f->ops->export_ipc_alloc(f->device, BYTES, &memory, &handle), 0);
	assert_int_equal(handle.fd, -1);
	assert_int_equal(handle.size, BYTES);
	assert_int_equal(f->ops->export_ipc_alloc(f->device, 1, &other, &neighbour), 0);
	assert_int_equal((uintptr_t)memory % (2 * MIB), 0);
	assert_int_equal((uintptr_t)other % (2 * MIB), 0);
	assert_true((char *)other >= (char *)memory + 2 * MIB ||
		(char *)memory >= (char *)other + 2 * MIB);
	assert_byte(f, memory, 2 * MIB - 1, 0);
	give(f, &child, &handle, MIMEO_HANDLE_CUDA_IPC, BYTES);
	assert_int_equal(hear(&child), 'm');
	assert_byte(f, memory, 0, 0x5a);
	assert_byte(f, memory, BYTES - 1, 0x5a);
	assert_byte(f, memory, BYTES, 0);
	assert_int_equal(child_end(&child), 0);
	f->ops->export_ipc_free(f->device, other);
	f->ops->export_ipc_free(f->device, memory);
	assert_int_equal(f->ops->status(f->device), 0);
}

static void test_other_process_s_stream_waits_for_a_lane_that_is_late(void **state)
{
	struct fixture *f = *state;
	struct child child = child_start("wait", NULL, NULL);
	struct device_handle handle, fence;
	struct event *event;
	void *memory;

	assert_int_equal(f->ops->export_alloc(f->device, BYTES, &memory, &handle), 0);
	assert_int_equal(f->ops->event_new_shared(f->device, &event, &fence), 0);
	give(f, &child, &handle, MIMEO_HANDLE_VMM_FD, BYTES);
	give(f, &child, &fence, MIMEO_HANDLE_CUDA_IPC, sizeof(struct event_page));
	close(handle.fd);
	assert_int_equal(hear(&child), 'r');
	gate_close(f, f->stream);
	assert_int_equal(f->ops->fill_async(f->stream, memory, 7, BYTES), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	say(&child);
	assert_int_equal(hear(&child), 'w');
	assert_int_equal(f->ops->event_query(event), DEVICE_E_NOT_READY);
	gates_open(f);
	assert_int_equal(f->ops->event_sync(event), 0);
	assert_int_equal(child_end(&child), 0);
	f->ops->event_free(event);
	f->ops->export_free(f->device, memory);
}

static void test_capture_refuses_to_record_a_shared_event_and_is_spoilt(void **state)
{
	struct fixture *f = *state;
	struct device_handle fence;
	struct graph *graph = NULL;
	struct event *event;

	assert_int_equal(f->ops->event_new_shared(f->device, &event, &fence), 0);
	assert_int_equal(fence.fd, -1);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), DEVICE_E_CAPTURE_UNSUPPORTED);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	assert_null(graph);
	f->ops->event_free(event);
}

/* What the child exports, as the daemon imports it. */
static struct mimeo_handle take(const struct child *child, int *ret_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct mimeo_handle handle;
	struct iovec part = {.iov_base = &handle, .iov_len = sizeof(handle)};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *rights;

	assert_int_equal(recvmsg(child->fd, &message, MSG_CMSG_CLOEXEC), sizeof(handle));
	rights = CMSG_FIRSTHDR(&message);
	*ret_fd = -1;
	if (rights != NULL)
		memcpy(ret_fd, CMSG_DATA(rights), sizeof(int));
	return handle;
}

static void import_of(struct fixture *f, const struct mimeo_handle *handle, int fd, void **ret)
{
	struct device_handle own = {.fd = -1, .size = handle->offset + handle->bytes};

	if (fd >= 0)
		assert_int_equal(
			f->ops->handle_of_fd(f->device, fd, own.size, &own), 0);
	else
		memcpy(own.bytes, handle->opaque, sizeof(own.bytes));
	assert_int_equal(f->ops->import(f->device, &own, ret), 0);
}

static void test_memory_of_a_client_is_imported_at_its_offset(void **state)
{
	struct fixture *f = *state;

	for (int ipc = 0; ipc < 2; ipc++) {
		struct child child = child_start("export", ipc ? "ipc" : "fd", ipc ? "69632" : "0");
		int fd;
		struct mimeo_handle handle = take(&child, &fd);
		void *memory;

		assert_int_equal(handle.kind, ipc ? MIMEO_HANDLE_CUDA_IPC : MIMEO_HANDLE_VMM_FD);
		assert_int_equal(handle.offset, ipc ? 69632 : 0);
		import_of(f, &handle, fd, &memory);
		assert_true(f->ops->import_bytes(f->device, memory) >= handle.offset + BYTES);
		assert_byte(f, memory, handle.offset, 9);
		assert_byte(f, memory, handle.offset + BYTES - 1, 9);
		say(&child);
		assert_int_equal(child_end(&child), 0);
		if (fd >= 0)
			close(fd);
		f->ops->import_free(f->device, memory);
		assert_int_equal(f->ops->status(f->device), 0);
	}
}

/* The driver maps an allocation from its start to its end, or not at all. */
static void test_descriptor_s_memory_is_imported_as_a_whole(void **state)
{
	struct fixture *f = *state;
	struct device_handle made, part;
	void *memory, *again;

	assert_int_equal(f->ops->export_alloc(f->device, 6 * MIB, &memory, &made), 0);
	assert_int_equal(f->ops->handle_of_fd(f->device, made.fd, 6 * MIB - 5, &part), 0);
	assert_int_equal(f->ops->import(f->device, &part, &again), 0);
	assert_int_equal(f->ops->import_bytes(f->device, again), 6 * MIB);
	assert_int_equal(f->ops->import_bytes(f->device, memory), 0);
	assert_byte(f, again, 6 * MIB - 1, 0);
	f->ops->import_free(f->device, again);
	assert_int_equal(f->ops->handle_of_fd(f->device, made.fd, MIB, &part), 0);
	assert_int_equal(f->ops->import(f->device, &part, &again), DEVICE_E_INVALID);
	assert_int_equal(f->ops->handle_of_fd(f->device, made.fd, 64 * MIB, &part), 0);
	assert_int_equal(f->ops->import(f->device, &part, &again), DEVICE_E_INVALID);
	assert_int_equal(f->ops->status(f->device), 0);
	close(made.fd);
	f->ops->export_free(f->device, memory);
}

/* Its owner is killed while our stream reads what it exported: the work ends, the device lives. */
static void test_owner_killed_while_the_device_reads_its_memory(void **state)
{
	struct fixture *f = *state;

	for (int ipc = 0; ipc < 2; ipc++) {
		struct child child = child_start("export", ipc ? "ipc" : "fd", "0");
		int fd;
		struct mimeo_handle handle = take(&child, &fd);
		void *memory, *own;

		import_of(f, &handle, fd, &memory);
		assert_int_equal(f->ops->mem_alloc(f->device, BYTES, &own), 0);
		for (int i = 0; i < 2000; i++)
			assert_int_equal(f->ops->copy_async(f->stream, own, memory, BYTES), 0);
		kill(child.pid, SIGKILL);
		assert_int_equal(child_end(&child), -1);
		assert_int_equal(f->ops->copy_async(f->stream, own, memory, BYTES), 0);
		assert_int_equal(f->ops->stream_sync(f->stream), 0);
		assert_byte(f, own, BYTES - 1, 9);
		if (fd >= 0)
			close(fd);
		f->ops->import_free(f->device, memory);
		f->ops->mem_free(f->device, own);
		assert_int_equal(f->ops->status(f->device), 0);
	}
}

static int child_main(char **argv)
{
	alarm(60); /* one that waits for what never comes fails, and does not hang its parent */
	if (strcmp(argv[1], "map") == 0)
		return child_map();
	if (strcmp(argv[1], "wait") == 0)
		return child_wait();
	if (strcmp(argv[1], "export") == 0 && argv[2] != NULL && argv[3] != NULL)
		return child_export(argv[2], argv[3]);
	return 1;
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_memory_by_descriptor_is_mapped_by_the_header),
		ON_DEVICE(test_memory_by_cuda_ipc_is_a_zeroed_block_of_its_own),
		ON_DEVICE(test_other_process_s_stream_waits_for_a_lane_that_is_late),
		ON_DEVICE(test_capture_refuses_to_record_a_shared_event_and_is_spoilt),
		ON_DEVICE(test_memory_of_a_client_is_imported_at_its_offset),
		ON_DEVICE(test_descriptor_s_memory_is_imported_as_a_whole),
		ON_DEVICE(test_owner_killed_while_the_device_reads_its_memory),
	};

	if (argc > 1)
		return child_main(argv);
	if (no_cuda())
		return 0;
	return cmocka_run_group_tests_name("cuda_share", tests, NULL, NULL);
}
