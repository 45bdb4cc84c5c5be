/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_LAUNCHERS_H
#define MIMEO_KERNELS_CPU_LAUNCHERS_H

/*
 * The launchers of the cpu device's op table: each checks shapes and queues a copy of its
 * arguments. An op whose row count is 0 is queued, too, so that what is loaded and what is
 * recorded does not depend on how full a batch is; for the same reason a workspace's size never
 * depends on the number of rows.
 */

#include <errno.h>
#include <time.h>

#include "kernels/checks.h"
#include "kernels/cpu/cpu.h"

#define CPU_DECLARE(name) int cpu_##name(struct stream *stream, const struct op_##name *args);
KERNEL_OPS(CPU_DECLARE)
#undef CPU_DECLARE

/* The device's clock: what prepare and outbox note. */
static inline uint64_t cpu_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/*
 * The launcher of an op, which OP_run executes: it checks the arguments and queues a copy of them.
 * `workspace_bytes` may refer to the arguments as `a`.
 */
#define CPU_OP(op, workspace_bytes)                                                                \
	_Static_assert(sizeof(struct op_##op) <= CPU_ARGS_MAX, "op_" #op " outgrows a node");      \
	int cpu_##op(struct stream *stream, const struct op_##op *a)                               \
	{                                                                                          \
		static const struct cpu_op descriptor = {.name = #op, .run = op##_run};            \
                                                                                                   \
		if (!op##_fits(a))                                                                 \
			return -EINVAL;                                                            \
		return cpu_launch(stream, &descriptor, a, sizeof(*a), (workspace_bytes));          \
	}

#endif
