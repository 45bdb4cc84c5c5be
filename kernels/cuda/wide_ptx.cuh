/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_WIDE_PTX_CUH
#define MIMEO_KERNELS_CUDA_WIDE_PTX_CUH

/*
 * What wide.cu, broad.cu and grouped.cu use of 9.0a beyond skinny_ptx.cuh: boxes of a matrix by the
 * copy engine, products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix
 * Instructions"), clusters of blocks.
 *
 * Operands lie in shared memory as the copy engine writes them with CU_TENSOR_MAP_SWIZZLE_128B: 64
 * columns, 128 bytes, of each row, one row behind the other, the 16-byte chunk c of row r at place
 * c ^ r % 8. They begin at multiples of 1024 bytes.
 */

#include "kernels/cuda/skinny_ptx.cuh"
#include "kernels/cuda/wgmma.cuh"
#ifdef MIMEO_RACECHECK
#include "kernels/cuda/racecheck.cuh"
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A stage of the ring, and the phase it is in. */
struct ring_stage {
	uint32_t index, parity;

	__device__ inline void next(uint32_t n)
	{
		if (++index == n) {
			index = 0;
			parity ^= 1;
		}
	}
};

/* ---- boxes ---- */

#ifndef MIMEO_RACECHECK
/* Empty but in builds for racecheck (racecheck.cuh). */
enum { WITNESS_BYTES = 0 };

__device__ static inline void box_coming(uint32_t to, uint32_t barrier)
{
}

/* Products read the box to this place. */
__device__ static inline void box_read(uint32_t to)
{
}
#endif

/* The first box of a matrix then does not wait for its map. */
__device__ static inline void prefetch_map(const void *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ static inline void copy_box(
	uint32_t to, const void *map, uint32_t barrier, uint32_t col, uint32_t row)
{
	box_coming(to, barrier);
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(row)
		     : "memory");
}

/* Of three dimensions. */
__device__ static inline void copy_box(
	uint32_t to, const void *map, uint32_t barrier, uint32_t first, uint32_t second, uint32_t third)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(first), "r"(second), "r"(third)
		     : "memory");
}

/* ---- clusters ---- */

/* All threads of all blocks; shared memory written before is seen by all after. */
__device__ static inline void cluster_meet(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
		     "barrier.cluster.wait.acquire.aligned;" ::
			     : "memory");
}

/* The same for blocks that only wait for each other: it orders no accesses, loads neither. What was loaded
 * of other blocks must be in use, what was sent to them must have arrived. What was written need not be
 * seen: cluster_meet would wait until it is. */
__device__ static inline void cluster_meet_only(void)
{
	asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\t"
		     "barrier.cluster.wait.aligned;" ::
			     : "memory");
}

/* The same place in another block's shared memory. */
__device__ static inline uint32_t of_block(uint32_t address, uint32_t rank)
{
	uint32_t there;

	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
	return there;
}

__device__ static inline float4 load_of_block(uint32_t address)
{
	float4 v;

	asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
		     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
		     : "r"(address)
		     : "memory");
	return v;
}

/* ---- products ---- */

/* Descriptor of rows of 128 bytes; a step of 16 columns further is 2 more. */
__device__ static inline uint64_t rows_at(uint32_t address)
{
	return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | address >> 4;
}

#endif

#endif
