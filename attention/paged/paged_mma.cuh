/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_MMA_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_MMA_CUH

/*
 * The instructions that paged attention is made of, and what its kernels share.
 *
 * Queries are packed: of a row's tokens and one kv head's group of heads, packed row m is token m /
 * group, head m % group, so that a tensor core tile is full although there is one token.
 *
 * Keys and values lie in shared memory as [token][head_dim + 8] bf16: with 16 bytes of padding a
 * row is an odd number of 16-byte chunks, so eight rows read by ldmatrix lie in eight banks of
 * chunks, whatever head_dim is.
 */

#include <cuda_bf16.h>
#include <math_constants.h>

#include "attention/paged/paged_cuda.h"
#include "kernels/cuda/barrier.cuh"

typedef __nv_bfloat16 bf16;

/* 16 bytes, or zeros if not `seen`; nothing is read then. */
static __device__ __forceinline__ void copy_16(uint32_t dst, const void *src, bool seen)
{
	asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst),
		"l"(src), "r"(seen ? 16 : 0)
		: "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most N of this thread's groups are under way. */
template <int N> static __device__ __forceinline__ void copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_4(uint32_t (&r)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		: "r"(address)
		: "memory");
}

static __device__ __forceinline__ void load_4_transposed(uint32_t (&r)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		: "r"(address)
		: "memory");
}

/* c[16, 8] += a[16, 16] b[16, 8] */
static __device__ __forceinline__ void mma(
	float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack(float low, float high)
{
	__nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

	return *reinterpret_cast<uint32_t *>(&pair);
}

/* 2^x; 0 for -inf. */
static __device__ __forceinline__ float power_2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Over the four lanes that share a row of a fragment. */
static __device__ __forceinline__ float quad_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
	x += __shfl_xor_sync(~0u, x, 1);
	return x + __shfl_xor_sync(~0u, x, 2);
}

/* A page that does not exist is the null page. */
static __device__ __forceinline__ int32_t page_clamp(int32_t page, uint32_t n_pages)
{
	return page < 0 || (n_pages && (uint32_t)page >= n_pages) ? 0 : page;
}

/* The first position that a query at `position` sees; window 0: all. */
static __device__ __forceinline__ int32_t window_first(int32_t position, uint32_t window)
{
	return window && position >= 0 && (uint32_t)position + 1 > window
		       ? (int32_t)((uint32_t)position + 1 - window)
		       : 0;
}

/* Output of tokens without keys, n_zero ranges of them: the part of one block of n_blocks, one thread
 * of n_threads. */
template <typename Args>
static __device__ __forceinline__ void zeros_write(const Args &a, const int32_t (*zeros)[2],
	int32_t n_zero, uint32_t block, uint32_t n_blocks, uint32_t thread, uint32_t n_threads)
{
	uint32_t chunks = a.n_heads * a.head_dim / 8;

	for (int32_t z = 0; z < n_zero; z++) {
		uint32_t end = zeros[z][1];

		for (uint32_t t = zeros[z][0] + block; t < end; t += n_blocks)
			for (uint32_t c = thread; c < chunks; c += n_threads)
				((uint4 *)a.out)[(size_t)t * chunks + c] = make_uint4(0, 0, 0, 0);
	}
}

#endif
