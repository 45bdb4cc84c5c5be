/* SPDX-License-Identifier: MIT */

/*
 * Prompts that are not absorbed, of any model: the keys' way from the pages, and attention of any
 * head sizes to MLA_PROMPT_ANY_DIM.
 *
 * Gather: a thread 8 elements, where sizes and addresses allow it, else 1, of a row of the chunk; grid
 * as many blocks as these take, block 256 threads, no shared memory. What a key takes in the cache is
 * read and written once. Codes of fp8 are widened here, times their factor, so that what follows knows
 * nothing of them: it costs each chunk a rounding to bf16, but no kernel a second form.
 *
 * Attention: grid queries x heads x pieces, block four warps, which take every fourth key: a lane
 * has every 32nd element, a score is a sum over the warp. Shared memory: 4 KB, the block's sum. Reads
 * all keys once a query and head, so it is slow; it exists so that no model is refused.
 */

#include <cuda_bf16.h>
#include <math_constants.h>

#include "attention/mla/mla_prompt_cuda.h"
#include "kernels/cuda/e4m3.cuh"
#include "kernels/cuda/overlap.cuh"

#define GATHER_THREADS 256u
#define WARPS 4

typedef __nv_bfloat16 bf16;

/* ---- gather ---- */

/* The piece that a row of the chunk belongs to. */
static __device__ const mla_prompt_piece &piece_of(const mla_prompt_args &a, uint32_t row)
{
	uint32_t i = a.n_pieces - 1;

	while (a.pieces[i].key_row > row)
		i--;
	return a.pieces[i];
}

/* N elements that a thread moves, as bf16. */
template <int N> struct gather_pack;
template <> struct gather_pack<1> {
	typedef uint16_t wide;
	typedef uint8_t codes;
};
template <> struct gather_pack<8> {
	typedef uint4 wide;
	typedef uint2 codes;
};

static __device__ __forceinline__ uint16_t widen(uint8_t code, float factor)
{
	return __bfloat16_as_ushort(__float2bfloat16_rn(kv_number_of(code) * factor));
}

static __device__ __forceinline__ uint4 widen(uint2 codes, float factor)
{
	uint32_t pairs[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t f16 = e4m3_to_f16((i < 2 ? codes.x : codes.y) >> i % 2 * 16);
		const float2 x = __half22float2(*(const __half2 *)&f16);
		const __nv_bfloat162 pair = __floats2bfloat162_rn(x.x * factor, x.y * factor);

		pairs[i] = *(const uint32_t *)&pair;
	}
	return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* Where a key lies in the cache, in rows; -1: the chunk's row is padding. */
static __device__ int64_t cached(const mla_prompt_args &a, uint32_t row)
{
	const mla_prompt_piece &piece = piece_of(a, row);
	uint32_t k = row - piece.key_row, position = piece.first_key + k;
	int32_t page;

	if (k >= piece.n_keys)
		return -1;
	page = a.l.block_table[(size_t)piece.row * a.l.max_pages + position / a.l.page_tokens];
	if (page < 0 || (a.l.n_pages && (uint32_t)page >= a.l.n_pages))
		page = 0;
	return (int64_t)page * a.l.page_tokens + position % a.l.page_tokens;
}

template <int N, bool CODES>
static __global__ void __launch_bounds__(GATHER_THREADS)
	gather_kernel(const __grid_constant__ mla_prompt_args a, uint32_t n_rows)
{
	typedef typename gather_pack<N>::wide wide;
	typedef typename gather_pack<N>::codes codes;
	const uint32_t rank = a.l.rank / N, rope = a.l.rope / N;
	const uint64_t at = (uint64_t)blockIdx.x * GATHER_THREADS + threadIdx.x;
	const uint32_t row = (uint32_t)(at / (rank + rope)), part = (uint32_t)(at % (rank + rope));
	int64_t key;
	wide value = {};

	overlap_begin();
	if (row >= n_rows)
		return;
	key = cached(a, row);
	if (key >= 0 && CODES)
		value = widen(((const codes *)a.l.kv)[key * (rank + rope) + part], a.l.factors.key);
	else if (key >= 0)
		value = ((const wide *)a.l.kv)[key * (rank + rope) + part];
	if (part < rank)
		((wide *)a.l.work.latents)[(size_t)row * rank + part] = value;
	else
		((wide *)a.l.work.ropes)[(size_t)row * rope + part - rank] = value;
}

template <int N>
static void gather_launch_by(struct stream *stream, const struct mla_prompt_args *args, uint32_t n_rows)
{
	uint64_t n = (uint64_t)n_rows * ((args->l.rank + args->l.rope) / N);

	launch(stream, args->l.fp8 ? gather_kernel<N, true> : gather_kernel<N, false>,
		dim3((uint32_t)((n + GATHER_THREADS - 1) / GATHER_THREADS)), GATHER_THREADS, 0, *args, n_rows);
}

void mla_prompt_gather_launch(
	struct stream *stream, const struct mla_prompt_args *args, uint32_t n_rows)
{
	if (args->l.rank % 8 == 0 && args->l.rope % 8 == 0 && (uintptr_t)args->l.kv % 16 == 0)
		gather_launch_by<8>(stream, args, n_rows);
	else
		gather_launch_by<1>(stream, args, n_rows);
}

/* ---- attention ---- */

static __device__ __forceinline__ float power_2(float x)
{
	return x == -CUDART_INF_F ? 0.0f : exp2f(x);
}

/* The highest score of all, and the sum of weights relative to it. */
struct prompt_merged {
	float highest, total;
};

/* The four warps' sums, each relative to its own highest score, into `sums`. */
template <int PER>
static __device__ prompt_merged merge(
	uint32_t v, const float (&acc)[PER], float highest, float sum, float *sums)
{
	__shared__ float stats[WARPS][2];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	prompt_merged all = {-CUDART_INF_F, 0.0f};

	if (lane == 0) {
		stats[warp][0] = highest;
		stats[warp][1] = sum;
	}
	for (uint32_t d = threadIdx.x; d < v; d += WARPS * 32)
		sums[d] = 0.0f;
	__syncthreads();
	for (int w = 0; w < WARPS; w++)
		all.highest = fmaxf(all.highest, stats[w][0]);
	for (int w = 0; w < WARPS; w++)
		if (stats[w][1] > 0.0f)
			all.total += stats[w][1] * power_2(stats[w][0] - all.highest);
	for (int w = 0; w < WARPS; w++) { /* in turn: the order of the sum is fixed */
		float scale = power_2(highest - all.highest);

		if (w == warp && sum > 0.0f)
#pragma unroll
			for (int i = 0; i < PER; i++)
				if (i * 32 + lane < (int)v)
					sums[i * 32 + lane] += acc[i] * scale;
		__syncthreads();
	}
	return all;
}

/* The block's sums go to the output, or are kept; with what was kept before. */
static __device__ void finish(const mla_prompt_args &a, const mla_prompt_piece &piece,
	uint32_t query, uint32_t head, const float *sums, prompt_merged now)
{
	const size_t at = ((size_t)piece.state + query) * a.l.n_heads + head;
	const bool complete = piece.position + query < piece.first_key + piece.n_keys;
	float *kept = a.l.work.sums + at * a.l.v, *stats = a.l.work.stats + at * 2;
	bf16 *out = (bf16 *)a.l.out + ((size_t)(piece.query + query) * a.l.n_heads + head) * a.l.v;
	float highest = now.highest, total = now.total, of_now = 1.0f, of_past = 0.0f;

	if (piece.first_key) {
		highest = fmaxf(stats[0], now.highest);
		of_now = power_2(now.highest - highest);
		of_past = power_2(stats[0] - highest);
		total = now.total * of_now + stats[1] * of_past;
	}
	for (uint32_t d = threadIdx.x; d < a.l.v; d += WARPS * 32) {
		float x = sums[d] * of_now;

		if (piece.first_key)
			x += kept[d] * of_past;
		if (complete)
			out[d] = __float2bfloat16(total > 0.0f ? x / total : 0.0f);
		else
			kept[d] = x;
	}
	__syncthreads(); /* all have read the state */
	if (!complete && threadIdx.x == 0) {
		stats[0] = highest;
		stats[1] = total;
	}
}

template <int PER>
static __global__ void any_kernel(const __grid_constant__ mla_prompt_args a)
{
	__shared__ float sums[MLA_PROMPT_ANY_DIM];
	const mla_prompt_piece &piece = a.pieces[blockIdx.z];
	const uint32_t query = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32;
	const uint32_t dim = a.l.nope + a.l.rope, seen = piece.position - piece.first_key + query + 1;
	const uint32_t n_keys = min(seen, piece.n_keys);
	const bf16 *q = (const bf16 *)a.l.q + (size_t)(piece.query + query) * a.l.q_stride + head * dim;
	const bf16 *keys = (const bf16 *)a.l.work.expanded, *ropes = (const bf16 *)a.l.work.ropes;
	float element[PER], acc[PER] = {}, highest = -CUDART_INF_F, sum = 0.0f;

	overlap_begin();
	if (query >= piece.n_query)
		return;
#pragma unroll
	for (int i = 0; i < PER; i++)
		element[i] = i * 32 + lane < dim
				     ? __bfloat162float(q[i * 32 + lane]) * a.l.scale * CUDART_L2E_F
				     : 0.0f;
	for (uint32_t k = threadIdx.x / 32; k < n_keys; k += WARPS) {
		const size_t row = piece.key_row + k;
		const bf16 *key = keys + (row * a.l.n_heads + head) * (a.l.nope + a.l.v);
		const bf16 *rope = ropes + row * a.l.rope;
		float score = 0.0f, keep, weight;

#pragma unroll
		for (int i = 0; i < PER; i++) {
			uint32_t e = i * 32 + lane;

			if (e < dim)
				score += element[i] *
					 __bfloat162float(e < a.l.nope ? key[e] : rope[e - a.l.nope]);
		}
		for (int d = 16; d > 0; d /= 2)
			score += __shfl_xor_sync(~0u, score, d);
		keep = power_2(highest - fmaxf(highest, score));
		highest = fmaxf(highest, score);
		weight = power_2(score - highest);
		sum = sum * keep + weight;
#pragma unroll
		for (int i = 0; i < PER; i++)
			if (i * 32 + lane < a.l.v)
				acc[i] = acc[i] * keep +
					 weight * __bfloat162float(key[a.l.nope + i * 32 + lane]);
	}
	finish(a, piece, query, head, sums, merge<PER>(a.l.v, acc, highest, sum, sums));
}

void mla_prompt_any_launch(struct stream *stream, const struct mla_prompt_args *args)
{
	uint32_t dim = args->l.nope + args->l.rope > args->l.v ? args->l.nope + args->l.rope : args->l.v;
	dim3 grid(0, args->l.n_heads, args->n_pieces);

	for (uint32_t i = 0; i < args->n_pieces; i++)
		if (args->pieces[i].n_query > grid.x)
			grid.x = args->pieces[i].n_query;
	if (dim <= 64)
		launch(stream, any_kernel<2>, grid, WARPS * 32, 0, *args);
	else if (dim <= 256)
		launch(stream, any_kernel<8>, grid, WARPS * 32, 0, *args);
	else
		launch(stream, any_kernel<32>, grid, WARPS * 32, 0, *args);
}

const void *const mla_prompt_any_kernel = (const void *)any_kernel<2>;
