/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_GROUPED_PTX_CUH
#define MIMEO_KERNELS_CUDA_GROUPED_PTX_CUH

/* What grouped.cu takes of 9.0a beyond wide_ptx.cuh: boxes of more dimensions, rows that are
 * gathered by ordinary copies, products of other widths, and sums that are turned on the way out.
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

/* Eights of rows of both halves of a matrix among several, in turn. */
__device__ static inline void copy_box_5(uint32_t to, const void *map, uint32_t barrier,
	uint32_t col, uint32_t eight, uint32_t matrix)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %4, %5, %6}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(0), "r"(eight), "r"(matrix)
		     : "memory");
}

/* 16 bytes; zeros if they are not `there`. */
__device__ static inline void copy_16(uint32_t to, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
		     "r"(there ? 16 : 0)
		     : "memory");
}

/* This thread's arrival, when all copies that it began have come. */
__device__ static inline void barrier_arrive_behind_copies(uint32_t barrier)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier)
		     : "memory");
}

/* What this thread knows to have been written into shared memory is there for products of who
 * learns of it from this thread. */
__device__ static inline void order_before_products(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Has that phase ended? */
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

/* ---- products ---- */

/* Longer lists than wgmma.cuh's. */
#define SUMS_64(x, i) SUMS_32(x, i), SUMS_32(x, i + 8)
#define NUMBERS_48                                                                                 \
	NUMBERS_32                                                                                 \
	", %32, %33, %34, %35, %36, %37, %38, %39"                                                 \
	", %40, %41, %42, %43, %44, %45, %46, %47"
#define NUMBERS_64                                                                                 \
	NUMBERS_48                                                                                 \
	", %48, %49, %50, %51, %52, %53, %54, %55"                                                 \
	", %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_80                                                                                 \
	NUMBERS_64                                                                                 \
	", %64, %65, %66, %67, %68, %69, %70, %71"                                                 \
	", %72, %73, %74, %75, %76, %77, %78, %79"
#define NUMBERS_96                                                                                 \
	NUMBERS_80                                                                                 \
	", %80, %81, %82, %83, %84, %85, %86, %87"                                                 \
	", %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMBERS_112                                                                                \
	NUMBERS_96                                                                                 \
	", %96, %97, %98, %99, %100, %101, %102, %103"                                             \
	", %104, %105, %106, %107, %108, %109, %110, %111"
#define NUMBERS_128                                                                                \
	NUMBERS_112                                                                                \
	", %112, %113, %114, %115, %116, %117, %118, %119"                                         \
	", %120, %121, %122, %123, %124, %125, %126, %127"

/* As wide_ptx.cuh's, of other widths. */
__device__ static inline void product(float (&c)[1][4], uint64_t a, uint64_t b)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %6, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3"
		     "}, %4, %5, p, 1, 1, 0, 0;\n\t}"
		     : SUMS_4(c, 0)
		     : "l"(a), "l"(b), "r"(1));
}

__device__ static inline void product(float (&c)[12][4], uint64_t a, uint64_t b)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %50, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NUMBERS_48
		     "}, %48, %49, p, 1, 1, 0, 0;\n\t}"
		     : SUMS_32(c, 0), SUMS_16(c, 8)
		     : "l"(a), "l"(b), "r"(1));
}

__device__ static inline void product(float (&c)[16][4], uint64_t a, uint64_t b)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NUMBERS_64
		     "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
		     : SUMS_64(c, 0)
		     : "l"(a), "l"(b), "r"(1));
}

__device__ static inline void product(float (&c)[20][4], uint64_t a, uint64_t b)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %82, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" NUMBERS_80
		     "}, %80, %81, p, 1, 1, 0, 0;\n\t}"
		     : SUMS_64(c, 0), SUMS_16(c, 16)
		     : "l"(a), "l"(b), "r"(1));
}

__device__ static inline void product(float (&c)[24][4], uint64_t a, uint64_t b)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %98, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" NUMBERS_96
		     "}, %96, %97, p, 1, 1, 0, 0;\n\t}"
		     : SUMS_64(c, 0), SUMS_32(c, 16)
		     : "l"(a), "l"(b), "r"(1));
}

__device__ static inline void product(float (&c)[28][4], uint64_t a, uint64_t b)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %114, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {" NUMBERS_112
		     "}, %112, %113, p, 1, 1, 0, 0;\n\t}"
		     : SUMS_64(c, 0), SUMS_32(c, 16), SUMS_16(c, 24)
		     : "l"(a), "l"(b), "r"(1));
}

__device__ static inline void product(float (&c)[32][4], uint64_t a, uint64_t b)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NUMBERS_128
		     "}, %128, %129, p, 1, 1, 0, 0;\n\t}"
		     : SUMS_64(c, 0), SUMS_64(c, 16)
		     : "l"(a), "l"(b), "r"(1));
}

/* ---- what goes out ---- */

/* 8x8 of a product's sums, two a thread, into rows of their columns: lanes 0 to 7 say where. */
__device__ static inline void store_turned(uint32_t to, uint32_t pair)
{
	asm volatile(
		"stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(pair)
		: "memory");
}

/* The same of two; lanes 8 to 15 say where the second goes. */
__device__ static inline void store_turned(uint32_t to, uint32_t first, uint32_t second)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
		     "r"(first), "r"(second)
		     : "memory");
}

#endif

#endif
