/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_ANY_CUH
#define MIMEO_ATTENTION_PAGED_ANY_CUH

/*
 * The running softmax of one query by a block of warps that share its keys out by position: a lane has
 * elements lane, lane + 32, ... of the head, PER of them, and a score is a sum over its warp.
 * Scores are in powers of two (the query's scale times log2 e), their soft cap (0: none) is not. The order of
 * all sums follows from the query's own keys: the result does not depend on other tokens and rows.
 */

#include "attention/paged/paged_mma.cuh"
#include "kernels/cuda/e4m3.cuh"

#define WARPS 16

/* A query times `scale` as a lane has it; zeros if there is nothing to see. */
template <int PER>
static __device__ __forceinline__ void any_load(
	float (&q)[PER], const bf16 *query, int dim, float scale, bool sees)
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int i = 0; i < PER; i++)
		q[i] = sees && i * 32 + lane < dim
			       ? __bfloat162float(query[i * 32 + lane]) * scale * CUDART_L2E_F
			       : 0.0f;
}

/* Element `at` of a cache of bf16, or of codes. */
template <bool CODES>
static __device__ __forceinline__ float any_element(const void *kv, size_t at)
{
	if constexpr (CODES)
		return kv_number_of(((const uint8_t *)kv)[at]);
	else
		return __bfloat162float(((const bf16 *)kv)[at]);
}

/* The key that begins at element `key`, and its value `to_value` elements behind it; all lanes of the warp. */
template <bool CODES, int PER>
static __device__ __forceinline__ void any_take(const void *kv, size_t key, size_t to_value, int dim, float soft_cap,
	const float (&q)[PER], float (&acc)[PER], float &highest, float &sum)
{
	int lane = threadIdx.x % 32;
	float score = 0.0f, keep, weight;

#pragma unroll
	for (int i = 0; i < PER; i++)
		if (i * 32 + lane < dim)
			score += q[i] * any_element<CODES>(kv, key + i * 32 + lane);
	for (int d = 16; d > 0; d /= 2)
		score += __shfl_xor_sync(~0u, score, d);
	if (soft_cap != 0.0f)
		score = soft_cap * CUDART_L2E_F * tanhf(score / (soft_cap * CUDART_L2E_F));
	keep = power_2(highest - fmaxf(highest, score));
	highest = fmaxf(highest, score);
	weight = power_2(score - highest);
	sum = sum * keep + weight;
#pragma unroll
	for (int i = 0; i < PER; i++)
		if (i * 32 + lane < dim)
			acc[i] = acc[i] * keep +
				 weight * any_element<CODES>(kv, key + to_value + i * 32 + lane);
}

/* The warps' sums, each relative to its own highest score, times `factor` into the output; heads of
 * MAX_DIM at most. All threads of the block; a barrier has to follow before the next. */
template <int PER, int MAX_DIM>
static __device__ void any_merge(int dim, float (&acc)[PER], float highest, float sum, float factor, bf16 *out)
{
	__shared__ float sums[MAX_DIM], stats[WARPS][2];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float all = -CUDART_INF_F, total = 0.0f;

	if (lane == 0) {
		stats[warp][0] = highest;
		stats[warp][1] = sum;
	}
	for (int d = threadIdx.x; d < dim; d += WARPS * 32)
		sums[d] = 0.0f;
	__syncthreads();
	for (int w = 0; w < WARPS; w++)
		all = fmaxf(all, stats[w][0]);
	for (int w = 0; w < WARPS; w++)
		if (stats[w][1] > 0.0f)
			total += stats[w][1] * power_2(stats[w][0] - all);
	for (int w = 0; w < WARPS; w++) { /* in turn: the order of the sum is fixed */
		if (w == warp && sum > 0.0f)
#pragma unroll
			for (int i = 0; i < PER; i++)
				if (i * 32 + lane < dim)
					sums[i * 32 + lane] += acc[i] * power_2(highest - all);
		__syncthreads();
	}
	for (int d = threadIdx.x; d < dim; d += WARPS * 32)
		out[d] = __float2bfloat16(total > 0.0f ? sums[d] / total * factor : 0.0f);
}

/* Launch a kernel template of PER elements a lane for heads of `dim` elements, of codes or bf16. */
#define ANY_LAUNCH(stream, kernel, dim, codes, grid, args)                                         \
	((codes) ? ANY_LAUNCH_AS(stream, kernel, dim, true, grid, args)                            \
		 : ANY_LAUNCH_AS(stream, kernel, dim, false, grid, args))
#define ANY_LAUNCH_AS(stream, kernel, dim, codes, grid, args)                                      \
	((dim) <= 64 ? launch(stream, kernel<2, codes>, grid, WARPS * 32, 0, args)                 \
		: (dim) <= 256 ? launch(stream, kernel<8, codes>, grid, WARPS * 32, 0, args)       \
			       : launch(stream, kernel<32, codes>, grid, WARPS * 32, 0, args))

#endif
