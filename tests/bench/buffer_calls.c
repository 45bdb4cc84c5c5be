/* SPDX-License-Identifier: MIT */
/*
 * Allocating, importing and closing a buffer, as a client sees it: a call on the socket and its
 * reply. A close is answered when no request can name the buffer any more; the memory goes back
 * behind it, in the daemon's builder. The floor is the same memory without a daemon: the device makes
 * it and gives it back in this process.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/bench/probe.h"

#define BACK_NS 5000000000ull /* for what was closed to come back */
#define PAUSE_NS 1000000
#define FLOOR "of calls: the same memory made or given back by the device in one process, by turns"

/* How a buffer is made; IMPORT is a memfd of the client's own. */
enum way { MEMFD, IMPORT, VMM_FD, CUDA_IPC, N_WAYS };

static const struct {
	const char *make, *close;
	uint32_t kind;
} ways[N_WAYS] = {
	[MEMFD] = {"allocate memfd", "close memfd", MIMEO_HANDLE_MEMFD},
	[IMPORT] = {"import memfd", "close imported memfd", MIMEO_HANDLE_MEMFD},
	[VMM_FD] = {"allocate VMM fd", "close VMM fd", MIMEO_HANDLE_VMM_FD},
	[CUDA_IPC] = {"allocate CUDA IPC", "close CUDA IPC", MIMEO_HANDLE_CUDA_IPC},
};

static const struct {
	const char *name;
	uint64_t bytes;
} sizes[] = {{"4 KiB", 4096}, {"2 MiB", 2u << 20}, {"64 MiB", 64u << 20}};

enum call { MAKE, CLOSE, FLOOR_MAKE, FLOOR_CLOSE, N_CALLS };

struct calls {
	const struct buffer_bench *bench;
	struct device *device;
	struct samples *samples[N_CALLS]; /* of a way and a size */
};

/* A memfd as mimeo_buffer_import needs it; the caller's; -errno. */
static int calls_memfd(uint64_t bytes)
{
	CLEANUP(cleanup_close) int fd = memfd_create("mimeo-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	return STEAL_FD(fd);
}

/* ---- the floor ---- */

static int floor_make(const struct calls *calls, enum way way, uint64_t bytes, int fd,
	void **ret_memory, struct device_handle *ret)
{
	const struct device_ops *ops = calls->device->ops;

	ret->fd = -1;
	if (way == CUDA_IPC)
		return ops->export_ipc_alloc(calls->device, bytes, ret_memory, ret);
	if (way != IMPORT)
		return ops->export_alloc(calls->device, bytes, ret_memory, ret);
	int rc = ops->handle_of_fd(calls->device, fd, bytes, ret);
	return rc ? rc : ops->import(calls->device, ret, ret_memory);
}

static void floor_give_back(
	const struct calls *calls, enum way way, void *memory, const struct device_handle *handle)
{
	const struct device_ops *ops = calls->device->ops;

	if (way == CUDA_IPC)
		ops->export_ipc_free(calls->device, memory);
	else if (way == IMPORT)
		ops->import_free(calls->device, memory);
	else
		ops->export_free(calls->device, memory);
	if (way != IMPORT && handle->fd >= 0)
		close(handle->fd);
}

/* A device's condition or -errno. */
static int floor_once(const struct calls *calls, enum way way, uint64_t bytes)
{
	CLEANUP(cleanup_close) int fd = way == IMPORT ? calls_memfd(bytes) : -1;
	struct device_handle handle = {0};
	void *memory = NULL;

	if (way == IMPORT && fd < 0)
		return fd;
	uint64_t start = stats_now();
	int rc = floor_make(calls, way, bytes, fd, &memory, &handle);
	if (rc)
		return rc;
	samples_add(calls->samples[FLOOR_MAKE], stats_now() - start);
	start = stats_now();
	floor_give_back(calls, way, memory, &handle);
	samples_add(calls->samples[FLOOR_CLOSE], stats_now() - start);
	return 0;
}

/* ---- the calls ---- */

static int calls_make(struct calls *calls, enum way way, uint64_t bytes, int fd, uint32_t *ret)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;

	if (way != IMPORT)
		return mimeo_buffer_alloc(calls->bench->m, ways[way].kind, bytes, ret);
	handle.kind = ways[way].kind;
	handle.fd = fd;
	handle.bytes = bytes;
	return mimeo_buffer_import(calls->bench->m, &handle, ret);
}

/* What was closed counts against the limits until the daemon has it back: a refusal for that is
 * waited out and not timed. */
static int calls_once(struct calls *calls, enum way way, uint64_t bytes)
{
	CLEANUP(cleanup_close) int fd = way == IMPORT ? calls_memfd(bytes) : -1;
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t start = stats_now(), until = start + BACK_NS;
	uint32_t buffer;

	if (way == IMPORT && fd < 0)
		return MIMEO_E_NO_MEMORY;
	int rc = calls_make(calls, way, bytes, fd, &buffer);
	while (rc == MIMEO_E_QUOTA && start < until) {
		nanosleep(&pause, NULL);
		start = stats_now();
		rc = calls_make(calls, way, bytes, fd, &buffer);
	}
	if (rc < 0)
		return rc;
	samples_add(calls->samples[MAKE], stats_now() - start);
	start = stats_now();
	rc = mimeo_buffer_close(calls->bench->m, buffer);
	if (rc == 0)
		samples_add(calls->samples[CLOSE], stats_now() - start);
	return rc;
}

static void calls_row(const struct calls *calls, const char *what, size_t size, enum call call)
{
	char name[64];

	snprintf(name, sizeof(name), "%s, %s", what, sizes[size].name);
	buffer_row(calls->bench, name, calls->samples[call],
		calls->samples[call + FLOOR_MAKE - MAKE], FLOOR);
	results_count(calls->bench->results, "bytes", NULL, sizes[size].bytes);
}

/* Result and floor by turns. 0, 1 if there is no such thing, or a negative number, reported. */
static int calls_measure(struct calls *calls, enum way way, size_t size)
{
	for (enum call call = 0; call < N_CALLS; call++)
		calls->samples[call]->n = 0;
	for (uint32_t i = 0; i < calls->bench->options->count; i++) {
		int rc = calls_once(calls, way, sizes[size].bytes);

		if (rc == MIMEO_E_UNSUPPORTED || (way == IMPORT && rc == MIMEO_E_DENIED))
			return 1;
		if (rc < 0)
			return buffer_fail(calls->bench, "a buffer", rc);
		rc = floor_once(calls, way, sizes[size].bytes);
		if (rc)
			return -abs(bench_fail_device(rc, "the floor", ""));
	}
	calls_row(calls, ways[way].make, size, MAKE);
	calls_row(calls, ways[way].close, size, CLOSE);
	return 0;
}

static int calls_all(struct calls *calls)
{
	bool has[N_WAYS] = {false};

	for (enum way way = 0; way < N_WAYS; way++) {
		/* A client's own memfd is the cpu device's. */
		if (way == IMPORT && !has[MEMFD])
			continue;
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			int rc = calls_measure(calls, way, i);

			if (rc < 0)
				return rc;
			if (rc > 0)
				break;
			has[way] = true;
		}
	}
	if (!has[MEMFD] && !has[VMM_FD] && !has[CUDA_IPC])
		return bench_fail(-ENOTSUP, "the daemon has no device buffers for clients");
	return 0;
}

int buffer_calls(const struct buffer_bench *bench)
{
	struct calls calls = {.bench = bench};
	struct device_info info;
	char why[256] = "";
	int rc = buffer_samples(calls.samples, N_CALLS, bench->options->count);

	if (rc < 0)
		return rc;
	rc = probe_device(bench->options->device, &calls.device, &info, why, sizeof(why));
	rc = rc ? bench_fail_device(rc, "the floor", why) : calls_all(&calls);
	if (calls.device)
		calls.device->ops->free(calls.device);
	return rc;
}
