/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SKINNY_PTX_CUH
#define MIMEO_KERNELS_CUDA_SKINNY_PTX_CUH

/* Instructions of 9.0 that products use. */

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

__device__ static inline void store_16(uint32_t address, const uint4 &v)
{
	asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
		     : "memory");
}

/* Four operands of 8 rows by 8 columns; lane l gives the place of row l % 8 of operand l / 8. */
__device__ static inline void load_operands(uint32_t (&to)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
		     : "r"(address)
		     : "memory");
}

__device__ static inline uint2 load_8(uint32_t address)
{
	uint2 v;

	asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
	return v;
}

__device__ static inline uint32_t load_4(uint32_t address)
{
	uint32_t v;

	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
	return v;
}

#endif

#endif
