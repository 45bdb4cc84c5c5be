/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_CPU_H
#define MIMEO_KERNELS_CPU_CPU_H

/*
 * What an op needs of the cpu device: a way to put itself on a stream.
 *
 * An op is a static struct cpu_op with a function that runs on the stream's worker. Arguments are
 * copied by value into the queue node, or into the graph node while the stream captures.
 */

#include "kernels/device.h"

#define CPU_ARGS_MAX 384

struct cpu_op {
	const char *name;
	/* Runs on the worker. `workspace` is the stream's, workspace_bytes of it as asked at
	 * launch. */
	void (*run)(const void *args, void *workspace);
};

/*
 * Queue (or record) op with args[bytes] (CPU_ARGS_MAX at most). The first launch of an op on a
 * device loads it: refused while any stream of this thread captures (DEVICE_E_CAPTURE_UNSUPPORTED,
 * spoiling the capture) and after lock (DEVICE_E_LOCKED). A workspace larger than the stream has
 * grows it, under the same two refusals. No allocation, no lock and, while the worker spins, no
 * system call once loaded.
 */
int cpu_launch(struct stream *stream, const struct cpu_op *op, const void *args, size_t bytes,
	size_t workspace_bytes);

/* The op table of this device (kernels/cpu/ops.c). */
extern const struct kernel_ops cpu_kernel_ops;

/*
 * Environment, read here: MIMEO_CPU_FAULT loses the device in place of running an op: "launch:N"
 * the Nth op that any worker runs, "op:NAME:N" the Nth run of that op; replays, copies and fills
 * count. From then on queued ops are passed over, queued host functions still run and events still
 * complete. MIMEO_CPU_HOLD="NAME:PATH" has every run of that op wait while the file exists, so that
 * a test may look at pending work. MIMEO_CPU_POISON=1 poisons mapped memory. -EINVAL: the fault or
 * the hold is none of these forms.
 */
int cpu_device_new(const struct device_options *options, struct device **ret);

#endif
