/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/launchers.h"

#define CUDA_ENTRY(name) .name = cuda_##name,
const struct kernel_ops cuda_kernel_ops = {
	KERNEL_OPS(CUDA_ENTRY)
#ifdef MIMEO_CUDA_SM90A
	KERNEL_OPTIONAL_OPS(CUDA_ENTRY)
#endif
};
