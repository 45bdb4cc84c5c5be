/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/launchers.h"

const struct kernel_ops cpu_kernel_ops = {
	.prepare = cpu_prepare,
	.embed = cpu_embed,
	.rms_norm = cpu_rms_norm,
	.add_rms_norm = cpu_add_rms_norm,
	.gemm = cpu_gemm,
	.gated_gemm = cpu_gated_gemm,
	.rope_and_cache = cpu_rope_and_cache,
	.silu_mul = cpu_silu_mul,
	.gather_rows = cpu_gather_rows,
	.to_f32 = cpu_to_f32,
	.copy_pages = cpu_copy_pages,
	.sample = cpu_sample,
	.outbox = cpu_outbox,
	.mla_rope_and_cache = cpu_mla_rope_and_cache,
	.head_gemm = cpu_head_gemm,
	.moe_route = cpu_moe_route,
	.moe_group = cpu_moe_group,
	.expert_gemm = cpu_expert_gemm,
	.expert_gated_gemm = cpu_expert_gated_gemm,
	.moe_combine = cpu_moe_combine,
	.verify = cpu_verify,
	.draft_begin = cpu_draft_begin,
	.draft_advance = cpu_draft_advance,
};
