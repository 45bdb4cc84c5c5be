/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_PRODUCT_CUH
#define MIMEO_KERNELS_CUDA_STEP_PRODUCT_CUH

/*
 * The warps that multiply. Warp w has columns [64 w, 64 w + 64) of every stage, of all 16 rows. x is
 * never in shared memory: a lane's share of it is in registers in the layout of mma's B, loaded from
 * the L2 as soon as it is there, once for all tiles of the block. A tile's eight sums go to the
 * finishing warps.
 *
 * A norm costs nothing here: x is residual * weight, and each warp leaves its sum of squares, by
 * which the finishing warps scale the sums.
 *
 * A tensor core adds columns up in any order, if both operands agree on it: lane (r, q) has the eight
 * columns from 32 h + 8 q on, h = 0, 1, of row r of W and of column r of x. Odd rows read their halves
 * the other way round, or a quarter of a warp would read two rows from the same banks.
 */

#include "kernels/cuda/step_pieces.cuh"

/* ---- products ---- */

/* A tile's sums: this lane's rows r8 and r8 + 8 by columns 2 q and 2 q + 1. */
struct step_sums {
	float c[4];
};

/* The same while they are added up, as two chains, which need not wait for each other. */
struct step_chains {
	float c[2][4];
};

/* Half of a stage, a box: this lane's row of it, all 64 columns of the warp. */
STEP_INLINE void step_box_load(const step_worker &k, uint32_t box, uint4 (&w)[2])
{
	const uint32_t odd = k.r8 & 1, chunk = (k.q + odd * 4) ^ k.warp;
	const uint32_t row = k.at.ring + k.stage.index * STEP_STAGE + box * (STEP_STAGE / 2) +
			     k.r8 * 1024 + k.warp * 128;
	const uint4 u = step_lds_16(row + chunk * 16), v = step_lds_16(row + (chunk ^ 4) * 16);

#pragma unroll
	for (int j = 0; j < 4; j++) {
		step_set_word(w[0], j, odd ? step_word(v, j) : step_word(u, j));
		step_set_word(w[1], j, odd ? step_word(u, j) : step_word(v, j));
	}
}

STEP_INLINE void step_stage_done(const step_args &a, step_worker &k)
{
	step_meet_warp();
	if (k.lane == 0)
		step_arrive(k.at.empty + k.stage.index * 8);
	step_next(k.stage, a.n_stages);
}

/* One stage: 16 rows of W by 64 columns, of all columns of x. */
STEP_INLINE void step_multiply_stage(
	const step_args &a, step_worker &k, const uint4 (&x)[2], step_chains &sums)
{
	uint4 u[2], v[2];

	step_wait(k.at.full + k.stage.index * 8, k.stage.parity, 3);
	step_box_load(k, 0, u);
	step_box_load(k, 1, v);
#pragma unroll
	for (int h = 0; h < 2; h++)
#pragma unroll
		for (int j = 0; j < 4; j += 2)
			step_mma(sums.c[h], step_word(u[h], j), step_word(v[h], j),
				step_word(u[h], j + 1), step_word(v[h], j + 1),
				step_word(x[h], j), step_word(x[h], j + 1));
	step_stage_done(a, k);
}

/* One stage of a half tile: 8 rows by 64 columns of each box. */
STEP_INLINE void step_multiply_half(
	const step_args &a, step_worker &k, const uint4 (&x)[2], const uint4 (&y)[2], step_chains &sums)
{
	uint4 u[2], v[2];

	step_wait(k.at.full + k.stage.index * 8, k.stage.parity, 3);
	step_box_load(k, 0, u);
	step_box_load(k, 1, v);
#pragma unroll
	for (int h = 0; h < 2; h++)
#pragma unroll
		for (int j = 0; j < 4; j += 2) {
			step_mma(sums.c[0], step_word(u[h], j), 0, step_word(u[h], j + 1), 0,
				step_word(x[h], j), step_word(x[h], j + 1));
			step_mma(sums.c[1], step_word(v[h], j), 0, step_word(v[h], j + 1), 0,
				step_word(y[h], j), step_word(y[h], j + 1));
		}
	step_stage_done(a, k);
}

/* A tile by n stages of x. */
template <int N>
STEP_INLINE step_sums step_multiply(
	const step_args &a, step_worker &k, const step_x<N> &x, uint32_t n, bool half)
{
	step_chains chains = {};
	step_sums sums;

	if (half) {
#pragma unroll
		for (int s = 0; s < N; s += 2)
			if ((uint32_t)s < n)
				step_multiply_half(a, k, x.v[s], x.v[s + 1], chains);
	} else {
#pragma unroll
		for (int s = 0; s < N; s++)
			if ((uint32_t)s < n)
				step_multiply_stage(a, k, x.v[s], chains);
	}
#pragma unroll
	for (int e = 0; e < 4; e++)
		sums.c[e] = chains.c[0][e] + chains.c[1][e];
	return sums;
}

/* To the finishing warps: [warp][row][column]. */
STEP_INLINE void step_leave(const step_args &a, step_worker &k, const step_sums &sums)
{
	const uint32_t to = k.at.sums + k.sums.index * STEP_SUM_BYTES + k.warp * 512 + k.r8 * 32 + k.q * 8;

	step_wait(k.at.sums_empty + k.sums.index * 8, k.sums.parity ^ 1, 4);
	step_sts_8f(to, sums.c[0], sums.c[1]);
	step_sts_8f(to + 256, sums.c[2], sums.c[3]);
	step_meet_warp();
	if (k.lane == 0)
		step_arrive(k.at.sums_full + k.sums.index * 8);
	step_next(k.sums, STEP_SUMS);
}

template <int N, int DIM, bool ONE>
STEP_INLINE void step_outer_product(const step_args &a, step_worker &k, step_x<N> &x,
	const uint32_t *regions, uint32_t i, const step_range &r)
{
	const uint32_t product = step_outer(a, i);
	const step_vector &norm = i % 2 ? a.post_norm : a.input_norm;
	const step_bf16 *weight =
		product == STEP_HEAD ? a.final_norm : norm.data + i / 2 * norm.stride;

	if (step_n_of(r) == 0)
		return;
	step_x_norm<N, ONE>(a, k, x, step_residual<DIM>(a, k.division.serial, regions, i, k.r8 % a.rows), weight, i % 2, i > 0);
#pragma unroll 1
	for (uint32_t j = 0; j < step_n_tiles(product, r); j++)
		step_leave(a, k, step_multiply(a, k, x, step_stages(a.hidden), step_tile_at(product, r, j).half));
}

/* Some stages of all of the block's tiles. */
template <int N>
STEP_INLINE void step_own_tiles(const step_args &a, step_worker &k, const step_x<N> &x, uint32_t n_stages,
	const step_range &r, step_sums (&own)[STEP_OWN_MAX])
{
#pragma unroll 1
	for (uint32_t o = 0; o < step_n_tiles(STEP_DOWN, r); o++) {
		const step_sums sums = step_multiply(a, k, x, n_stages, step_tile_at(STEP_DOWN, r, o).half);

#pragma unroll
		for (int j = 0; j < STEP_OWN_MAX; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				own[j].c[e] += o == (uint32_t)j ? sums.c[e] : 0.0f;
	}
}

template <int N, int DIM, bool ONE>
STEP_INLINE void step_inner_product(const step_args &a, step_worker &k, step_x<N> &x,
	const uint32_t *region, uint32_t i, const step_range &mine)
{
	const step_region r = step_region_of<DIM>(a, k.division.serial);
	const uint32_t cols = i % 2 ? a.intermediate : a.n_heads * DIM, stages = step_stages(cols);
	const bool merges = i % 2 == 0 && !step_gathers(k.division.serial);
	const uint32_t *p = region + (i % 2 ? r.activated : r.gathered) + k.r8 % a.rows * (cols / 2) + k.warp * 32;
	step_sums own[STEP_OWN_MAX] = {};
	step_raw<N, ONE> next;

	if (step_n_of(mine) == 0)
		return;
	if (!merges) {
		step_raw_load(k, next, p, step_my_stages(k, cols, 0, N));
		step_gate(a, p, step_raw_is_whole(next), 31);
	}
#pragma unroll 1
	for (uint32_t c = 0; c < stages; c += N) {
		const uint32_t here = stages - c < N ? stages - c : N;

		if (!merges) {
			step_raw_ensure(a, k, next, p + c * 256, 32);
			step_raw_spread(k, next, x);
			if (c + N < stages)
				step_raw_load(k, next, p + (c + N) * 256, step_my_stages(k, cols, c + N, N));
		} else {
			step_x_merge<N, DIM>(a, k, x, region, r, c, here);
		}
		step_own_tiles(a, k, x, here, mine, own);
	}
#pragma unroll
	for (int j = 0; j < STEP_OWN_MAX; j++)
		if ((uint32_t)j < step_n_tiles(STEP_DOWN, mine))
			step_leave(a, k, own[j]);
}

#endif
