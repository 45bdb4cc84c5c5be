/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_GROUPED_H
#define MIMEO_KERNELS_CUDA_GROUPED_H

/*
 * Products of experts, y[p] = x[p / x_div] W_e^T for each expert's pairs, by wgmma: for devices of
 * 9.0 alone, in a build with device code for 90a (MIMEO_CUDA_SM90A). Only the device knows how many pairs an
 * expert has; here only the maximum is known.
 */

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef MIMEO_CUDA_SM90A

/* Load the kernels and allow them their shared memory; before lock. */
int grouped_start(struct stream *stream);
/* `gated`: W_e's rows are W_gate's, then W_up's, and y is silu(gate) * up, half as wide. */
bool grouped_can(struct stream *stream, const struct op_expert_gemm *args, bool gated);
/* Between cuda_launch_begin and cuda_launch_end, if grouped_can. */
int grouped_launch(struct stream *stream, const struct op_expert_gemm *args, bool gated);

#endif

#ifdef __cplusplus
}
#endif

#endif
