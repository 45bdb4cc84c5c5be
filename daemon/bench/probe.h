/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_PROBE_H
#define MIMEO_DAEMON_BENCH_PROBE_H

/*
 * A device in this process, for benches that need no daemon: opened, asked for the rate of copies that
 * floors are made of, and timed.
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
	bool is_host; /* the cpu device: sizes that it does in no time */
	double copy_rate; /* bytes read and written a second by a large device copy */
	void *held[PROBE_HELD_MAX]; /* device memory of probe_take */
	uint32_t n_held;
};

/* Open a device, or say in why[size] what is missing: one sentence. */
int probe_device(const char *name, struct device **ret, struct device_info *ret_info, char *why,
	size_t size);
int probe_open(struct probe *ret, const char *device, char *why, size_t size);
void probe_close(struct probe *probe);

/* Random numbers in (-1, 1) all over device memory: f32 or bf16. */
int probe_fill(struct device *device, void *memory, uint64_t bytes, enum dtype dtype);
/* Device memory full of them, released by probe_close or with all that was taken after n_held was
 * `mark`. *ret is a pointer to an object. */
int probe_take(struct probe *probe, uint64_t bytes, enum dtype dtype, void *ret);
void probe_release(struct probe *probe, uint32_t mark);

/* Measure copy_rate; the memory that this takes is released. */
int probe_copy_rate(struct probe *probe);

/* A graph of what queue(arg) puts on the probe's stream. */
int probe_capture(
	struct probe *probe, int (*queue)(void *arg), void *arg, struct graph_exec **ret);
/*
 * Seconds that one of `n` operations takes which queue(arg) puts on the probe's stream, in a graph
 * if it can be captured: the median over rounds of (three launches - one launch) / 2n, so that
 * launching and noticing the end do not count.
 */
int probe_time(struct probe *probe, bool captured, int (*queue)(void *arg), void *arg, uint32_t n,
	double *ret_seconds);

#endif
