/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_PROBE_H
#define MIMEO_DAEMON_BENCH_PROBE_H

/*
 * A device in this process, for benches without a daemon: opens it, measures the copy rate from which floors
 * are computed, and times operations.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

#define PROBE_HELD_MAX 32u

struct probe {
	struct device *device;
	struct device_info info;
	struct stream *stream;
	bool is_host; /* the cpu device: use small sizes */
	double copy_rate; /* bytes read and written per second by a large device copy */
	void *held[PROBE_HELD_MAX]; /* device memory of probe_take */
	uint32_t n_held;
};

/* Open a device; on failure why[size] has one sentence with the reason. */
int probe_device(const char *name, struct device **ret, struct device_info *ret_info, char *why,
	size_t size);
int probe_open(struct probe *ret, const char *device, char *why, size_t size);
void probe_close(struct probe *probe);

/* Fill device memory with random numbers in (-1, 1): f32 or bf16. */
int probe_fill(struct device *device, void *memory, uint64_t bytes, enum dtype dtype);
/* Allocate device memory filled with random numbers. probe_close releases it, and probe_release all memory
 * that was taken since n_held was `mark`. *ret is a pointer to an object. */
int probe_take(struct probe *probe, uint64_t bytes, enum dtype dtype, void *ret);
void probe_release(struct probe *probe, uint32_t mark);

/* Measure copy_rate; the memory that this takes is released. */
int probe_copy_rate(struct probe *probe);

/* Capture a graph of the work that queue(arg) puts on the probe's stream. */
int probe_capture(
	struct probe *probe, int (*queue)(void *arg), void *arg, struct graph_exec **ret);
/*
 * Seconds per operation, for n operations that queue(arg) puts on the probe's stream, in a graph if they can
 * be captured: the median over rounds of (three launches - one launch) / 2n, so that launching and noticing
 * the end do not count.
 */
int probe_time(struct probe *probe, bool captured, int (*queue)(void *arg), void *arg, uint32_t n,
	double *ret_seconds);

#endif
