/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_WGMMA_CUH
#define MIMEO_KERNELS_CUDA_WGMMA_CUH

/*
 * What every kernel with products of a warpgroup needs around them (9.0a; PTX ISA, "Asynchronous
 * Warpgroup Level Matrix Instructions"): their order, and their registers as operands of asm.
 */

/* Before the first product that uses registers which were written. */
static __device__ __forceinline__ void products_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N of the groups of products are under way. */
template <int N> static __device__ __forceinline__ void products_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Registers of products: not read before here, for all that the compiler knows. */
template <int N> static __device__ __forceinline__ void settle(float (&x)[N][4])
{
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			asm volatile("" : "+f"(x[i][j])::"memory");
}

#define SUMS_4(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define SUMS_16(x, i) SUMS_4(x, i), SUMS_4(x, i + 1), SUMS_4(x, i + 2), SUMS_4(x, i + 3)
#define SUMS_32(x, i) SUMS_16(x, i), SUMS_16(x, i + 4)
#define NUMBERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NUMBERS_32                                                                                 \
	NUMBERS_16                                                                                 \
		", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

#endif
