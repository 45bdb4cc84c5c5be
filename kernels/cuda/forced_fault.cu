/* SPDX-License-Identifier: MIT */

/*
 * For tests: a write to an invalid address, which loses the device. Grid: one block of
 * one thread; only in builds with -Dtest_faults=true.
 */

#include "kernels/cuda/cuda.h"

static __global__ void forced_fault(volatile int *where)
{
	if (where != nullptr)
		*where = 1;
}

/* With `where` NULL it only loads the kernel. */
extern "C" cudaError_t cuda_forced_fault_launch(cudaStream_t stream, void *where)
{
	forced_fault<<<1, 1, 0, stream>>>((volatile int *)where);
	return cudaGetLastError();
}
