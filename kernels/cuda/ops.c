/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/launchers.h"

#define CUDA_ENTRY(name) .name = cuda_##name,
const struct kernel_ops cuda_kernel_ops = {KERNEL_OPS(CUDA_ENTRY)};
