/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_KERNEL_CUH
#define MIMEO_KERNELS_CUDA_KERNEL_CUH

/*
 * What the kernels share: packs of N activations (8: one access of 16 bytes; 1: any alignment and
 * any width) with their arithmetic in float32, weights of every dtype, sums over a block, and the
 * grid of an op that works row by row.
 */

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <errno.h>
#include <math.h>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/overlap.cuh"

#define PACK 8
#define WARP 32u

typedef __nv_bfloat16 bf16;

/* ---- device ---- */

__device__ inline void unpack(float *v, const uint4 &raw)
{
	const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		v[2 * i] = __uint_as_float(words[i] << 16);
		v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
	}
}

template <int N> __device__ inline void load(float (&v)[N], const bf16 *from)
{
	if constexpr (N == PACK)
		unpack(v, *(const uint4 *)from);
	else
		v[0] = __bfloat162float(*from);
}

template <int N> __device__ inline void load(float (&v)[N], const float *from)
{
	if constexpr (N == PACK) {
		*(float4 *)v = *(const float4 *)from;
		*(float4 *)(v + 4) = *(const float4 *)(from + 4);
	} else {
		v[0] = *from;
	}
}

template <int N> __device__ inline void load(float (&v)[N], const __half *from)
{
	if constexpr (N == PACK) {
		const uint4 raw = *(const uint4 *)from;
		const __half *halves = (const __half *)&raw;

#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = __half2float(halves[i]);
	} else {
		v[0] = __half2float(*from);
	}
}

template <int N> __device__ inline void store(bf16 *to, const float (&v)[N])
{
	if constexpr (N == PACK) {
		uint4 raw;
		__nv_bfloat162 *pairs = (__nv_bfloat162 *)&raw;

#pragma unroll
		for (int i = 0; i < N / 2; i++)
			pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
		*(uint4 *)to = raw;
	} else {
		*to = __float2bfloat16_rn(v[0]);
	}
}

/* N elements of the weight, from element `first` in row order. */
template <int N>
__device__ inline void load_weight(float (&v)[N], const struct weight &w, size_t first)
{
	if (w.dtype == DTYPE_BF16)
		load<N>(v, (const bf16 *)w.data + first);
	else if (w.dtype == DTYPE_F16)
		load<N>(v, (const __half *)w.data + first);
	else
		load<N>(v, (const float *)w.data + first);
}

__device__ inline uint32_t clamp_index(int32_t index, uint32_t n)
{
	if (index < 0)
		return 0;
	return (uint32_t)index < n ? (uint32_t)index : n - 1;
}

/* Nanoseconds of a clock that all multiprocessors share; its resolution depends on the device. */
__device__ inline uint64_t device_clock_ns()
{
	uint64_t ns;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
	return ns;
}

/* The sum over the warp, in every lane. */
template <typename T> __device__ __forceinline__ T warp_sum(T v)
{
	for (int offset = WARP / 2; offset; offset /= 2)
		v += __shfl_xor_sync(~0u, v, offset);
	return v;
}

/* The sum over the lanes up to this one. */
template <typename T> __device__ __forceinline__ T warp_prefix(T sum)
{
	for (uint32_t offset = 1; offset < WARP; offset *= 2) {
		const T other = __shfl_up_sync(~0u, sum, offset);

		sum += threadIdx.x % WARP >= offset ? other : 0;
	}
	return sum;
}

/* c[16, 8] += a[16, 16] b[16, 8], fragments as the PTX ISA has them. */
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
	uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Two floats as bf16 in one word. */
__device__ __forceinline__ uint32_t pack_2(float low, float high)
{
	const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

	return *(const uint32_t *)&pair;
}

/* The sum over the block, in every thread, added in an order that depends only on the block's size. May be
 * used once per kernel: no barrier protects the partial sums from a second use. */
__device__ inline float block_sum(float v)
{
	__shared__ float partial[WARP];
	const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

	v = warp_sum(v);
	if (lane == 0)
		partial[warp] = v;
	__syncthreads();
	return warp_sum(lane < blockDim.x / WARP ? partial[lane] : 0);
}

/* ---- host ---- */

/* Columns of a product's result. */
static inline uint32_t y_cols(const struct op_gemm *a, bool gated)
{
	return gated ? a->w.rows / 2 : a->w.rows;
}

static inline bool aligned(const void *memory)
{
	return (uintptr_t)memory % 16 == 0;
}

/* Blocks that give `threads` each one of n; at least one, at most what a grid's y may be. */
static inline uint32_t blocks_for(uint64_t n, uint32_t threads)
{
	const uint64_t blocks = (n + threads - 1) / threads;

	return blocks < 1 ? 1 : blocks > 65535 ? 65535 : (uint32_t)blocks;
}

/* x: rows (one block at least, which finds no row), y: the packs of a row. */
static inline dim3 row_grid(uint32_t n_rows, uint32_t n_packs, uint32_t threads)
{
	return dim3(n_rows ? n_rows : 1, blocks_for(n_packs, threads));
}

/* A kernel over the columns of each row: by packs where columns and addresses allow it. */
template <typename Args>
static inline int launch_rows(struct stream *stream, bool packs, void (*by_packs)(const Args),
	void (*by_columns)(const Args), uint32_t n_rows, uint32_t cols, uint32_t threads,
	const Args &args)
{
	launch(stream, packs ? by_packs : by_columns,
		row_grid(n_rows, packs ? cols / PACK : cols, threads), threads, 0, args);
	return 0;
}

/*
 * The launcher of an op: it refuses arguments that do not fit, puts the op's kernels on the stream
 * by OP_launch(stream, args), whose failure it returns, and reports the result of the launches. The
 * other argument is any kernel of the source file, for cuda_launch_begin.
 */
#define CUDA_OP(op, ...)                                                                           \
	int cuda_##op(struct stream *stream, const struct op_##op *a)                              \
	{                                                                                          \
		int rc;                                                                            \
                                                                                                   \
		if (!op##_fits(a))                                                                 \
			return -EINVAL;                                                            \
		rc = cuda_launch_begin(stream, #op, (const void *)__VA_ARGS__);                    \
		if (rc)                                                                            \
			return rc;                                                                 \
		rc = op##_launch(stream, a);                                                       \
		return rc ? rc : cuda_launch_end(stream, #op);                                     \
	}

#endif
