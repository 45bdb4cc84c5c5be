/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_LAUNCHERS_H
#define MIMEO_KERNELS_CUDA_LAUNCHERS_H

/*
 * The launchers of the CUDA device's op table. Each refuses the shapes that the cpu device refuses, and
 * launches at least one block even for 0 rows, so that the loaded kernels and the recorded nodes do not
 * depend on how full a batch is.
 */

#include "kernels/checks.h"
#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_DECLARE(name) int cuda_##name(struct stream *stream, const struct op_##name *args);
KERNEL_OPS(CUDA_DECLARE)
KERNEL_OPTIONAL_OPS(CUDA_DECLARE)
#undef CUDA_DECLARE

#ifdef __cplusplus
}
#endif

#endif
