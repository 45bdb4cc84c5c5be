/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_DECODE_KEYS_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_DECODE_KEYS_CUH

/*
 * Decode, until a row ends: a warp's walk over its part of a piece of keys and values, with its
 * ring of sub-tiles and its running softmax. paged_decode.cu describes the whole.
 */

#include "attention/paged/paged_decode_rows.cuh"
#include "kernels/cuda/overlap.cuh"

/* A block's work in one row: tiles [tile, tile_end), for packed query rows from m_first on. */
struct decode_segment {
	paged_row row;
	int32_t tile, tile_end;
	int32_t m_first, n_m;
	int32_t kv_head;
	int32_t share; /* number of this block among those of the slot */
	bool early;    /* overlap_wait has not been called yet */
};

template <int D> struct decode_rows : row_sums<D> {
	int32_t position[2], first[2]; /* what the lane's two rows see: [first, position] */
};

/* First token of a warp's i-th sub-tile. */
static __device__ __forceinline__ int32_t sub_tile_token(const decode_segment &s, int i)
{
	return (s.tile + i) * PAGED_TILE + (int)(threadIdx.x / 32) * SUB_TILE;
}

static __device__ __forceinline__ int32_t sub_tile_page(
	const paged_cuda_args &p, const decode_segment &s, int i)
{
	int32_t token = sub_tile_token(s, i);

	if (token >= s.row.seq_len || s.tile + i >= s.tile_end)
		return 0;
	return page_clamp(__ldg(p.a.block_table + (size_t)s.row.row * p.a.max_pages +
				(token >> p.page_shift)),
		p.a.n_pages);
}

template <int D, bool CODES>
static __device__ __forceinline__ void sub_tile_load(
	const paged_cuda_args &p, const decode_segment &s, uint32_t stage, int i, int32_t page)
{
	sub_tile_copy<D, CODES>(p.a, p.page_shift, s.kv_head, stage, sub_tile_token(s, i), page,
		[&](int32_t t) { return t >= s.row.first && t < s.row.seq_len; });
}

template <int D, bool CODES>
static __device__ __forceinline__ void decode_query_load(const paged_cuda_args &p, const decode_segment &s,
	uint32_t (&q)[D / 16][4], decode_rows<D> &run)
{
	int lane = threadIdx.x % 32, group = p.a.n_heads / p.a.n_kv_heads;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = s.m_first + lane / 4 + half * 8;
		bool valid = m < s.row.n_query * group;
		int token = query_half_load<D, CODES>(
			p.a, s.row.query_first, s.kv_head, m, valid, half, q);

		run.position[half] = valid ? s.row.seq_len - s.row.n_query + token : -1;
		run.first[half] = window_first(run.position[half], p.a.window);
	}
}

/* Set the scores of keys that are not visible to -inf. */
template <int D>
static __device__ __forceinline__ void decode_mask(
	int32_t token, const decode_rows<D> &run, float (&scores)[2][4])
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			int32_t position = token + n * 8 + lane % 4 * 2 + (j & 1);
			bool seen = position <= run.position[j >> 1] &&
				    position >= run.first[j >> 1];

			scores[n][j] = seen ? scores[n][j] : NEVER;
		}
}

template <int D, bool CODES>
static __device__ __forceinline__ void sub_tile_attend(const uint32_t (&q)[D / 16][4],
	uint32_t stage, int32_t token, float scale_log2, decode_rows<D> &run)
{
	float scores[2][4] = {};

	rows_score<D, CODES>(q, stage, scores);
	decode_mask<D>(token, run, scores);
	weigh<D>(scores, scale_log2, run);
	if constexpr (CODES)
		add_coded_values<D>(scores, stage + warp_ring<D, 1, true>::half, run);
	else
		add_values<D>(scores, stage + warp_ring<D, 1>::half, run);
}

/* May a warp's i-th sub-tile be loaded before the wait? What the step writes may not. */
static __device__ __forceinline__ bool sub_tile_settled(const decode_segment &s, int i)
{
	return sub_tile_token(s, i) + SUB_TILE <= s.row.seq_len - s.row.n_query ||
	       s.tile + i >= s.tile_end;
}

/* One warp's share of a segment. */
template <int D, int STAGES, bool CODES>
static __device__ __forceinline__ void stream_keys(const paged_cuda_args &p,
	const decode_segment &s, uint32_t memory, float scale_log2, decode_rows<D> &run)
{
	constexpr uint32_t stage_bytes = 2 * warp_ring<D, STAGES, CODES>::half;
	int lane = threadIdx.x % 32, n = s.tile_end - s.tile;
	int32_t pages = sub_tile_page(p, s, lane), later = sub_tile_page(p, s, 32 + lane);
	uint32_t q[D / 16][4];
	int filling = 0, reading = 0, settled = 0;

	auto load = [&](int i) {
		if (i % 32 == 0 && i > 0) {
			pages = later;
			later = sub_tile_page(p, s, i + 32 + lane);
		}
		if (i < n)
			sub_tile_load<D, CODES>(p, s, memory + filling * stage_bytes, i,
				__shfl_sync(~0u, pages, i % 32));
		copy_commit();
		filling = filling + 1 == STAGES ? 0 : filling + 1;
	};

	if (s.early) {
		while (settled < STAGES - 1 && sub_tile_settled(s, settled))
			load(settled++);
		overlap_wait();
	}
#pragma unroll
	for (int i = 0; i < STAGES - 1; i++)
		if (i >= settled)
			load(i);
	decode_query_load<D, CODES>(p, s, q, run);
	for (int i = 0; i < n; i++) {
		copy_wait<STAGES - 2>();
		__syncwarp(); /* every lane's copies are here, and no lane reads the stage before */
		load(i + STAGES - 1);
		sub_tile_attend<D, CODES>(q, memory + reading * stage_bytes, sub_tile_token(s, i),
			scale_log2, run);
		reading = reading + 1 == STAGES ? 0 : reading + 1;
	}
	copy_wait<0>();
	__syncwarp();
}

#endif
