/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_WIDE_H
#define MIMEO_KERNELS_CUDA_WIDE_H

/*
 * GEMM of more rows than skinny's and fewer than would keep the tensor cores busy: still
 * bandwidth-bound, the weights are read once, if its prologue and epilogue are hidden. For devices
 * of 9.0 alone, in a build with device code for 90a (MIMEO_CUDA_SM90A). VARIANTS differ in how the product is
 * divided among blocks; gemm_plan.c times them for each shape.
 */

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WIDE_VARIANTS_MAX 8
#define WIDE_ROWS_MIN 17u
#define WIDE_ROWS_MAX 64u
#define WIDE_PACKED_ROWS_MIN 9u /* of packed weights, and any number, WIDE_ROWS_MAX a launch */

#ifdef MIMEO_CUDA_SM90A

/* Load the kernels and allow them their shared memory; before lock. */
int wide_start(struct stream *stream);
bool wide_can(struct stream *stream, const struct op_gemm *args, bool gated);
/* The variants that can compute this product, the most promising first, into ret[WIDE_VARIANTS_MAX]; 0: none.
 * `gated`: y is [n_rows, w.rows / 2], silu of the first half of the columns times the second. */
int wide_variants(struct stream *stream, const struct op_gemm *args, bool gated, uint8_t *ret);
/* Between cuda_launch_begin and cuda_launch_end; -ENOTSUP if the variant cannot compute it. */
int wide_launch(struct stream *stream, const struct op_gemm *args, bool gated, uint8_t variant);
/*
 * The product of any number of rows, WIDE_ROWS_MAX a launch, always by the kernel of that many rows: a row is
 * a column of its tensor core products, so its sums depend on the variant alone, and the variant on W's shape.
 * The variant, or 0: it cannot do this product.
 */
uint8_t wide_invariant_variant(struct stream *stream, const struct op_gemm *args, bool gated);
int wide_launch_invariant(struct stream *stream, const struct op_gemm *args, bool gated, uint8_t variant);

#endif

#ifdef __cplusplus
}
#endif

#endif
