/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_X_CUH
#define MIMEO_KERNELS_CUDA_STEP_X_CUH

/*
 * x of a product, as the warps that multiply get it: from the words of other blocks straight into registers,
 * in the layout of mma's B.
 */

#include "kernels/cuda/step_words.cuh"

struct step_worker {
	step_shared at;
	uint32_t warp, lane, r8, q;
	step_division division;
	step_place stage, sums;
};

/* A share of x: of each stage the columns of h = 0, 1. */
template <int N> struct step_x {
	uint4 v[N][2];
};

/* How many of the stages from `first` on have columns of this warp, at most `most`. */
STEP_INLINE uint32_t step_my_stages(const step_worker &k, uint32_t cols, uint32_t first, uint32_t most)
{
	const uint32_t before = first * STEP_COLS + k.warp * 64;
	const uint32_t n = cols > before ? (cols - before + STEP_COLS - 1) / STEP_COLS : 0;

	return n < most ? n : most;
}

/* ---- x ---- */

/*
 * A share of x on its way. Of one row (ONE) all lanes of a column have the same: they ask for different
 * chunks, chunk c of this warp's columns being stage c / 8, h c / 4 % 2, q c % 4, and swap. Blocks
 * that look for words ask the L2 an eighth as often then.
 */
template <int N, bool ONE> struct step_raw {
	uint4 v[ONE ? N / 4 : 2 * N];
};

/* Where v[i] of the row at p, the warp's first word of it, comes from, and its stage. */
template <bool ONE> STEP_INLINE uint32_t step_raw_at(const step_worker &k, int i, uint32_t *stage)
{
	const uint32_t chunk = i * 32 + k.lane;

	*stage = ONE ? chunk / 8 : i / 2;
	return ONE ? chunk / 8 * 256 + chunk % 8 * 4 : i / 2 * 256 + i % 2 * 16 + k.q * 4;
}

template <int N, bool ONE>
STEP_INLINE void step_raw_load(const step_worker &k, step_raw<N, ONE> &x, const uint32_t *p, uint32_t n)
{
#pragma unroll
	for (int i = 0; i < (ONE ? N / 4 : 2 * N); i++) {
		uint32_t stage;
		const uint32_t at = step_raw_at<ONE>(k, i, &stage);

		x.v[i] = stage < n ? step_ldx_16(p + at) : make_uint4(0, 0, 0, 0);
	}
}

template <int N, bool ONE> STEP_INLINE bool step_raw_is_whole(const step_raw<N, ONE> &x)
{
	bool whole = true;

#pragma unroll
	for (int i = 0; i < (ONE ? N / 4 : 2 * N); i++)
		whole = whole && step_is_whole(x.v[i]);
	return whole;
}

/* Until no word is EMPTY. Only what is not there is asked for again. */
template <int N, bool ONE>
STEP_INLINE void step_raw_ensure(
	const step_args &a, const step_worker &k, step_raw<N, ONE> &x, const uint32_t *p, uint32_t where)
{
	uint64_t since = 0;
	uint32_t n = 0;

#pragma unroll 1
	for (;;) {
		bool all = true;

#pragma unroll
		for (int i = 0; i < (ONE ? N / 4 : 2 * N); i++)
			if (!step_is_whole(x.v[i])) {
				uint32_t stage;

				x.v[i] = step_ldx_16(p + step_raw_at<ONE>(k, i, &stage));
				all = false;
			}
		if (all)
			return;
		step_spin(n, since, where);
	}
}

template <int N, bool ONE>
STEP_INLINE void step_raw_spread(const step_worker &k, const step_raw<N, ONE> &raw, step_x<N> &x)
{
	if constexpr (!ONE) {
#pragma unroll
		for (int i = 0; i < 2 * N; i++)
			x.v[i / 2][i % 2] = raw.v[i];
	} else {
		step_meet_warp();
#pragma unroll
		for (int i = 0; i < 2 * N; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				step_set_word(x.v[i / 2][i % 2], j,
					step_of_lane(step_word(raw.v[i / 8], j), i % 8 * 4 + k.q));
	}
}

/* Where words that all lanes asked for are not there, one lane looks until its first ones are, before all ask again:
 * 32 that look keep the words from arriving. A block that is late finds them at once. */
STEP_INLINE void step_gate(const step_args &a, const uint32_t *p, bool there, uint32_t where)
{
	if (step_all_lanes(there))
		return;
	if (threadIdx.x % 32 == 0)
		step_get_16(p, where);
	step_meet_warp();
}

/* x = residual * weight, and its sum of squares. */
template <int N, bool ONE>
STEP_INLINE void step_x_norm(const step_args &a, step_worker &k, step_x<N> &x, const uint32_t *residual,
	const step_bf16 *weight, uint32_t which, bool computed)
{
	const uint32_t *p = residual + k.warp * 32;
	const uint32_t mine = step_my_stages(k, a.hidden, 0, N);
	float squares = 0;
	step_raw<N, ONE> raw;
	step_x<N> g;

#pragma unroll
	for (int s = 0; s < N; s++)
#pragma unroll
		for (int h = 0; h < 2; h++)
			g.v[s][h] = (uint32_t)s < mine
				? step_ldc_16(weight + 2 * (k.warp * 32 + k.q * 4 + s * 256 + h * 16))
				: make_uint4(0, 0, 0, 0);
	step_raw_load(k, raw, p, mine);
	if (computed) {
		step_gate(a, p, step_raw_is_whole(raw), 10 + which);
		step_raw_ensure(a, k, raw, p, 12 + which);
	}
	step_raw_spread(k, raw, x);
#pragma unroll
	for (int s = 0; s < N; s++)
#pragma unroll
		for (int h = 0; h < 2; h++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const uint32_t w = step_word(x.v[s][h], j), b = step_word(g.v[s][h], j);

				squares += step_low(w) * step_low(w) + step_high(w) * step_high(w);
				step_set_word(x.v[s][h], j,
					step_pack(step_low(w) * step_low(b), step_high(w) * step_high(b)));
			}
	squares += step_xor(squares, 1);
	squares += step_xor(squares, 2);
	if (k.q == 0)
		step_sts_4f(k.at.squares + ((which * STEP_WORKERS + k.warp) * STEP_COLUMNS + k.r8) * 4,
			squares);
}

#endif
