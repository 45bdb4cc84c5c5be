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
};
