/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SKINNY_H
#define MIMEO_KERNELS_CUDA_SKINNY_H

/*
 * GEMM of few rows, as a decode step has them: bandwidth-bound, the weights are read once. One kernel in
 * VARIANTS, which differ in the number of rows of x and W that a block processes at a time; gemm_plan.c times
 * them for each shape.
 */

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SKINNY_VARIANTS_MAX 8
#define SKINNY_ROWS_MAX 32u

/* Allow the variants their shared memory; before lock. */
int skinny_start(struct stream *stream);
/* The variants that can compute this product, the most promising first, into ret[SKINNY_VARIANTS_MAX]; 0:
 * none. `gated`: y is [n_rows, w.rows / 2], silu of the first half of the columns times the second. */
int skinny_variants(
	struct stream *stream, const struct op_gemm *args, bool gated, uint8_t *ret);
/* Between cuda_launch_begin and cuda_launch_end; -ENOTSUP if the variant cannot compute it. */
int skinny_launch(struct stream *stream, const struct op_gemm *args, uint8_t variant);
/* The same of rms_norm's result for x, by `norm` and `eps`. */
int skinny_launch_normed(struct stream *stream, const struct op_gemm *args, const struct weight *norm, float eps,
	uint8_t variant);
/* A kernel of the source file, for cuda_launch_begin. */
const void *skinny_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
