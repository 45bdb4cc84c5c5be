/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SKINNY_PTX_CUH
#define MIMEO_KERNELS_CUDA_SKINNY_PTX_CUH

/* The instructions of 9.0 that skinny.cu uses. */

#include "kernels/cuda/barrier.cuh"

#if __CUDA_ARCH__ >= 900

/*
 * For a warp, which counts as WARP_ARRIVALS: one lane arrives for all, behind __syncwarp. In a
 * build for racecheck (racecheck.cuh) every lane arrives for itself.
 */
#ifdef MIMEO_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif

__device__ static inline void barrier_arrive_warp(uint32_t barrier)
{
	if (WARP_ARRIVALS > 1 || threadIdx.x % 32 == 0)
		barrier_arrive(barrier);
}

__device__ static inline void bulk_copy(
	uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];" ::"r"(to),
		"l"(from), "r"(bytes), "r"(barrier)
		: "memory");
}

__device__ static inline uint4 load_16(uint32_t address)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(address)
		     : "memory");
	return v;
}

#endif

#endif
