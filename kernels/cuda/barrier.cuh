/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_BARRIER_CUH
#define MIMEO_KERNELS_CUDA_BARRIER_CUH

/* Barriers in shared memory, for devices from 9.0 on. */

#include <stdint.h>

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

/* Arrive, and let the phase end only after so many bytes were copied. */
__device__ static inline void barrier_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
		"r"(bytes)
		: "memory");
}

/* Wait until the phase of this parity has ended. For a new barrier, the phase before the first counts as
 * ended. */
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

#endif
