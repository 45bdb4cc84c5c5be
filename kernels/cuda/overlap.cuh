/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_OVERLAP_CUH
#define MIMEO_KERNELS_CUDA_OVERLAP_CUH

/*
 * The two halves of overlapping launches in a kernel, and the launch itself. The rule is in cuda.h.
 */

#include "kernels/cuda/cuda.h"

/* Wait until all earlier kernels in the stream have completed and their writes are visible. */
static __device__ __forceinline__ void overlap_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Allow the next kernel's blocks to start, as far as this block is concerned. */
static __device__ __forceinline__ void overlap_trigger(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The first statement of a kernel that loads nothing before the wait. */
static __device__ __forceinline__ void overlap_begin(void)
{
	overlap_trigger();
	overlap_wait();
}

/* cuda_launch with arguments of the kernel's own types. */
template <typename... Params, typename... Args>
static inline void launch(struct stream *stream, void (*kernel)(Params...), dim3 grid, dim3 block,
	size_t shared_bytes, const Args &...args)
{
	auto call = [&](Params... converted) {
		void *params[] = {(void *)&converted...};

		cuda_launch(stream, (const void *)kernel, grid, block, shared_bytes, params);
	};

	call(args...);
}

#endif
