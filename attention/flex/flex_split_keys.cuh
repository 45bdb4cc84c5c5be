/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_SPLIT_KEYS_CUH
#define MIMEO_ATTENTION_FLEX_FLEX_SPLIT_KEYS_CUH

/*
 * Split blocks: how a warp processes a piece of a list, with its ring of sub-tiles and its running softmax.
 * flex_split.cu has the overview.
 */

#include "attention/flex/flex_views.cuh"
#include "attention/paged/paged_decode_rows.cuh"
#include "kernels/cuda/overlap.cuh"

/* A piece: entries [entry, end) of a work's list, for one kv head and 16 packed rows from
 * m_first. */
struct split_piece {
	flex_work work;
	int32_t entry, end;
	int32_t kv_head, m_first, n_m;
	int64_t item_start; /* of the whole list, on the line */
	bool early;         /* overlap_wait has not been called yet */
};

/* 32 sub-tiles of a warp, one per lane: the entry, -1 past the piece, and its page. */
struct split_ahead {
	int32_t entry, page;
};

/* The first of the warp's 16 tokens in an entry's block of keys. */
static __device__ __forceinline__ int32_t sub_tile_token(int32_t entry)
{
	return (int32_t)(FLEX_ENTRY_BLOCK(entry) * FLEX_TILE) +
	       (int32_t)(threadIdx.x / 32 % WARPS) * SUB_TILE;
}

static __device__ __forceinline__ split_ahead look_ahead(
	const flex_cuda_args &p, const split_piece &s, const int32_t *list, int i)
{
	split_ahead found = {-1, 0};
	int32_t token;

	i += s.entry + threadIdx.x % 32;
	if (i >= s.end)
		return found;
	found.entry = __ldg(list + i);
	token = sub_tile_token(found.entry);
	if (token < s.work.block.seq_len)
		found.page = page_clamp(__ldg(p.a.block_table +
					      (size_t)s.work.block.row * p.a.max_pages +
					      (token >> p.page_shift)),
			p.a.n_pages);
	return found;
}

/* Load the A fragments of 16 packed query rows, and the rows' views. */
template <int D, bool CODES>
static __device__ __forceinline__ void split_query_load(
	const flex_cuda_args &p, const split_piece &s, uint32_t (&q)[D / 16][4], mask_view *views)
{
	int lane = threadIdx.x % 32, group = p.a.n_heads / p.a.n_kv_heads;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = lane / 4 + half * 8;

		query_half_load<D, CODES>(p.a, s.work.block.first, s.kv_head, s.m_first + m, m < s.n_m,
			half, q);
	}
	__syncwarp(); /* no lane reads the previous piece's views any more */
	if (lane < (int)FLEX_PART)
		views[lane] = view_of(p.a, s.work.block, s.work.mask,
			lane < s.n_m ? (s.m_first + lane) / group : s.work.block.n_tokens);
	__syncwarp();
}

/* Set the scores of keys that a row does not see to -inf. */
static __device__ __forceinline__ void split_mask(
	const mask_view *views, int32_t token, float (&scores)[2][4])
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		mask_view view = views[lane / 4 + half * 8];
		uint32_t seen = (uint32_t)mask_view_bits(&view, (uint32_t)token) >> lane % 4 * 2;

#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (int j = 0; j < 2; j++)
				if (!(seen >> (n * 8 + j) & 1))
					scores[n][half * 2 + j] = NEVER;
	}
}

/* May a sub-tile be loaded before overlap_wait? Not if the step writes it. */
static __device__ __forceinline__ bool settled(const split_piece &s, int32_t entry)
{
	return entry < 0 || sub_tile_token(entry) + SUB_TILE <= s.work.block.history;
}

/* Process one warp's share of a piece. */
template <int D, int STAGES, bool CODES>
static __device__ __forceinline__ void stream_keys(const flex_cuda_args &p, const split_piece &s,
	uint32_t memory, mask_view *views, float scale_log2, row_sums<D> &run)
{
	constexpr uint32_t half = warp_ring<D, STAGES, CODES>::half, stage_bytes = 2 * half;
	const int32_t *list = list_of(p.a, s.work.index);
	int n = s.end - s.entry;
	split_ahead now = look_ahead(p, s, list, 0), later = look_ahead(p, s, list, 32);
	uint32_t q[D / 16][4];
	int32_t entries = now.entry; /* of the sub-tiles that are being computed */
	int filling = 0, reading = 0, early = 0;

	auto load = [&](int i) {
		if (i % 32 == 0 && i > 0) {
			now = later;
			later = look_ahead(p, s, list, i + 32);
		}
		if (i < n) {
			int32_t entry = __shfl_sync(~0u, now.entry, i % 32);
			int32_t page = __shfl_sync(~0u, now.page, i % 32);

			sub_tile_copy<D, CODES>(p.a, p.page_shift, s.kv_head,
				memory + filling * stage_bytes, sub_tile_token(entry), page,
				[&](int32_t t) { return t < s.work.block.seq_len; });
		}
		copy_commit();
		filling = filling + 1 == STAGES ? 0 : filling + 1;
	};

	if (s.early) {
		while (early < STAGES - 1 && settled(s, __shfl_sync(~0u, now.entry, early)))
			load(early++);
		overlap_wait();
	}
#pragma unroll
	for (int i = 0; i < STAGES - 1; i++)
		if (i >= early)
			load(i);
	split_query_load<D, CODES>(p, s, q, views);
	for (int i = 0; i < n; i++) {
		uint32_t stage = memory + reading * stage_bytes;
		float scores[2][4] = {};
		int32_t entry;

		if (i % 32 == 0)
			entries = now.entry; /* loads are less than 32 sub-tiles ahead */
		entry = __shfl_sync(~0u, entries, i % 32);
		copy_wait<STAGES - 2>();
		__syncwarp(); /* all lanes' copies have arrived, and no lane reads the previous stage any more */
		load(i + STAGES - 1);
		rows_score<D, CODES>(q, stage, scores);
		if (!entry_whole(entry, s.work.block.seq_len))
			split_mask(views, sub_tile_token(entry), scores);
		weigh<D>(scores, scale_log2, run);
		if constexpr (CODES)
			add_coded_values<D>(scores, stage + half, run);
		else
			add_values<D>(scores, stage + half, run);
		reading = reading + 1 == STAGES ? 0 : reading + 1;
	}
	copy_wait<0>();
	__syncwarp();
}

#endif
