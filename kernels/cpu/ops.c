/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/launchers.h"

#define CPU_ENTRY(name) .name = cpu_##name,
const struct kernel_ops cpu_kernel_ops = {KERNEL_OPS(CPU_ENTRY)};
