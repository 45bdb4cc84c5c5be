/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_BENCH_CUDA_H
#define MIMEO_TESTS_KERNELS_BENCH_CUDA_H

/* What the benchmarks of the CUDA device share: random memory, and the time of a recorded graph. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cuda/cuda.h"

#define COPY_BYTES_PER_SECOND 4.28e12 /* a device copy, read and written, on one H200 */
#define RANDOM_BYTES ((size_t)64 << 20)
#define REPLAYS 9u

static inline void must(int rc, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "%s: %s\n", what, device_strerror(rc));
	exit(1);
}

static inline double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static inline int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Device memory of bf16 numbers, or zeros; magnitudes 2^-exponent ... 2^(3 - exponent). */
static inline void *random_memory(struct device *device, size_t bytes, unsigned int exponent)
{
	const size_t first = bytes < RANDOM_BYTES ? bytes : RANDOM_BYTES;
	uint16_t *values = malloc(first);
	uint64_t x = 88172645463325252u;
	void *memory;

	if (!values)
		exit(1);
	must(device->ops->mem_alloc(device, bytes, &memory), "device memory");
	for (size_t i = 0; i < first / 2; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		values[i] = (uint16_t)((x & 0x807f) | (127u - exponent + (x >> 20 & 3)) << 7);
	}
	must(device->ops->copy(device, memory, values, first), "copy");
	for (size_t at = first; at < bytes; at += first)
		must(device->ops->copy(device, (char *)memory + at, memory,
			     bytes - at < first ? bytes - at : first),
			"copy");
	free(values);
	return memory;
}

/* Of one launch of what was recorded, the median over batches of `n` launches in a row. */
static inline double time_graph(
	struct device *device, struct stream *stream, struct graph *graph, uint32_t n)
{
	const struct device_ops *ops = device->ops;
	struct graph_exec *exec;
	double us[REPLAYS];

	must(ops->graph_instantiate(device, graph, &exec), "instantiate");
	must(ops->graph_upload(exec, stream), "upload");
	for (uint32_t i = 0; i <= REPLAYS; i++) {
		double start;

		must(ops->stream_sync(stream), "sync");
		start = now_us();
		for (uint32_t j = 0; j < n; j++)
			must(ops->graph_launch(exec, stream), "launch");
		must(ops->stream_sync(stream), "sync");
		if (i > 0)
			us[i - 1] = (now_us() - start) / n;
	}
	ops->graph_exec_free(exec);
	ops->graph_free(graph);
	qsort(us, REPLAYS, sizeof(*us), by_value);
	return us[REPLAYS / 2];
}

#endif
