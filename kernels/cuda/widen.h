/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_WIDEN_H
#define MIMEO_KERNELS_CUDA_WIDEN_H

/* Packed weights to bf16, for products of so many rows that their time is not the weights'. */

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef MIMEO_CUDA_SM90A

/* Load the kernels; before lock. */
int widen_start(struct stream *stream);
/* to[rows, cols] := w, rounded to bf16. Between cuda_launch_begin and cuda_launch_end. */
void widen_launch(struct stream *stream, const struct weight *w, void *to);

#endif

#ifdef __cplusplus
}
#endif

#endif
