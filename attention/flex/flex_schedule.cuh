/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_SCHEDULE_CUH
#define MIMEO_ATTENTION_FLEX_FLEX_SCHEDULE_CUH

/*
 * The schedule: which blocks of queries are split, long or without keys, the division of the line into slots
 * and, if there are few long blocks, of their lists into pieces. The last thread block of the plan kernel
 * computes it from the output of all blocks, 256 works at a time. flex_plan.cu has the overview.
 */

#include <cuda_runtime.h>

#include "attention/flex/flex_cuda.h"
#include "attention/scan.cuh"

#define THREADS 256
#define PLAN_WARPS (THREADS / 32)

/* ---- scans over the thread block ---- */

template <typename T> struct scan_memory {
	T warps[PLAN_WARPS];
};

/* Inclusive scan with an associative function; all threads of the block call it. */
template <typename T, typename Join>
static __device__ T block_scan(T x, scan_memory<T> &memory, Join join)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	x = warp_scan(x, lane, join);
	__syncthreads(); /* the last use of the memory is over */
	if (lane == 31)
		memory.warps[warp] = x;
	__syncthreads();
	for (int w = 0; w < warp; w++)
		x = join(x, memory.warps[w]);
	return x;
}

template <typename T> static __device__ T block_sums(T x, scan_memory<T> &memory)
{
	return block_scan(x, memory, [](T a, T b) { return a + b; });
}

/* ---- the schedule, by the last block ---- */

/* For 256 works: how many of each of the three kinds precede it, in 10 bits each. */
enum { OF_SPLIT = 0, OF_LONG = 10, OF_ZERO = 20 };

struct schedule_layout {
	scan_memory<int64_t> sums;
	scan_memory<uint32_t> ranks;
	flex_work works[THREADS];    /* 256 of them */
	int64_t starts[THREADS + 1]; /* their positions on the line */
	int32_t splits[THREADS];     /* their indices among all split works */
	int32_t longs[THREADS], pieces[THREADS + 1]; /* their indices among long works, and their first pieces */
	uint32_t counts;             /* of all 256 */
	int64_t all;
};

/* Totals over all works, and how they are divided. */
struct schedule_cuts {
	int64_t tiles;    /* of the line */
	int32_t per_slot; /* of them */
	int32_t n_zero;   /* works without keys, and the padding */
	int32_t per_piece; /* entries of a long list; 0: whole lists */
};

/* Tiles that a work has on the line. */
static __device__ int64_t tiles_of(const flex_work &w)
{
	return (int64_t)w.n_entries * w.n_items;
}

static __device__ bool is_long(const flex_work &w)
{
	return w.n_entries && !w.n_items;
}

static __device__ flex_work work_load(const flex_work *from)
{
	union {
		uint4 raw[sizeof(flex_work) / 16];
		flex_work work;
	} u;

#pragma unroll
	for (size_t i = 0; i < sizeof(flex_work) / 16; i++)
		u.raw[i] = __ldcg((const uint4 *)from + i);
	return u.work;
}

/* The thread's work of the 256 from `base` on; past the last an empty one, without items or entries. */
static __device__ flex_work work_of(
	const flex_cuda_plan_args &p, int32_t base, int32_t n_blocks)
{
	flex_work none = {};
	int32_t b = base + (int32_t)threadIdx.x;

	return b < n_blocks ? work_load(p.to.works + b) : none;
}

static __device__ int64_t block_total(int64_t x, schedule_layout &memory)
{
	x = block_sums(x, memory.sums);
	if (threadIdx.x == THREADS - 1)
		memory.all = x;
	__syncthreads();
	return memory.all;
}

static __device__ int32_t over(int64_t x, uint32_t by)
{
	return (int32_t)min((x + by - 1) / by, (int64_t)INT32_MAX - 1);
}

/* ret_work: the thread's work of the last 256. */
static __device__ schedule_cuts cuts_find(const flex_cuda_plan_args &p, int32_t n_blocks,
	bool padding, schedule_layout &memory, flex_work *ret_work)
{
	int64_t tiles = 0, entries = 0, n_long = 0;
	flex_work w = {};
	schedule_cuts found = {};

	found.n_zero = padding;
	for (int32_t base = 0; base < n_blocks; base += THREADS) {
		bool there = base + (int32_t)threadIdx.x < n_blocks;

		w = work_of(p, base, n_blocks);
		tiles += tiles_of(w);
		entries += is_long(w) ? w.n_entries : 0;
		n_long += __syncthreads_count(is_long(w));
		found.n_zero += __syncthreads_count(there && w.n_entries == 0);
	}
	*ret_work = w;
	found.tiles = block_total(tiles, memory);
	found.per_slot = max(over(found.tiles, p.n_slots), 1);
	/* so few works that more than half of the thread blocks would be idle */
	if (n_long && 2 * n_long * p.n_kv_heads <= p.n_blocks) {
		entries = block_total(entries, memory) * p.n_kv_heads;
		found.per_piece = (max(over(entries, p.n_blocks), FLEX_PIECE) + 1) / 2 * 2;
	}
	return found;
}

/* Write the slots that begin within the 256 works. */
static __device__ void slots_write(const flex_cuda_plan_args &p, const schedule_layout &memory,
	const schedule_cuts &c, int32_t splits_before)
{
	for (uint32_t s = threadIdx.x; s < p.n_slots; s += THREADS) {
		int64_t begin = (int64_t)s * c.per_slot;
		flex_slot slot = {};
		int low;

		if (begin < memory.starts[0] || begin >= memory.starts[THREADS])
			continue;
		/* works without tiles are never found */
		low = last_begun(THREADS, [&](int32_t w) { return memory.starts[w] <= begin; });
		slot.work = memory.works[low];
		slot.begin = begin;
		slot.end = min(begin + c.per_slot, c.tiles);
		slot.next = splits_before + memory.splits[low] + 1;
		slot.n_zero = c.n_zero;
		slot.tiles_per_slot = c.per_slot;
		p.to.slots[s] = slot;
	}
}

/* Write the unused slots, past the end of the line. */
static __device__ void slots_empty(const flex_cuda_plan_args &p, const schedule_cuts &c)
{
	for (uint32_t s = threadIdx.x; s < p.n_slots; s += THREADS) {
		flex_slot slot = {};

		if ((int64_t)s * c.per_slot < c.tiles)
			continue;
		slot.n_zero = c.n_zero;
		slot.tiles_per_slot = c.per_slot;
		p.to.slots[s] = slot;
	}
}

/* How many pieces a work has, over all kv heads. */
static __device__ int32_t pieces_of(
	const flex_cuda_plan_args &p, const schedule_cuts &c, const flex_work &w)
{
	return is_long(w) ? (int32_t)p.n_kv_heads * ((w.n_entries + c.per_piece - 1) / c.per_piece)
			  : 0;
}

/* Write the pieces of the 256 works: for each kv head the pieces of its list in order. longs[t] and pieces[t]
 * are the indices of thread t's work and of its first piece. */
static __device__ void pieces_write(
	const flex_cuda_plan_args &p, const schedule_cuts &c, const schedule_layout &memory)
{
	for (int32_t i = memory.pieces[0] + (int32_t)threadIdx.x; i < memory.pieces[THREADS];
		i += THREADS) {
		/* works without pieces are never found */
		int low = last_begun(THREADS, [&](int32_t w) { return memory.pieces[w] <= i; });
		flex_piece piece = {};
		int32_t n, in_work;

		n = pieces_of(p, c, memory.works[low]) / (int32_t)p.n_kv_heads;
		in_work = i - memory.pieces[low];
		piece.work = memory.longs[low];
		piece.kv_head = in_work / n;
		piece.entry = in_work % n * c.per_piece;
		piece.end = min(piece.entry + c.per_piece, memory.works[low].n_entries);
		piece.first = i - in_work % n;
		piece.n = n;
		p.to.pieces[i] = piece;
	}
}

static __device__ uint32_t sort_of(const flex_work &w, bool there)
{
	if (!there)
		return 0;
	if (w.n_entries == 0)
		return 1u << OF_ZERO;
	return w.n_items ? 1u << OF_SPLIT : 1u << OF_LONG;
}

static __device__ int32_t count_of(uint32_t counts, int sort)
{
	return (int32_t)(counts >> sort & 1023);
}

/* How many works and pieces of each sort have been laid out. */
struct schedule_laid {
	int64_t line;
	int32_t n_split, n_long, n_zero, n_pieces;
};

/* Add 256 works, one per thread, to the schedule and the counts. */
static __device__ void works_lay(const flex_cuda_plan_args &p, const schedule_cuts &c, flex_work w,
	bool there, schedule_layout &memory, schedule_laid &so_far)
{
	const flex_schedule &to = p.to;
	uint32_t sort = sort_of(w, there), before;

	w.start = so_far.line + block_sums(tiles_of(w), memory.sums) - tiles_of(w);
	before = block_sums(sort, memory.ranks) - sort;
	memory.works[threadIdx.x] = w;
	memory.starts[threadIdx.x] = w.start;
	memory.splits[threadIdx.x] = count_of(before, OF_SPLIT);
	if (threadIdx.x == THREADS - 1) {
		memory.starts[THREADS] = w.start + tiles_of(w);
		memory.counts = before + sort;
	}
	if (sort == 1u << OF_SPLIT)
		to.splits[so_far.n_split + count_of(before, OF_SPLIT)] = w;
	if (sort == 1u << OF_LONG)
		to.longs[so_far.n_long + count_of(before, OF_LONG)] = w;
	if (sort == 1u << OF_ZERO) {
		int32_t *zero = to.zeros[so_far.n_zero + count_of(before, OF_ZERO)];

		zero[0] = w.block.first;
		zero[1] = w.block.first + w.block.n_tokens;
	}
	if (c.per_piece) {
		int32_t n = pieces_of(p, c, w);

		memory.longs[threadIdx.x] = so_far.n_long + count_of(before, OF_LONG);
		memory.pieces[threadIdx.x + 1] =
			so_far.n_pieces + (int32_t)block_sums((int64_t)n, memory.sums);
		if (threadIdx.x == 0)
			memory.pieces[0] = so_far.n_pieces;
		__syncthreads();
		pieces_write(p, c, memory);
		so_far.n_pieces = memory.pieces[THREADS];
	}
	__syncthreads();
	slots_write(p, memory, c, so_far.n_split);
	so_far.line = memory.starts[THREADS];
	so_far.n_split += count_of(memory.counts, OF_SPLIT);
	so_far.n_long += count_of(memory.counts, OF_LONG);
	so_far.n_zero += count_of(memory.counts, OF_ZERO);
	__syncthreads();
}

static __device__ void schedule_write(
	const flex_cuda_plan_args &p, int32_t n_blocks, int32_t token, schedule_layout &memory)
{
	bool padding = token < (int32_t)p.a.n_tokens;
	schedule_laid so_far = {};
	flex_work w;
	schedule_cuts c = cuts_find(p, n_blocks, padding, memory, &w);

	for (int32_t base = 0; base < n_blocks; base += THREADS) {
		if (n_blocks > THREADS)
			w = work_of(p, base, n_blocks);
		works_lay(p, c, w, base + (int32_t)threadIdx.x < n_blocks, memory, so_far);
	}
	slots_empty(p, c);
	if (threadIdx.x)
		return;
	if (padding) {
		p.to.zeros[so_far.n_zero][0] = token;
		p.to.zeros[so_far.n_zero][1] = (int32_t)p.a.n_tokens;
	}
	p.to.head->n_long = so_far.n_long;
	p.to.head->n_zero = c.n_zero;
	p.to.head->n_pieces = so_far.n_pieces;
}

#endif
