/* SPDX-License-Identifier: MIT */

/*
 * The plan of block masks, and the schedule of the kernels that read it.
 *
 * Grid: one warp for each query block that the padded batch can have (at most PLAN_GRID thread blocks). Block:
 * eight warps. Shared memory: 21 KB. Every thread block computes the rows' query blocks by itself, with two
 * scans over 256 rows at a time. Then each warp takes a query block: it forms the union of its tokens' views,
 * and each lane examines one key block, so that the time depends on the length of the list. The last thread
 * block to finish has the lengths of all lists and writes the schedule.
 *
 * Reads 8 bytes per row and token and 16 per row; writes the lists, twice 64 bytes per query block, and 96
 * per slot. Invalid lengths are clamped here, once, as on the cpu device.
 *
 * Measured on an H200: 6.8 us for one row, 7.9 for 32 decodes of 1k, 11 for a prompt of 8k, 14 for
 * one of 16k, once a step for each window size of the layers. The time consists of round trips to memory:
 * lengths, masks, words, lists, the count of blocks that are done, lengths of lists, slots.
 */

#include "attention/flex/flex_schedule.cuh"
#include "attention/flex/mask.h"
#include "kernels/cuda/overlap.cuh"

#define PLAN_GRID 264u

/* ---- lists ---- */

struct plan_rows {
	scan_memory<int32_t> scan;
	int32_t begin[THREADS], end[THREADS]; /* tokens */
	int32_t seq_len[THREADS];
	int32_t blocks[THREADS + 1]; /* of queries before each */
	slot_mask masks[THREADS];
};

static __device__ int32_t clamp(int32_t x, uint32_t high)
{
	return min(max(x, 0), (int32_t)high);
}

static __device__ int32_t blocks_of(const flex_inputs &in, int32_t n_tokens)
{
	return (int32_t)(((uint32_t)n_tokens + in.n_queries - 1) / in.n_queries);
}

static __device__ slot_mask mask_of(const flex_inputs &in, int32_t slot)
{
	slot_mask causal = {};

	return slot >= 0 && (uint32_t)slot < in.max_slots ? in.slot_mask[slot] : causal;
}

static __device__ mask_union warp_union(mask_union u)
{
	u.first = __reduce_min_sync(~0u, u.first);
	u.end = __reduce_max_sync(~0u, u.end);
	u.sinks_low = __reduce_min_sync(~0u, u.sinks_low);
	u.sinks = __reduce_max_sync(~0u, u.sinks);
	u.tree = __reduce_max_sync(~0u, u.tree);
	u.bits = (uint64_t)__reduce_or_sync(~0u, (uint32_t)(u.bits >> 32)) << 32 |
		 __reduce_or_sync(~0u, (uint32_t)u.bits);
	u.low_max = __reduce_max_sync(~0u, u.low_max);
	u.first_max = __reduce_max_sync(~0u, u.first_max);
	u.end_min = __reduce_min_sync(~0u, u.end_min);
	u.sinks_min = __reduce_min_sync(~0u, u.sinks_min);
	return u;
}

/* The union of the views of a block's tokens; called by a warp. */
static __device__ mask_union views_of(
	const flex_plan_args &a, const flex_block &block, const slot_mask &mask)
{
	mask_union all = mask_union_none();

	for (int32_t i = threadIdx.x % 32; i < block.n_tokens; i += 32) {
		uint64_t word = a.in.slot_mask ? a.in.mask_words[block.first + i] : 0;
		int32_t position = block.position + i;

		if (position < 0)
			continue;
		mask_view view = mask_view_of(&mask, word, (uint32_t)position,
			(uint32_t)block.seq_len, a.window);
		mask_union one = mask_union_of(&view);

		mask_union_add(&all, &one);
	}
	return warp_union(all);
}

/* Write a block's list; called by a warp. Returns its length. */
static __device__ int32_t list_write(
	const flex_plan_args &a, const flex_block &block, const mask_union &views, int32_t *list)
{
	int lane = threadIdx.x % 32;
	uint32_t first = min(views.first, views.sinks_low), end = max(views.end, views.sinks);
	int32_t n = 0;

	if (views.bits) {
		first = min(first, views.tree);
		end = max(end, min(views.tree + 64, (uint32_t)block.seq_len));
	}
	for (uint32_t base = first / FLEX_TILE; base * FLEX_TILE < end; base += 32) {
		uint32_t k = base + lane, from = k * FLEX_TILE;
		mask_block seen = MASK_BLOCK_NONE;
		uint32_t some;

		if (from < end && k < a.in.max_keys)
			seen = mask_union_block(&views, from,
				min(from + FLEX_TILE, (uint32_t)block.seq_len));
		some = __ballot_sync(~0u, seen != MASK_BLOCK_NONE);
		/* tokens before the sequence see nothing, which only the mask tells */
		if (seen != MASK_BLOCK_NONE)
			list[n + __popc(some & ((1u << lane) - 1))] = FLEX_ENTRY(
				k, seen == MASK_BLOCK_ALL && block.position >= 0);
		n += __popc(some);
	}
	return n;
}

/* Write a block of queries and its list; called by a warp. */
static __device__ void block_write(
	const flex_cuda_plan_args &p, int32_t index, const flex_block &block, const slot_mask &mask)
{
	const flex_plan_args &a = p.a;
	int32_t *list = a.plan.indices + (size_t)index * ((size_t)a.in.max_keys + 1);
	int32_t n = 0, n_query = block.seq_len - block.history;
	flex_work work = {};

	work.block = block;
	work.index = index;
	work.mask = mask;
	if (block.seq_len > 0 && block.position + block.n_tokens > 0)
		n = list_write(a, block, views_of(a, block, work.mask), list);
	work.n_entries = n;
	if (n_query <= (int32_t)p.short_query)
		work.n_items = (int32_t)(p.n_kv_heads *
			((block.n_tokens * p.group + FLEX_PART - 1) / FLEX_PART));
	if (threadIdx.x % 32 == 0) {
		list[n] = -1;
		a.plan.counts[index] = n;
		a.plan.blocks[index] = block;
		p.to.works[index] = work;
	}
}

/* Find the blocks of rows [base, base + THREADS); adds to the tokens and blocks so far. */
static __device__ void rows_find(
	const flex_plan_args &a, uint32_t base, plan_rows &found, int32_t &token, int32_t &n_blocks)
{
	uint32_t r = base + threadIdx.x;
	bool there = r < a.n_rows;
	int32_t end = there ? clamp(a.in.query_start[r + 1], a.n_tokens) : 0, sum;
	int32_t seq_len = there ? clamp(a.in.seq_lens[r], a.in.capacity) : 0;
	slot_mask mask = mask_of(a.in, there && a.in.slot_mask ? a.in.row_slot[r] : -1);

	end = max(block_scan(end, found.scan, [](int32_t x, int32_t y) { return max(x, y); }),
		token);
	found.seq_len[threadIdx.x] = seq_len;
	found.masks[threadIdx.x] = mask;
	found.end[threadIdx.x] = end;
	__syncthreads();
	found.begin[threadIdx.x] = threadIdx.x ? found.end[threadIdx.x - 1] : token;
	sum = block_sums(blocks_of(a.in, end - found.begin[threadIdx.x]), found.scan);
	found.blocks[threadIdx.x + 1] = n_blocks + sum;
	if (threadIdx.x == 0)
		found.blocks[0] = n_blocks;
	__syncthreads();
	token = found.end[THREADS - 1];
	n_blocks = found.blocks[THREADS];
}

static __device__ void row_block_write(
	const flex_cuda_plan_args &p, const plan_rows &found, uint32_t base, int32_t index)
{
	const flex_inputs &in = p.a.in;
	int i = last_begun(THREADS, [&](int32_t r) { return found.blocks[r] <= index; });
	int32_t seq_len = found.seq_len[i], end = found.end[i];
	flex_block block;

	block.row = (int32_t)base + i;
	block.first = found.begin[i] + (index - found.blocks[i]) * (int32_t)in.n_queries;
	block.n_tokens = min(end - block.first, (int32_t)in.n_queries);
	block.position = seq_len - (end - block.first);
	block.seq_len = seq_len;
	block.history = seq_len - (end - found.begin[i]);
	block_write(p, index, block, found.masks[i]);
}

/* Write the blocks after those of the rows: padding and unused blocks, one per thread. */
static __device__ void rest_write(const flex_plan_args &a, int32_t token, int32_t n_blocks)
{
	for (uint32_t b = (uint32_t)n_blocks + blockIdx.x * THREADS + threadIdx.x;
		b < a.in.max_blocks; b += gridDim.x * THREADS) {
		int64_t first = token + (int64_t)(b - n_blocks) * a.in.n_queries;
		int32_t left = (int32_t)max((int64_t)a.n_tokens - first, (int64_t)0);
		flex_block block = {};

		block.row = -1;
		block.n_tokens = min(left, (int32_t)a.in.n_queries);
		block.first = left ? (int32_t)first : 0;
		block.position = block.history = -left;
		a.plan.blocks[b] = block;
		a.plan.counts[b] = 0;
		a.plan.indices[(size_t)b * ((size_t)a.in.max_keys + 1)] = -1;
	}
}

/* ---- the kernel ---- */

static __global__ void __launch_bounds__(THREADS)
	plan_kernel(const __grid_constant__ flex_cuda_plan_args p)
{
	__shared__ union {
		struct plan_rows rows;
		struct schedule_layout layout;
	} memory;
	__shared__ uint32_t done;
	int32_t n_warps = gridDim.x * PLAN_WARPS;
	int32_t warp = blockIdx.x * PLAN_WARPS + threadIdx.x / 32;
	int32_t token = 0, n_blocks = 0;

	overlap_begin();
	for (uint32_t base = 0; base < p.a.n_rows; base += THREADS) {
		int32_t before = n_blocks;

		rows_find(p.a, base, memory.rows, token, n_blocks);
		for (int32_t b = before + warp; b < n_blocks; b += n_warps)
			row_block_write(p, memory.rows, base, b);
		__syncthreads();
	}
	rest_write(p.a, token, n_blocks);
	if (gridDim.x > 1) {
		__threadfence();
		__syncthreads();
		if (threadIdx.x == 0)
			done = atomicInc(p.to.done, gridDim.x - 1);
		__syncthreads();
		if (done != gridDim.x - 1)
			return;
		__threadfence();
	}
	schedule_write(p, n_blocks, token, memory.layout);
}

void flex_plan_launch(struct stream *stream, const flex_cuda_plan_args *args)
{
	uint64_t n = flex_blocks(args->a.in.n_queries, args->a.n_rows, args->a.n_tokens);
	uint64_t grid = (n + PLAN_WARPS - 1) / PLAN_WARPS;

	launch(stream, plan_kernel, dim3(grid < PLAN_GRID ? (uint32_t)grid : PLAN_GRID),
		dim3(THREADS), 0, *args);
}

const void *const flex_plan_kernel = (const void *)plan_kernel;
