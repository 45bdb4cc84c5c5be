/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_FINISH_CUH
#define MIMEO_KERNELS_CUDA_STEP_FINISH_CUH

/*
 * The warps that finish tiles, in turn: they add the eight warps' sums, apply the norm's factor, bias,
 * activation or residual, and put the words where the other blocks look for them. They also empty the
 * other set of regions, a part in each half step.
 *
 * Lane l has row l / 2 of the tile and columns 4 (l % 2) ... + 3. Words are pairs of rows: the lanes of
 * two rows swap halves, and each then has two columns' words.
 */

#include "kernels/cuda/step_words.cuh"

struct step_finisher {
	step_shared at;
	uint32_t lane, row, side; /* side: which four columns */
	uint32_t mine, turn;      /* which finishing warp this is, and whose tile is next */
	uint32_t serial;          /* pieces a column of x */
	step_place sums;
};

/* The four sums of this lane. */
STEP_INLINE void step_take(step_finisher &f, float (&v)[4])
{
	const uint32_t from = f.at.sums + f.sums.index * STEP_SUM_BYTES + f.lane * 16;

	step_wait(f.at.sums_full + f.sums.index * 8, f.sums.parity, 6);
	v[0] = v[1] = v[2] = v[3] = 0;
#pragma unroll
	for (int w = 0; w < STEP_WORKERS; w++) {
		const float4 u = step_lds_16f(from + w * 512);

		v[0] += u.x, v[1] += u.y, v[2] += u.z, v[3] += u.w;
	}
	step_meet_warp();
	if (f.lane == 0)
		step_arrive(f.at.sums_empty + f.sums.index * 8);
}

/* Is the next tile this warp's? If not, it is passed. */
STEP_INLINE bool step_is_mine(step_finisher &f)
{
	const uint32_t whose = f.turn;

	f.turn = f.turn + 1 == STEP_FINISHERS ? 0 : f.turn + 1;
	return whose == f.mine;
}

/* The norm's factors of this lane's columns. */
STEP_INLINE void step_scales(const step_args &a, const step_finisher &f, uint32_t which, float (&scale)[4])
{
	const uint32_t from = f.at.squares + which * STEP_WORKERS * STEP_COLUMNS * 4 + f.side * 16;

	scale[0] = scale[1] = scale[2] = scale[3] = 0;
#pragma unroll
	for (int w = 0; w < STEP_WORKERS; w++) {
		const float4 u = step_lds_16f(from + w * STEP_COLUMNS * 4);

		scale[0] += u.x, scale[1] += u.y, scale[2] += u.z, scale[3] += u.w;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		scale[i] = step_rsqrt(scale[i] / a.hidden + a.eps);
}

/* Of this lane's row and its neighbour: low and high values of columns `column` and one more. */
struct step_words {
	float low[2], high[2];
	uint32_t column;
};

STEP_INLINE step_words step_pair_rows(const step_finisher &f, const float (&v)[4])
{
	const bool odd = f.row & 1;
	const float a = step_xor(odd ? v[0] : v[2], 2), b = step_xor(odd ? v[1] : v[3], 2);
	step_words w;

	w.column = f.side * 4 + odd * 2;
	w.low[0] = odd ? a : v[0], w.high[0] = odd ? v[2] : a;
	w.low[1] = odd ? b : v[1], w.high[1] = odd ? v[3] : b;
	return w;
}

/* Columns that are pieces of one row, added up. */
STEP_INLINE void step_add_pieces(const step_args &a, float (&v)[4])
{
	if (a.rows == 8)
		return;
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] += step_xor(v[i], 1);
	if (a.rows <= 2) {
		v[0] += v[2];
		v[1] += v[3];
	}
	if (a.rows == 1)
		v[0] += v[1];
}

/* ---- one tile of each product ---- */

STEP_INLINE void step_finish_qkv(const step_args &a, const step_finisher &f, float (&v)[4], const step_tile &t,
	const step_bf16 *bias, uint32_t *to, uint32_t width)
{
	const bool there = f.row < t.n_groups * STEP_GROUP;
	const float add = bias && there ? step_float((uint32_t)bias[t.group * STEP_GROUP + f.row] << 16) : 0.0f;

#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] += add;
	const step_words w = step_pair_rows(f, v);
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (there && w.column + i < a.rows)
			step_put(to + (w.column + i) * width + t.group * 4 + f.row / 2,
				step_pack(w.low[i], w.high[i]));
}

STEP_INLINE void step_finish_gate_up(
	const step_args &a, const step_finisher &f, float (&v)[4], const step_tile &t, uint32_t *to)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float up = step_xor(v[i], 16);

		v[i] = v[i] / (1 + step_exp2(-1.4426950408889634f * v[i])) * up;
	}
	const step_words w = step_pair_rows(f, v);
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (f.row < 8 && w.column + i < a.rows)
			step_put(to + (w.column + i) * (a.intermediate / 2) + t.group * 4 + f.row / 2,
				step_pack(w.low[i], w.high[i]));
}

STEP_INLINE void step_finish_head(const step_args &a, const step_finisher &f, const float (&v)[4], const step_tile &t)
{
	const uint32_t row = t.group * STEP_GROUP + f.row;
	const bool there = f.row < t.n_groups * STEP_GROUP && row < a.vocab;

#pragma unroll
	for (int i = 0; i < 4; i++)
		if (there && f.side * 4 + i < a.rows)
			a.logits[(size_t)(f.side * 4 + i) * a.vocab + row] = v[i];
}

/* ---- the products ---- */

template <int DIM>
STEP_INLINE void step_finish_outer(const step_args &a, step_finisher &f, uint32_t *regions, uint32_t i,
	const step_range &mine)
{
	const step_region r = step_region_of<DIM>(a, f.serial);
	const uint32_t product = step_outer(a, i);
	const uint32_t width = (a.n_heads + 2 * a.n_kv_heads) * DIM / 2;
	const step_bf16 *bias = a.qkv_bias.data ? a.qkv_bias.data + i / 2 * a.qkv_bias.stride : nullptr;
	uint32_t *region = regions + (size_t)(i / 2) * r.words;
	bool known = false;
	float scale[4], v[4];

#pragma unroll 1
	for (uint32_t j = 0; j < step_n_tiles(product, mine); j++, step_next(f.sums, STEP_SUMS)) {
		const step_tile t = step_tile_at(product, mine, j);

		if (!step_is_mine(f))
			continue;
		step_take(f, v);
		if (!known)
			step_scales(a, f, i % 2, scale);
		known = true;
#pragma unroll
		for (int e = 0; e < 4; e++)
			v[e] *= scale[e];
		if (product == STEP_QKV)
			step_finish_qkv(a, f, v, t, bias, region + r.qkv, width);
		else if (product == STEP_GATE_UP)
			step_finish_gate_up(a, f, v, t, region + r.activated);
		else
			step_finish_head(a, f, v, t);
	}
}

template <int DIM>
STEP_INLINE void step_finish_inner(const step_args &a, step_finisher &f, uint32_t *regions, uint32_t i,
	const step_range &mine)
{
	const step_region r = step_region_of<DIM>(a, f.serial);
	const uint32_t width = a.hidden / 2, column = f.side * 4 + f.row % 2 * 2;
	uint32_t *to = regions + (size_t)(i / 2) * r.words + (i % 2 ? r.after_down : r.after_o);

#pragma unroll 1
	for (uint32_t j = 0; j < step_n_tiles(STEP_DOWN, mine); j++, step_next(f.sums, STEP_SUMS)) {
		const step_tile t = step_tile_at(STEP_DOWN, mine, j);
		const bool there = f.row < t.n_groups * STEP_GROUP;
		const uint32_t at = t.group * 4 + (there ? f.row / 2 : 0);
		uint32_t residual[2];
		float v[4];

		if (!step_is_mine(f))
			continue;
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const uint32_t *from = step_residual<DIM>(a, f.serial, regions, i, (column + e) % a.rows) + at;

			residual[e] = i ? step_get(from, 50) : step_ldx_4(from);
		}
		step_take(f, v);
		if (i % 2 == 0 && !step_gathers(f.serial))
			step_add_pieces(a, v);
		const step_words w = step_pair_rows(f, v);
#pragma unroll
		for (int e = 0; e < 2; e++)
			if (there && w.column + e < a.rows)
				step_put(to + (w.column + e) * width + at,
					step_pack(step_low(residual[e]) + w.low[e],
						step_high(residual[e]) + w.high[e]));
	}
}

/* A part of the other set's words, for the step to come. */
STEP_INLINE void step_empty(const step_args &a, const step_finisher &f, uint32_t *old, uint32_t words, uint32_t i)
{
	const uint32_t n = words / 4, parts = 2 * a.n_layers;
	const uint32_t first = (uint32_t)((uint64_t)n * i / parts);
	const uint32_t end = (uint32_t)((uint64_t)n * (i + 1) / parts);

#pragma unroll 1
	for (uint32_t p = first + (blockIdx.x * STEP_FINISHERS + f.mine) * 32 + f.lane; p < end;
		p += gridDim.x * STEP_FINISHERS * 32)
		step_stx_16(old + (size_t)p * 4, STEP_EMPTY);
}

template <int DIM>
STEP_INLINE void step_finish(
	const step_args &a, const step_shared &at, uint32_t serial, uint32_t set, uint32_t old_words)
{
	const uint32_t lane = threadIdx.x % 32;
	step_finisher f = {at, lane, lane / 2, lane % 2, threadIdx.x / 32 - STEP_FINISHER, 0, serial,
		{0, 0}};
	step_turn turn = {blockIdx.x, gridDim.x, 0};

#pragma unroll 1
	for (uint32_t i = 0;; i++) {
		const uint32_t outer = step_outer(a, i);

		step_finish_outer<DIM>(a, f, a.exchange[set], i,
			step_share_out(turn, step_n_groups<DIM>(a, outer)));
		if (outer == STEP_HEAD)
			return;
		if (outer == STEP_QKV)
			step_share_out(turn, step_n_units(a, serial));
		step_empty(a, f, a.exchange[set ^ 1], old_words, i);
		step_finish_inner<DIM>(a, f, a.exchange[set], i,
			step_share_out(turn, step_n_groups<DIM>(a, step_inner(i))));
	}
}

#endif
