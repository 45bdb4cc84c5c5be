/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_PROBE_H
#define MIMEO_DAEMON_BENCH_PROBE_H

/*
 * A device in this process, for benches that need no daemon: opened, asked for the rates that its
 * floors are made of, and timed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/bench/results.h"
#include "kernels/ops.h"

struct probe {
	struct device *device;
	struct device_info info;
	struct stream *stream;
	bool is_host; /* the cpu device: sizes that it does in no time */
	struct rates rates;
};

/* Open a device, or say in why[size] what is missing: one sentence. */
int probe_device(const char *name, struct device **ret, struct device_info *ret_info, char *why,
	size_t size);
int probe_open(struct probe *ret, const char *device, char *why, size_t size);
void probe_close(struct probe *probe);

/* Random numbers in (-1, 1) all over device memory: f32 or bf16. */
int probe_fill(struct device *device, void *memory, uint64_t bytes, enum dtype dtype);
/* Device memory full of them. */
int probe_random(struct probe *probe, uint64_t bytes, enum dtype dtype, void **ret);

/* Measure the rate of copies, or both; it takes memory and gives it back. */
int probe_copy_rate(struct probe *probe);
int probe_rates(struct probe *probe);

/*
 * Seconds that one of `n` operations takes which queue(arg) puts on the probe's stream, in a graph
 * if it can be captured: the median over rounds of (three launches - one launch) / 2n, so that
 * launching and noticing the end do not count.
 */
int probe_time(struct probe *probe, bool captured, int (*queue)(void *arg), void *arg, uint32_t n,
	double *ret_seconds);

#endif
