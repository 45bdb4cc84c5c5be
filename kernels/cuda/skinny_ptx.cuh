/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SKINNY_PTX_CUH
#define MIMEO_KERNELS_CUDA_SKINNY_PTX_CUH

/* The instructions of 9.0 that skinny.cu uses. */

#include <stdint.h>

#if __CUDA_ARCH__ >= 900

__device__ static inline uint32_t shared_address(const void *pointer)
{
	return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ static inline void barrier_init(uint32_t barrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count)
		     : "memory");
}

__device__ static inline void barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/*
 * For a warp, which counts as WARP_ARRIVALS: one lane arrives for all, behind __syncwarp. In a build
 * for racecheck (racecheck.cuh) every lane arrives for itself.
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

__device__ static inline void barrier_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
		"r"(bytes)
		: "memory");
}

__device__ static inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
	uint32_t done = 0;

	while (!done)
		asm volatile("{\n\t.reg .pred p;\n\t"
			     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
			     "selp.u32 %0, 1, 0, p;\n\t}"
			     : "=r"(done)
			     : "r"(barrier), "r"(parity)
			     : "memory");
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
