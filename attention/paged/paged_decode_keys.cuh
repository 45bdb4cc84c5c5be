/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_DECODE_KEYS_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_DECODE_KEYS_CUH

/*
 * Decode, until a row ends: a warp's walk over its part of a piece of keys and values, with its ring
 * of sub-tiles and its running softmax. The whole is told in paged_decode.cu.
 */

#include "attention/paged/paged_decode_rows.cuh"
#include "kernels/cuda/overlap.cuh"

/* What one block does in one row: tiles [tile, tile_end) of packed query rows from m_first on. */
struct segment {
	plan_row row;
	int32_t tile, tile_end;
	int32_t m_first, n_m;
	int32_t kv_head;
	int32_t share; /* number of this block among those of the slot */
	bool early;    /* overlap_wait has not been called yet */
};

template <int D> struct running : row_sums<D> {
	int32_t position[2], first[2]; /* what the lane's two rows see: [first, position] */
};

/* First token of a warp's i-th sub-tile. */
static __device__ __forceinline__ int32_t sub_tile_token(const segment &s, int i)
{
	return (s.tile + i) * PAGED_TILE + (int)(threadIdx.x / 32) * SUB_TILE;
}

static __device__ __forceinline__ int32_t sub_tile_page(
	const paged_cuda_args &p, const segment &s, int i)
{
	int32_t token = sub_tile_token(s, i);

	if (token >= s.row.seq_len || s.tile + i >= s.tile_end)
		return 0;
	return page_clamp(__ldg(p.a.block_table + (size_t)s.row.row * p.a.max_pages +
				(token >> p.page_shift)),
		p.a.n_pages);
}

/* Queue the copies of one sub-tile; what no query may see comes as zeros. */
template <int D>
static __device__ __forceinline__ void sub_tile_load(
	const paged_cuda_args &p, const segment &s, uint32_t stage, int i, int32_t page)
{
	constexpr int chunks = D / 8;
	constexpr uint32_t pitch = (D + 8) * 2;
	int lane = threadIdx.x % 32;
	int32_t token = sub_tile_token(s, i);
	size_t row = (size_t)p.a.n_kv_heads * D, to_value = row << p.page_shift;
	const bf16 *keys = (const bf16 *)p.a.kv + ((size_t)page * 2) * to_value +
			   (token & ((1 << p.page_shift) - 1)) * row + (size_t)s.kv_head * D;

#pragma unroll
	for (int k = 0; k < SUB_TILE * chunks / 32; k++) {
		int c = lane + 32 * k, r = c / chunks, col = c % chunks;
		const bf16 *src = keys + r * row + col * 8;
		uint32_t dst = stage + r * pitch + col * 16;
		bool seen = token + r >= s.row.first && token + r < s.row.seq_len;

		copy_16(dst, src, seen);
		copy_16(dst + SUB_TILE * pitch, src + to_value, seen);
	}
}

/* The A fragments of 16 packed query rows; rows past the last are zeros. */
template <int D>
static __device__ __forceinline__ void query_load(
	const paged_cuda_args &p, const segment &s, uint32_t (&q)[D / 16][4], running<D> &run)
{
	int lane = threadIdx.x % 32;
	int group = p.a.n_heads / p.a.n_kv_heads;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = s.m_first + lane / 4 + half * 8;
		bool valid = m < s.row.n_query * group;
		int token = valid ? m / group : 0;
		int head = s.kv_head * group + (valid ? m % group : 0);
		const bf16 *src = (const bf16 *)p.a.q +
				  (size_t)(s.row.query_first + token) * p.a.q_stride +
				  (size_t)head * D + lane % 4 * 2;

#pragma unroll
		for (int k = 0; k < D / 16; k++) {
			q[k][half] = valid ? *(const uint32_t *)(src + k * 16) : 0;
			q[k][half + 2] = valid ? *(const uint32_t *)(src + k * 16 + 8) : 0;
		}
		run.position[half] = valid ? s.row.seq_len - s.row.n_query + token : -1;
		run.first[half] = window_first(run.position[half], p.a.window);
	}
}

/* What is not visible is -inf. */
template <int D>
static __device__ __forceinline__ void mask(
	int32_t token, const running<D> &run, float (&scores)[2][4])
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

template <int D>
static __device__ __forceinline__ void sub_tile_attend(const uint32_t (&q)[D / 16][4],
	uint32_t stage, int32_t token, float scale_log2, running<D> &run)
{
	float scores[2][4] = {};

	score<D>(q, stage, scores);
	mask<D>(token, run, scores);
	weigh<D>(scores, scale_log2, run);
	add_values<D>(scores, stage + ring<D, 1>::half, run);
}

/* May a warp's i-th sub-tile be loaded before the wait? What the step writes may not. */
static __device__ __forceinline__ bool sub_tile_settled(const segment &s, int i)
{
	return sub_tile_token(s, i) + SUB_TILE <= s.row.seq_len - s.row.n_query ||
	       s.tile + i >= s.tile_end;
}

/* One warp's share of a segment. */
template <int D, int STAGES>
static __device__ __forceinline__ void stream_keys(const paged_cuda_args &p, const segment &s,
	uint32_t memory, float scale_log2, running<D> &run)
{
	constexpr uint32_t stage_bytes = 2 * ring<D, STAGES>::half;
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
			sub_tile_load<D>(p, s, memory + filling * stage_bytes, i,
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
	query_load<D>(p, s, q, run);
	for (int i = 0; i < n; i++) {
		copy_wait<STAGES - 2>();
		__syncwarp(); /* every lane's copies are here, and nobody reads the stage before */
		load(i + STAGES - 1);
		sub_tile_attend<D>(q, memory + reading * stage_bytes, sub_tile_token(s, i),
			scale_log2, run);
		reading = reading + 1 == STAGES ? 0 : reading + 1;
	}
	copy_wait<0>();
	__syncwarp();
}

#endif
