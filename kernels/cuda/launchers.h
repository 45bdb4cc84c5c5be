/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_LAUNCHERS_H
#define MIMEO_KERNELS_CUDA_LAUNCHERS_H

/*
 * The launchers of the CUDA device's op table. Each refuses the shapes that the cpu device refuses,
 * and launches at least one block also for no rows, so that what is loaded and what is recorded
 * does not depend on how full a batch is.
 */

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

int cuda_prepare(struct stream *stream, const struct op_prepare *args);
int cuda_embed(struct stream *stream, const struct op_embed *args);
int cuda_rms_norm(struct stream *stream, const struct op_rms_norm *args);
int cuda_add_rms_norm(struct stream *stream, const struct op_add_rms_norm *args);
int cuda_rope_and_cache(struct stream *stream, const struct op_rope_and_cache *args);
int cuda_silu_mul(struct stream *stream, const struct op_silu_mul *args);
int cuda_gather_rows(struct stream *stream, const struct op_gather_rows *args);
int cuda_to_f32(struct stream *stream, const struct op_to_f32 *args);
int cuda_copy_pages(struct stream *stream, const struct op_copy_pages *args);
int cuda_sample(struct stream *stream, const struct op_sample *args);
int cuda_outbox(struct stream *stream, const struct op_outbox *args);
int cuda_mla_rope_and_cache(struct stream *stream, const struct op_mla_rope_and_cache *args);
int cuda_head_gemm(struct stream *stream, const struct op_head_gemm *args);
int cuda_moe_route(struct stream *stream, const struct op_moe_route *args);
int cuda_moe_group(struct stream *stream, const struct op_moe_group *args);
int cuda_expert_gemm(struct stream *stream, const struct op_expert_gemm *args);
int cuda_expert_gated_gemm(struct stream *stream, const struct op_expert_gated_gemm *args);
int cuda_moe_combine(struct stream *stream, const struct op_moe_combine *args);
int cuda_verify(struct stream *stream, const struct op_verify *args);
int cuda_draft_begin(struct stream *stream, const struct op_draft_begin *args);
int cuda_draft_advance(struct stream *stream, const struct op_draft_advance *args);

#ifdef __cplusplus
}
#endif

#endif
