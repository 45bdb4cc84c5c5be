/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_GROUPED_PTX_CUH
#define MIMEO_KERNELS_CUDA_GROUPED_PTX_CUH

/* What grouped.cu uses of 9.0a beyond wide_ptx.cuh: boxes of more dimensions, rows that are
 * gathered by ordinary copies, products of other widths, and transposed stores of sums.
 */

#include "kernels/cuda/wide_ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- what comes in ---- */

/* Rows of a matrix among several. */
__device__ static inline void copy_box_3(
	uint32_t to, const void *map, uint32_t barrier, uint32_t col, uint32_t row, uint32_t matrix)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(matrix)
		     : "memory");
}

/* Groups of eight rows of both halves of a matrix among several, in turn. */
__device__ static inline void copy_box_5(uint32_t to, const void *map, uint32_t barrier,
	uint32_t col, uint32_t eight, uint32_t matrix)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %4, %5, %6}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(0), "r"(eight), "r"(matrix)
		     : "memory");
}

/* Copy 16 bytes; zeros if not `there`. */
__device__ static inline void copy_16(uint32_t to, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
		     "r"(there ? 16 : 0)
		     : "memory");
}

/* Arrive for this thread when all copies that it started have completed. */
__device__ static inline void barrier_arrive_behind_copies(uint32_t barrier)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier)
		     : "memory");
}

/* Orders writes to shared memory that this thread has seen before the products of threads that wait
 * for this one. */
__device__ static inline void order_before_products(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* True if that phase has ended. */
__device__ static inline bool barrier_done(uint32_t barrier, uint32_t parity)
{
	uint32_t done;

	asm volatile("{\n\t.reg .pred p;\n\t"
		     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p;\n\t}"
		     : "=r"(done)
		     : "r"(barrier), "r"(parity)
		     : "memory");
	return done;
}

/* ---- what goes out ---- */

/* Store 8x8 sums of a product, two per thread, transposed: lanes 0 to 7 give the addresses of the rows. */
__device__ static inline void store_turned(uint32_t to, uint32_t pair)
{
	asm volatile(
		"stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(pair)
		: "memory");
}

/* The same for two; lanes 8 to 15 give the addresses of the second. */
__device__ static inline void store_turned(uint32_t to, uint32_t first, uint32_t second)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
		     "r"(first), "r"(second)
		     : "memory");
}

#endif

#endif
