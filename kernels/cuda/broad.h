/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_BROAD_H
#define MIMEO_KERNELS_CUDA_BROAD_H

/*
 * GEMM of many rows. For devices of 9.0 alone, in a build
 * with device code for 90a (MIMEO_CUDA_SM90A). Variants differ in how the product is divided among
 * blocks; gemm_plan.c times them for each shape.
 */

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BROAD_VARIANTS_MAX 6
#define BROAD_ROWS_MIN 33u

#ifdef MIMEO_CUDA_SM90A

/* Load the kernels and allow them their shared memory; before lock. */
int broad_start(struct stream *stream);
/* The variants that can compute this product, the most promising first, into
 * ret[BROAD_VARIANTS_MAX]; 0: none. `gated`: y is [n_rows, w.rows / 2], silu of the first half of
 * the columns times the second. */
int broad_variants(struct stream *stream, const struct op_gemm *args, bool gated, uint8_t *ret);
/* Between cuda_launch_begin and cuda_launch_end; -ENOTSUP if the variant cannot compute it. */
int broad_launch(struct stream *stream, const struct op_gemm *args, bool gated, uint8_t variant);

#endif

#ifdef __cplusplus
}
#endif

#endif
