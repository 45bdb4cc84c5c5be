/* SPDX-License-Identifier: MIT */
#include "daemon/bench/probe.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bench/stats.h"
#include "kernels/convert.h"

#define RANDOM_BYTES (32u << 20)
#define ROUNDS 9u
#define COPY_BYTES (1ull << 30)
#define COPY_BYTES_HOST (32ull << 20)
#define COPIES 8u

int probe_device(
	const char *name, struct device **ret, struct device_info *ret_info, char *why, size_t size)
{
	int rc = device_open(name, NULL, ret);

	if (rc == -ENODEV)
		snprintf(why, size, "device %s: there is none on this machine", name);
	else if (rc == -ENOTSUP)
		snprintf(why, size, "device %s: this build has no CUDA device", name);
	else if (rc)
		snprintf(why, size, "device %s: %s", name, device_strerror(rc));
	return rc ? rc : (*ret)->ops->info(*ret, ret_info);
}

int probe_open(struct probe *ret, const char *device, char *why, size_t size)
{
	*ret = (struct probe){0};
	int rc = probe_device(device, &ret->device, &ret->info, why, size);
	if (rc)
		return rc;
	ret->is_host = strcmp(ret->info.kind, "cpu") == 0;
	return ret->device->ops->stream_new(ret->device, &ret->stream);
}

void probe_close(struct probe *probe)
{
	if (!probe->device)
		return;
	probe_release(probe, 0);
	if (probe->stream)
		probe->device->ops->stream_free(probe->stream);
	probe->device->ops->free(probe->device);
	*probe = (struct probe){0};
}

/* ---- random memory ---- */

static void probe_randomize(void *memory, size_t bytes, enum dtype dtype)
{
	uint64_t state = 88172645463325252u;
	size_t n = bytes / dtype_bytes(dtype);

	for (size_t i = 0; i < n; i++) {
		float value = (float)((double)(int32_t)stats_random(&state) * 0x1p-31);
		if (dtype == DTYPE_F32)
			((float *)memory)[i] = value;
		else if (dtype == DTYPE_E4M3)
			((uint8_t *)memory)[i] = f32_to_e4m3(value);
		else
			((uint16_t *)memory)[i] = f32_to_bf16(value);
	}
}

/* Copies a block of random numbers from the host, then duplicates it on the device. */
int probe_fill(struct device *device, void *memory, uint64_t bytes, enum dtype dtype)
{
	uint64_t first = bytes < RANDOM_BYTES ? bytes : RANDOM_BYTES;
	void *block = malloc(first ? first : 1);

	if (!block)
		return -ENOMEM;
	probe_randomize(block, first, dtype);
	int rc = device->ops->copy(device, memory, block, first);
	free(block);
	for (uint64_t at = first; at < bytes && !rc; at += first)
		rc = device->ops->copy(device, (char *)memory + at, memory,
			bytes - at < first ? bytes - at : first);
	return rc;
}

int probe_take(struct probe *probe, uint64_t bytes, enum dtype dtype, void *ret)
{
	void *memory;
	int rc = probe->device->ops->mem_alloc(probe->device, bytes, &memory);

	if (rc)
		return rc;
	assert(probe->n_held < PROBE_HELD_MAX);
	probe->held[probe->n_held++] = memory;
	memcpy(ret, &memory, sizeof(memory));
	return probe_fill(probe->device, memory, bytes, dtype);
}

void probe_release(struct probe *probe, uint32_t mark)
{
	assert(mark <= probe->n_held);
	while (probe->n_held > mark)
		probe->device->ops->mem_free(probe->device, probe->held[--probe->n_held]);
}

/* ---- time ---- */

struct timed {
	struct device *device;
	struct stream *stream;
	struct graph_exec *exec; /* NULL: queue afresh */
	int (*queue)(void *arg);
	void *arg;
};

static int probe_launches(const struct timed *timed, uint32_t n_launches, uint64_t *ret_ns)
{
	uint64_t start = clock_ns();
	int rc = 0;

	for (uint32_t i = 0; i < n_launches && !rc; i++)
		rc = timed->exec ? timed->device->ops->graph_launch(timed->exec, timed->stream)
				 : timed->queue(timed->arg);
	if (!rc)
		rc = timed->device->ops->stream_sync(timed->stream);
	*ret_ns = clock_ns() - start;
	return rc;
}

/* Half of the median time of two more launches. If that is 0 because the machine is busy: a third of the
 * fastest time of three launches, which includes launching and noticing the end. */
static int probe_median(const struct timed *timed, double *ret)
{
	CLEANUP(cleanup_samples) struct samples *more = samples_new(ROUNDS);
	CLEANUP(cleanup_samples) struct samples *all = samples_new(ROUNDS);
	uint64_t once, thrice;
	int rc = more && all ? probe_launches(timed, 1, &once) : -ENOMEM;

	for (uint32_t i = 0; i < ROUNDS && !rc; i++) {
		rc = probe_launches(timed, 1, &once);
		if (!rc)
			rc = probe_launches(timed, 3, &thrice);
		if (rc)
			return rc;
		samples_add(more, thrice > once ? (thrice - once) / 2 : 0);
		samples_add(all, thrice);
	}
	*ret = samples_quantile(more, 0.5);
	if (*ret <= 0)
		*ret = samples_quantile(all, 0) / 3;
	return 0;
}

int probe_capture(
	struct probe *probe, int (*queue)(void *arg), void *arg, struct graph_exec **ret)
{
	const struct device_ops *ops = probe->device->ops;
	struct graph *graph;
	int rc = ops->capture_begin(probe->stream);

	if (rc)
		return rc;
	int queued = queue(arg);
	rc = ops->capture_end(probe->stream, &graph);
	if (rc)
		return queued ? queued : rc;
	rc = queued ? queued : ops->graph_instantiate(probe->device, graph, ret);
	ops->graph_free(graph);
	return rc;
}

int probe_time(struct probe *probe, bool captured, int (*queue)(void *arg), void *arg, uint32_t n,
	double *ret_seconds)
{
	const struct device_ops *ops = probe->device->ops;
	struct timed timed = {probe->device, probe->stream, NULL, queue, arg};
	double seconds = 0;
	int rc = queue(arg); /* the first use of its ops */

	if (rc)
		return rc;
	rc = ops->stream_sync(probe->stream);
	if (rc)
		return rc;
	rc = captured ? probe_capture(probe, queue, arg, &timed.exec) : 0;
	if (rc)
		return rc;
	rc = probe_median(&timed, &seconds);
	if (timed.exec)
		ops->graph_exec_free(timed.exec);
	if (!rc)
		*ret_seconds = seconds / n;
	return rc;
}

/* ---- the rate of copies ---- */

struct copying {
	struct device *device;
	struct stream *stream;
	char *memory; /* two buffers */
	uint64_t bytes;
};

static int probe_queue_copies(void *arg)
{
	const struct copying *copying = arg;
	int rc = 0;

	for (uint32_t i = 0; i < COPIES && !rc; i++)
		rc = copying->device->ops->copy_async(copying->stream,
			copying->memory + (i % 2 ? copying->bytes : 0),
			copying->memory + (i % 2 ? 0 : copying->bytes), copying->bytes);
	return rc;
}

int probe_copy_rate(struct probe *probe)
{
	struct copying copying = {
		probe->device, probe->stream, NULL, probe->is_host ? COPY_BYTES_HOST : COPY_BYTES};
	uint32_t mark = probe->n_held;
	double seconds;
	int rc = probe_take(probe, 2 * copying.bytes, DTYPE_F32, &copying.memory);

	if (rc)
		return rc;
	rc = probe_time(probe, false, probe_queue_copies, &copying, COPIES, &seconds);
	probe_release(probe, mark);
	probe->copy_rate = rc ? 0 : 2 * (double)copying.bytes / seconds;
	return rc;
}
