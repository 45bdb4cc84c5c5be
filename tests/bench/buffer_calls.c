/* SPDX-License-Identifier: MIT */
/*
 * Allocating, importing and closing a buffer, as a client sees it: a call on the socket and its
 * reply. A close is answered when no request can name the buffer any more; the memory goes back
 * behind it, in the daemon's builder.
 */
#include "tests/bench/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/bench/client.h"
#include "daemon/bench/report.h"

#define BACK_NS 5000000000ull /* for what was closed to come back */
#define PAUSE_NS 1000000

const uint64_t buffer_sizes[BUFFER_SIZES] = {BUFFER_SMALLEST, 2u << 20, 64u << 20};

static const uint32_t kinds[BUFFER_WAYS] = {
	[BUFFER_MEMFD] = MIMEO_HANDLE_MEMFD,
	[BUFFER_IMPORT] = MIMEO_HANDLE_MEMFD,
	[BUFFER_VMM_FD] = MIMEO_HANDLE_VMM_FD,
	[BUFFER_CUDA_IPC] = MIMEO_HANDLE_CUDA_IPC,
};

int buffer_fail(const struct mimeo *m, const char *what, int status)
{
	const char *message = mimeo_buffer_message(m);

	fprintf(stderr, "mimeo-bench: %s: %s (%s)%s%s\n", what, mimeo_strerror(status),
		mimeo_status_name(status), *message ? ": " : "", message);
	return status;
}

int buffer_memfd(uint64_t bytes)
{
	int fd = memfd_create("mimeo-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) < 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	return fd;
}

static int make(struct mimeo *m, enum buffer_way way, uint64_t bytes, int fd, uint32_t *ret)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;

	if (way != BUFFER_IMPORT)
		return mimeo_buffer_alloc(m, kinds[way], bytes, ret);
	handle.kind = kinds[way];
	handle.fd = fd;
	handle.bytes = bytes;
	return mimeo_buffer_import(m, &handle, ret);
}

/* What was closed counts against the limits until the daemon has it back: a refusal for that is
 * waited out, and not timed. */
static int make_timed(struct mimeo *m, enum buffer_way way, uint64_t bytes, int fd, uint32_t *ret,
	struct samples *samples)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t until = stats_now() + BACK_NS, start;
	int r;

	for (;;) {
		start = stats_now();
		r = make(m, way, bytes, fd, ret);
		if (r != MIMEO_E_QUOTA || start >= until)
			break;
		nanosleep(&pause, NULL);
	}
	if (r == 0)
		samples_add(samples, stats_now() - start);
	return r;
}

static int once(struct mimeo *m, enum buffer_way way, uint64_t bytes, struct buffer_calls *calls)
{
	uint32_t buffer;
	int fd = way == BUFFER_IMPORT ? buffer_memfd(bytes) : -1;

	if (way == BUFFER_IMPORT && fd < 0)
		return MIMEO_E_NO_MEMORY;
	int r = make_timed(m, way, bytes, fd, &buffer, calls->make);
	if (fd >= 0)
		close(fd);
	if (r < 0)
		return r;
	uint64_t start = stats_now();
	r = mimeo_buffer_close(m, buffer);
	if (r == 0)
		samples_add(calls->close, stats_now() - start);
	return r;
}

static bool is_left_out(enum buffer_way way, int status)
{
	return status == MIMEO_E_UNSUPPORTED || (way == BUFFER_IMPORT && status == MIMEO_E_DENIED);
}

/* Result and floor by turns. 0, 1 if there is no such thing, or a negative number, told. */
static int measure_once(
	struct buffer_bench *bench, struct mimeo *m, enum buffer_way way, uint32_t i)
{
	int r = once(m, way, buffer_sizes[i], &bench->calls[way][i]);

	if (is_left_out(way, r))
		return 1;
	if (r < 0)
		return buffer_fail(m, "a buffer", r);
	int rc = buffer_floor_once(&bench->floor, way, buffer_sizes[i], &bench->floors[way][i]);
	return -report_outcome("the floor", rc, "");
}

static int measure_way(struct buffer_bench *bench, struct mimeo *m, enum buffer_way way)
{
	int r = 0;

	for (uint32_t i = 0; i < BUFFER_SIZES && r == 0; i++) {
		for (uint32_t j = 0; j < bench->count && r == 0; j++)
			r = measure_once(bench, m, way, i);
	}
	return r < 0 ? r : 0;
}

static int measure(struct buffer_bench *bench, struct mimeo *m)
{
	bool any = false;
	int r = 0;

	for (enum buffer_way way = 0; way < BUFFER_WAYS && r == 0; way++) {
		/* A client's own memfd is the cpu device's. */
		if (way == BUFFER_IMPORT && bench->calls[BUFFER_MEMFD][0].make->n == 0)
			continue;
		r = measure_way(bench, m, way);
		any = any || bench->calls[way][0].make->n > 0;
	}
	if (r == 0 && !any) {
		fprintf(stderr, "mimeo-bench: the daemon has no device buffers for clients\n");
		r = -1;
	}
	return r;
}

int buffer_calls_work(void *arg, int fd)
{
	struct buffer_bench *bench = arg;
	struct mimeo *m;

	(void)fd;
	if (client_connect(&m, bench->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	int r = buffer_floor_open(&bench->floor, bench->options->device);
	if (r == 0)
		r = measure(bench, m);
	buffer_floor_close(&bench->floor);
	mimeo_close(m);
	return r != 0;
}
