/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_LAUNCHERS_H
#define MIMEO_KERNELS_CPU_LAUNCHERS_H

/*
 * The launchers of the cpu device's op table: each checks shapes and queues a copy of its
 * arguments. An op whose row count is 0 is queued all the same, so that what is loaded and what is
 * recorded does not depend on how full a batch is; for the same reason a workspace's size never
 * depends on the number of rows.
 */

#include <time.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

int cpu_prepare(struct stream *stream, const struct op_prepare *args);
int cpu_embed(struct stream *stream, const struct op_embed *args);
int cpu_rms_norm(struct stream *stream, const struct op_rms_norm *args);
int cpu_add_rms_norm(struct stream *stream, const struct op_add_rms_norm *args);
int cpu_gemm(struct stream *stream, const struct op_gemm *args);
int cpu_rope_and_cache(struct stream *stream, const struct op_rope_and_cache *args);
int cpu_gated_gemm(struct stream *stream, const struct op_gated_gemm *args);
int cpu_silu_mul(struct stream *stream, const struct op_silu_mul *args);
int cpu_gather_rows(struct stream *stream, const struct op_gather_rows *args);
int cpu_to_f32(struct stream *stream, const struct op_to_f32 *args);
int cpu_copy_pages(struct stream *stream, const struct op_copy_pages *args);
int cpu_sample(struct stream *stream, const struct op_sample *args);
int cpu_verify(struct stream *stream, const struct op_verify *args);
int cpu_draft_begin(struct stream *stream, const struct op_draft_begin *args);
int cpu_draft_advance(struct stream *stream, const struct op_draft_advance *args);
int cpu_outbox(struct stream *stream, const struct op_outbox *args);
int cpu_mla_rope_and_cache(struct stream *stream, const struct op_mla_rope_and_cache *args);
int cpu_head_gemm(struct stream *stream, const struct op_head_gemm *args);
int cpu_moe_route(struct stream *stream, const struct op_moe_route *args);
int cpu_moe_group(struct stream *stream, const struct op_moe_group *args);
int cpu_expert_gemm(struct stream *stream, const struct op_expert_gemm *args);
int cpu_expert_gated_gemm(struct stream *stream, const struct op_expert_gated_gemm *args);
int cpu_moe_combine(struct stream *stream, const struct op_moe_combine *args);

/* The device's clock: what prepare and outbox note. */
static inline uint64_t cpu_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* CPU_LAUNCH(stream, &op, args, workspace_bytes): args whole, by value. */
#define CPU_LAUNCH(stream, op, args, workspace_bytes)                                              \
	cpu_launch((stream), (op), (args), sizeof(*(args)), (workspace_bytes))

#define CPU_ARGS_FIT(type)                                                                         \
	_Static_assert(sizeof(struct type) <= CPU_ARGS_MAX, #type " outgrows a queue node")

#endif
