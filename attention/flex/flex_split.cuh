/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_SPLIT_CUH
#define MIMEO_ATTENTION_FLEX_FLEX_SPLIT_CUH

/*
 * Split blocks: how a TEAM of four warps processes a slot of the line. flex_split.cu has the overview.
 */

#include "attention/flex/flex_split_keys.cuh"

/* A team's shared memory, besides its four rings. */
struct split_team {
	mask_view views[WARPS][FLEX_PART];
	float2 stats[WARPS][FLEX_PART];
	uint32_t done;
};

/* Teams use barriers 6 and 7; the kernel for 9.0a uses others. */
static __device__ __forceinline__ void team_sync(void)
{
	asm volatile("bar.sync %0, %1;" ::"r"(6 + threadIdx.x / (WARPS * 32)), "n"(WARPS * 32)
		: "memory");
}

static __device__ __forceinline__ int split_thread(void)
{
	return threadIdx.x % (WARPS * 32);
}

/* ---- merging ---- */

/* The slots that have pieces of an item. */
struct split_pieces {
	int32_t first, n; /* slots */
};

static __device__ __forceinline__ split_pieces pieces_of(
	const split_piece &s, int32_t tiles_per_slot)
{
	int32_t first = (int32_t)(s.item_start / tiles_per_slot);
	int64_t last = (s.item_start + s.work.n_entries - 1) / tiles_per_slot;

	return { first, (int32_t)last - first + 1 };
}

/* A slot has two partials: the first for an item that began in an earlier slot, the second for one that
 * begins in it. */
static __device__ __forceinline__ size_t partial_index(int32_t slot, bool begins)
{
	return ((size_t)slot * 2 + begins) * FLEX_PART;
}

/* Store four columns of a packed row. */
template <int D>
static __device__ __forceinline__ void packed_store(const flex_cuda_args &p,
	const flex_block &block, int32_t kv_head, int packed, int col, float4 x, float sum)
{
	int group = p.a.n_heads / p.a.n_kv_heads;
	size_t row = (size_t)(block.first + packed / group) * p.a.n_heads + kv_head * group +
		     packed % group;
	float factor = sum > 0.0f ? 1.0f / sum * p.a.factors.value : 0.0f;

	*(uint2 *)((bf16 *)p.a.out + row * D + col) = make_uint2(
		pack(x.x * factor, x.y * factor), pack(x.z * factor, x.w * factor));
}

/* True for the whole team if the other n - 1 pieces have been stored. Inlined, because products of warpgroups
 * in progress do not overlap with function calls. */
static __device__ __forceinline__ bool is_last(uint32_t *counter, int32_t n, uint32_t *shared_done)
{
	team_sync();
	if (split_thread() == 0)
		*shared_done = count_piece(counter, (uint32_t)n - 1);
	team_sync();
	return __shfl_sync(~0u, *shared_done, 0) == (uint32_t)n - 1;
}

/* Merge the four warps' sums into the item's output, or into this slot's partial of it. */
template <int D>
static __device__ __forceinline__ void piece_end(const flex_cuda_args &p, const split_piece &s,
	int32_t slot, const split_pieces &all, const float *sums, uint32_t warp_floats,
	split_team *t, float scale_log2)
{
	size_t here = partial_index(slot, slot == all.first);
	auto at = [&](int32_t k) { return partial_index(all.first + k, k == 0); };
	auto store = [&](int m, int col, float4 x, float sum) {
		packed_store<D>(p, s.work.block, s.kv_head, s.m_first + m, col, x, sum);
	};

	merge_warps<D>(sums, warp_floats, t->stats, s.n_m, split_thread(), scale_log2,
		[&](int m, int col, float4 x, float highest, float sum) {
			if (all.n == 1) {
				store(m, col * 4, x, sum);
				return;
			}
			__stcg((float4 *)p.partials + (here + m) * (D / 4) + col, x);
			if (col == 0)
				__stcg((float2 *)p.stats + here + m, make_float2(highest, sum));
		});
	/* at most one item that begins in a slot continues past it, so the counter is this item's */
	if (all.n == 1 || !is_last(p.counters + all.first, all.n, &t->done))
		return;
	if (all.n <= 4)
		merge_pieces<D, 4>(p.partials, p.stats, s.n_m, all.n, split_thread(), scale_log2, at,
			store);
	else
		merge_pieces<D, 16>(p.partials, p.stats, s.n_m, all.n, split_thread(), scale_log2, at,
			store);
}

/* ---- a slot ---- */

/* The piece at position `at` of the line; the slot ends at `end`. */
static __device__ __forceinline__ void piece_find(
	const flex_cuda_args &p, const flex_work &w, int64_t at, int64_t end, split_piece &s)
{
	int group = p.a.n_heads / p.a.n_kv_heads;
	int32_t parts = w.n_items / (int32_t)p.a.n_kv_heads;
	int32_t item = (int32_t)((at - w.start) / w.n_entries);

	s.work = w;
	s.item_start = w.start + (int64_t)item * w.n_entries;
	s.entry = (int32_t)(at - s.item_start);
	s.end = (int32_t)min((int64_t)w.n_entries, end - s.item_start);
	s.kv_head = item / parts;
	s.m_first = item % parts * (int32_t)FLEX_PART;
	s.n_m = min(w.block.n_tokens * group - s.m_first, (int32_t)FLEX_PART);
}

/* Process a slot; every thread calls overlap_wait in it. memory: of the team's rings. */
template <int D, int STAGES, bool CODES = false>
static __device__ __forceinline__ void slot_attend(
	const flex_cuda_args &p, int32_t index, uint8_t *memory, split_team *t)
{
	constexpr uint32_t warp_bytes = warp_ring<D, STAGES, CODES>::bytes;
	static_assert(FLEX_PART * (D + 4) * 4 <= warp_bytes, "sums fit where the ring was");
	const int warp = split_thread() / 32;
	uint8_t *mine = memory + warp * warp_bytes;
	const float scale_log2 = p.a.scale * CUDART_L2E_F;
	flex_slot slot;
	flex_work work;
	split_piece s;

	if (!p.early)
		overlap_wait();
	slot = p.from.slots[index];
	work = slot.work;
	s.early = p.early;
	for (int64_t at = slot.begin; at < slot.end;) {
		row_sums<D> run = {};

		piece_find(p, work, at, slot.end, s);
		at += s.end - s.entry;
		if (at < slot.end && at == work.start + (int64_t)work.n_entries * work.n_items)
			work = p.from.splits[slot.next++];
		run.highest[0] = run.highest[1] = NEVER;
		stream_keys<D, STAGES, CODES>(
			p, s, shared_address(mine), t->views[warp], scale_log2, run);
		s.early = false;
		publish<D, CODES>(run, (float *)mine, t->stats[warp]);
		team_sync();
		piece_end<D>(p, s, index, pieces_of(s, slot.tiles_per_slot), (const float *)memory,
			warp_bytes / 4, t, scale_log2);
		team_sync();
	}
	if (s.early)
		overlap_wait();
	zeros_write(p.a, p.from.zeros, slot.n_zero, index, p.n_slots, split_thread(), WARPS * 32);
}

#endif
