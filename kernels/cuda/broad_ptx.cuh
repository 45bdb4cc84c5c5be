/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_BROAD_PTX_CUH
#define MIMEO_KERNELS_CUDA_BROAD_PTX_CUH

/* What broad.cuh uses of 9.0a beyond wide_ptx.cuh. */

#include "kernels/cuda/wide_ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The same box to the same place in the memory of each block in `mask` (by their numbers in the
 * cluster), for the barrier at the same place there. */
__device__ static inline void copy_box_to_all(
	uint32_t to, const void *map, uint32_t barrier, uint32_t col, uint32_t row, uint16_t mask)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(row), "h"(mask)
		     : "memory");
}

/* A box of a matrix whose rows are in two halves: of each half the same rows, 8 of the first, 8 of
 * the second, and so on. */
__device__ static inline void copy_halves(
	uint32_t to, const void *map, uint32_t barrier, uint32_t col, uint32_t eights)
{
	box_coming(to, barrier);
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %4, %5}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(0), "r"(eights)
		     : "memory");
}

/* Arrive at a barrier in the memory of another block, or this one's, of the cluster. Orders nothing
 * but what the copy engine and products do: with a scope of the cluster it would wait for all
 * earlier accesses. */
__device__ static inline void barrier_arrive_at(uint32_t barrier, uint32_t rank)
{
	asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(of_block(barrier, rank))
		     : "memory");
}

/* Four matrices of 8 x 8 bf16, fragments of a product's sums, are stored transposed. Lane l has the
 * address of what becomes row l % 8 of matrix l / 8. */
__device__ static inline void store_transposed(uint32_t address, const uint32_t (&v)[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
			     address),
		     "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
		     : "memory");
}

__device__ static inline void store_shared_4(uint32_t address, const float (&v)[4])
{
	asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]),
		     "f"(v[1]), "f"(v[2]), "f"(v[3])
		     : "memory");
}

#endif

#endif
