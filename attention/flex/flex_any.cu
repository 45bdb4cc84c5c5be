/* SPDX-License-Identifier: MIT */

/*
 * Block masks for any model: every head size to FLEX_BF16_HEAD_DIM, every page size, every
 * alignment.
 *
 * Grid: query blocks x heads. Block: 16 warps, which process one token after the other; each warp takes every
 * 16th entry of the list. A lane has head_dim / 32 elements, a score is a sum over the warp. Shared memory:
 * 4 KB, the block's sum. Keys and values are read once per token and head, so it is slow. It exists so that no
 * model is refused, for scores with a soft cap, and for deterministic models: a token's result depends only on
 * its own keys, although the list also has the keys of the other tokens of its block.
 */

#include "attention/flex/flex_views.cuh"
#include "attention/paged/paged_any.cuh"
#include "kernels/cuda/overlap.cuh"

/* The element of the cache where a position's first key head begins. */
static __device__ size_t flex_any_key_at(const flex_args &a, const int32_t *pages, uint32_t position)
{
	int32_t page = page_clamp(pages[position / a.page_tokens], a.n_pages);

	return ((size_t)page * 2 * a.page_tokens + position % a.page_tokens) *
	       ((size_t)a.n_kv_heads * a.head_dim);
}

template <int PER, bool CODES>
static __device__ void token_attend(
	const flex_args &a, const flex_block &block, const slot_mask &mask, int32_t token)
{
	int warp = threadIdx.x / 32, dim = (int)a.head_dim;
	uint32_t head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads);
	const mask_view view = view_of(a, block, mask, token);
	const int32_t *list = list_of(a, blockIdx.x);
	const int32_t *pages = a.block_table + (size_t)block.row * a.max_pages;
	const bf16 *query = (const bf16 *)a.q + (size_t)(block.first + token) * a.q_stride +
			    (size_t)head * dim;
	size_t to_value = (size_t)a.page_tokens * a.n_kv_heads * dim;
	int32_t n = view.end ? a.plan.counts[blockIdx.x] : 0;
	float q[PER], acc[PER] = {}, highest = -CUDART_INF_F, sum = 0.0f;

	any_load(q, query, dim, a.scale, n > 0);
	for (int32_t e = 0; e < n; e++) {
		uint32_t block_of_keys = FLEX_ENTRY_BLOCK(list[e]), from = block_of_keys * FLEX_TILE;

		if (block_of_keys % WARPS != (uint32_t)warp)
			continue;
		for (uint64_t seen = mask_view_bits(&view, from); seen; seen &= seen - 1) {
			uint32_t position = from + (uint32_t)__ffsll((int64_t)seen) - 1;

			any_take<CODES>(a.kv, flex_any_key_at(a, pages, position) + (size_t)kv_head * dim,
				to_value, dim, a.soft_cap, q, acc, highest, sum);
		}
	}
	any_merge<PER, FLEX_BF16_HEAD_DIM>(dim, acc, highest, sum, a.factors.value,
		(bf16 *)a.out + ((size_t)(block.first + token) * a.n_heads + head) * dim);
}

template <int PER, bool CODES>
static __global__ void __launch_bounds__(WARPS * 32) any_kernel(const __grid_constant__ flex_args a)
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
	for (int32_t i = 0; i < block.n_tokens; i++) {
		token_attend<PER, CODES>(a, block, mask, i);
		__syncthreads();
	}
}

void flex_any_launch(struct stream *stream, const struct flex_args *args)
{
	dim3 grid(args->n_blocks, args->n_heads);

	ANY_LAUNCH(stream, any_kernel, args->head_dim, args->fp8, grid, *args);
}

const void *const flex_any_kernel = (const void *)any_kernel<2, false>;
