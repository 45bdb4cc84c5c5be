/* SPDX-License-Identifier: MIT */

/*
 * Block masks for any model: every head size to FLEX_BF16_HEAD_DIM, every page size, every
 * alignment.
 *
 * Grid blocks of queries x heads, block four warps, which take one token after the other, and of its
 * list every fourth entry each: a lane has head_dim / 32 elements, a score is a sum over the warp.
 * Reads keys and values once a token and head, so it is slow; it is there so that no model is
 * refused. A token's result depends on its own row alone.
 */

#include "attention/flex/flex_views.cuh"
#include "attention/paged/paged_mma.cuh"
#include "kernels/cuda/overlap.cuh"

#define WARPS 4

static __device__ const bf16 *key_at(const flex_args &a, const int32_t *pages, uint32_t position)
{
	int32_t page = page_clamp(pages[position / a.page_tokens], a.n_pages);

	return (const bf16 *)a.kv +
	       ((size_t)page * 2 * a.page_tokens + position % a.page_tokens) *
		       ((size_t)a.n_kv_heads * a.head_dim);
}

/* The four warps' sums, each relative to its own highest score, into the output. */
template <int PER>
static __device__ void merge(
	const flex_args &a, float (&acc)[PER], float highest, float sum, bf16 *out)
{
	__shared__ float sums[FLEX_BF16_HEAD_DIM], stats[WARPS][2];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float all = -CUDART_INF_F, total = 0.0f;

	if (lane == 0) {
		stats[warp][0] = highest;
		stats[warp][1] = sum;
	}
	for (uint32_t d = threadIdx.x; d < a.head_dim; d += WARPS * 32)
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
				if (i * 32 + lane < (int)a.head_dim)
					sums[i * 32 + lane] += acc[i] * power_2(highest - all);
		__syncthreads();
	}
	for (uint32_t d = threadIdx.x; d < a.head_dim; d += WARPS * 32)
		out[d] = __float2bfloat16(total > 0.0f ? sums[d] / total : 0.0f);
	__syncthreads();
}

/* One key; all lanes of the warp. */
template <int PER>
static __device__ __forceinline__ void attend(const flex_args &a, const bf16 *key,
	const float (&q)[PER], float (&acc)[PER], float &highest, float &sum)
{
	size_t to_value = (size_t)a.page_tokens * a.n_kv_heads * a.head_dim;
	int lane = threadIdx.x % 32, dim = (int)a.head_dim;
	float score = 0.0f, keep, weight;

#pragma unroll
	for (int i = 0; i < PER; i++)
		if (i * 32 + lane < dim)
			score += q[i] * __bfloat162float(key[i * 32 + lane]);
	for (int d = 16; d > 0; d /= 2)
		score += __shfl_xor_sync(~0u, score, d);
	keep = power_2(highest - fmaxf(highest, score));
	highest = fmaxf(highest, score);
	weight = power_2(score - highest);
	sum = sum * keep + weight;
#pragma unroll
	for (int i = 0; i < PER; i++)
		if (i * 32 + lane < dim)
			acc[i] = acc[i] * keep +
				 weight * __bfloat162float(key[to_value + i * 32 + lane]);
}

template <int PER>
static __device__ void token_attend(
	const flex_args &a, const flex_block &block, const slot_mask &mask, int32_t token)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = (int)a.head_dim;
	uint32_t head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads);
	const mask_view view = view_of(a, block, mask, token);
	const int32_t *list = list_of(a, blockIdx.x);
	const int32_t *pages = a.block_table + (size_t)block.row * a.max_pages;
	const bf16 *query = (const bf16 *)a.q + (size_t)(block.first + token) * a.q_stride +
			    (size_t)head * dim;
	int32_t n = view.end ? a.plan.counts[blockIdx.x] : 0;
	float q[PER], acc[PER] = {}, highest = -CUDART_INF_F, sum = 0.0f;

#pragma unroll
	for (int i = 0; i < PER; i++)
		q[i] = n && i * 32 + lane < dim
			       ? __bfloat162float(query[i * 32 + lane]) * a.scale * CUDART_L2E_F
			       : 0.0f;
	for (int32_t e = warp; e < n; e += WARPS) {
		uint32_t from = FLEX_ENTRY_BLOCK(list[e]) * FLEX_TILE;

		for (uint64_t seen = mask_view_bits(&view, from); seen; seen &= seen - 1) {
			uint32_t position = from + (uint32_t)__ffsll((int64_t)seen) - 1;

			attend<PER>(a, key_at(a, pages, position) + (size_t)kv_head * dim, q, acc,
				highest, sum);
		}
	}
	merge<PER>(a, acc, highest, sum,
		(bf16 *)a.out + ((size_t)(block.first + token) * a.n_heads + head) * dim);
}

template <int PER> static __global__ void any_kernel(const __grid_constant__ flex_args a)
{
	slot_mask mask = {};
	flex_block block;
	int32_t slot;

	overlap_begin();
	block = a.plan.blocks[blockIdx.x];
	if (a.in.slot_mask && block.row >= 0) {
		slot = a.in.row_slot[block.row];
		if (slot >= 0 && (uint32_t)slot < a.in.max_slots)
			mask = a.in.slot_mask[slot];
	}
	for (int32_t i = 0; i < block.n_tokens; i++)
		token_attend<PER>(a, block, mask, i);
}

void flex_any_launch(struct stream *stream, const struct flex_args *args)
{
	dim3 grid(args->n_blocks, args->n_heads);

	if (args->head_dim <= 64)
		launch(stream, any_kernel<2>, grid, WARPS * 32, 0, *args);
	else if (args->head_dim <= 256)
		launch(stream, any_kernel<8>, grid, WARPS * 32, 0, *args);
	else
		launch(stream, any_kernel<32>, grid, WARPS * 32, 0, *args);
}

const void *flex_any_kernel(void)
{
	return (const void *)any_kernel<2>;
}
