/* SPDX-License-Identifier: MIT */

/*
 * A write to an address that no device has, which loses the device, for tests. Grid: one block of
 * one thread; only in builds with -Dtest_faults=true.
 */

#include "kernels/cuda/cuda.h"

static __global__ void forced_fault(volatile int *where)
{
	if (where != nullptr)
		*where = 1;
}

/* `where` NULL does no harm, and loads the kernel. */
extern "C" cudaError_t cuda_forced_fault_launch(cudaStream_t stream, void *where)
{
	forced_fault<<<1, 1, 0, stream>>>((volatile int *)where);
	return cudaGetLastError();
}
