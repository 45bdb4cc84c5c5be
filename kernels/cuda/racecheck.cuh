/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_RACECHECK_CUH
#define MIMEO_KERNELS_CUDA_RACECHECK_CUH

/*
 * For builds with MIMEO_RACECHECK (tests/kernels/test_cuda_race.c): stands in for what our products
 * do that compute-sanitizer's racecheck (CUDA 13.0) does not follow. It follows loads, stores, bulk
 * copies, mbarriers, named barriers, and shared memory in a cluster. It does not follow
 *
 *  - one lane that arrives for its warp behind __syncwarp: here all lanes arrive (WARP_ARRIVALS,
 *    skinny_ptx.cuh);
 *  - boxes of the copy engine: beside each of a plain matrix, a bulk copy to a word of its own, for the same barrier;
 *  - the reads of a warpgroup's products: at their start and at their end, loads of the words of the
 *    boxes that they read.
 *
 * This checks the order of barriers, not where in a stage the engine writes and the tensor cores
 * read. It reports a stage that is read before it is filled, and sums that are read or written
 * without their barriers; for skinny also a stage that is filled again too early. For wide and broad
 * that shows only as a wrong result. Not sharers: their boxes are not followed.
 */

#include "kernels/cuda/skinny_ptx.cuh"

/* What a stage's barrier expects beside its boxes: of each, 16 bytes. */
enum { WITNESS_BYTES = 16 };

static __device__ uint4 witness_source;

#if __CUDA_ARCH__ >= 900

/* The word of the box at this address of shared memory: a multiple of 1 KB, below 256 KB; the bits
 * above are the block's number in its cluster. */
__device__ static inline uint32_t witness_of(uint32_t place)
{
	__shared__ uint4 words[256];

	return shared_address(&words[place / 1024 % 256]);
}

/* Beside the box to `to`. */
__device__ static inline void box_coming(uint32_t to, uint32_t barrier)
{
	bulk_copy(witness_of(to), &witness_source, WITNESS_BYTES, barrier);
}

/* As late as products may read. */
__device__ static inline void box_read(uint32_t to)
{
	__nanosleep(1000);
	load_16(witness_of(to));
}

#endif

#endif
