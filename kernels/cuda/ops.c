/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/launchers.h"

const struct kernel_ops cuda_kernel_ops = {
	.prepare = cuda_prepare,
	.embed = cuda_embed,
	.rms_norm = cuda_rms_norm,
	.add_rms_norm = cuda_add_rms_norm,
	.gemm = cuda_gemm,
	.gated_gemm = cuda_gated_gemm,
	.rope_and_cache = cuda_rope_and_cache,
	.silu_mul = cuda_silu_mul,
	.gather_rows = cuda_gather_rows,
	.to_f32 = cuda_to_f32,
	.copy_pages = cuda_copy_pages,
	.sample = cuda_sample,
	.outbox = cuda_outbox,
	.mla_rope_and_cache = cuda_mla_rope_and_cache,
	.head_gemm = cuda_head_gemm,
	.moe_route = cuda_moe_route,
	.moe_group = cuda_moe_group,
	.expert_gemm = cuda_expert_gemm,
	.expert_gated_gemm = cuda_expert_gated_gemm,
	.moe_combine = cuda_moe_combine,
	.verify = cuda_verify,
	.draft_begin = cuda_draft_begin,
	.draft_advance = cuda_draft_advance,
};
