/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_HEADS_CUH
#define MIMEO_KERNELS_CUDA_STEP_HEADS_CUH

/* Queries and keys: what a row needs in each layer, norms of heads, the rotation. */

#include "kernels/cuda/step_x.cuh"

/* Eight heads' columns: of each 64 those from 32 h + 8 q on, h = 0, 1, of head r8. */
template <int DIM> struct step_head {
	uint4 v[DIM / 64][2];
};

struct step_angles {
	float c[8], s[8];
};

/* ---- what a row needs in each layer ---- */

/* Of all threads that multiply, once a step. */
template <int DIM> STEP_INLINE void step_rows_load(const step_args &a, const step_shared &at)
{
	for (uint32_t i = threadIdx.x; i < a.rows * DIM; i += STEP_WORKERS * 32) {
		const uint32_t row = i / DIM, to = at.rows + row * STEP_ROW_BYTES(DIM);
		const int32_t given = a.positions[row];
		const uint32_t p = given < 0 ? 0 : (uint32_t)given < a.max_positions ? (uint32_t)given
										     : a.max_positions - 1;

		step_sts_4f(to + 16 + i % DIM * 4, a.cos_sin[(size_t)p * DIM + i % DIM]);
		if (i % DIM == 0) {
			step_sts_4(to, step_len_of(a, row));
			step_sts_4(to + 4, (uint32_t)a.slot_mapping[row]);
		}
	}
}

template <int DIM> STEP_INLINE uint32_t step_row_len(const step_worker &k, uint32_t row)
{
	return step_lds_4(k.at.rows + row * STEP_ROW_BYTES(DIM));
}

/* For columns [column, column + 8) of the first half. */
template <int DIM>
STEP_INLINE step_angles step_angles_load(const step_worker &k, uint32_t row, uint32_t column)
{
	const uint32_t from = k.at.rows + row * STEP_ROW_BYTES(DIM) + 16 + column * 4;
	step_angles r;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const float4 c = step_lds_16f(from + i * 16), s = step_lds_16f(from + DIM * 2 + i * 16);

		r.c[4 * i] = c.x, r.c[4 * i + 1] = c.y, r.c[4 * i + 2] = c.z, r.c[4 * i + 3] = c.w;
		r.s[4 * i] = s.x, r.s[4 * i + 1] = s.y, r.s[4 * i + 2] = s.z, r.s[4 * i + 3] = s.w;
	}
	return r;
}

/* ---- heads ---- */

/* Both halves' columns, turned by the angles. */
STEP_INLINE void step_turn_pair(uint4 &low, uint4 &high, const step_angles &by)
{
#pragma unroll
	for (int j = 0; j < 4; j++) {
		const uint32_t l = step_word(low, j), h = step_word(high, j);
		const float c0 = by.c[2 * j], c1 = by.c[2 * j + 1], s0 = by.s[2 * j], s1 = by.s[2 * j + 1];

		step_set_word(low, j, step_pack(step_low(l) * c0 - step_low(h) * s0,
			step_high(l) * c1 - step_high(h) * s1));
		step_set_word(high, j, step_pack(step_low(h) * c0 + step_low(l) * s0,
			step_high(h) * c1 + step_high(l) * s1));
	}
}

template <int DIM>
STEP_INLINE void step_head_load(const step_worker &k, step_head<DIM> &head, const uint32_t *p, bool there)
{
#pragma unroll
	for (int i = 0; i < DIM / 32; i++)
		head.v[i / 2][i % 2] = there ? step_ldx_16(p + i * 16 + k.q * 4) : make_uint4(0, 0, 0, 0);
}

template <int DIM>
STEP_INLINE void step_head_ensure(const step_args &a, const step_worker &k, step_head<DIM> &head, const uint32_t *p)
{
#pragma unroll
	for (int i = 0; i < DIM / 32; i++)
		if (!step_is_whole(head.v[i / 2][i % 2]))
			head.v[i / 2][i % 2] = step_get_16(p + i * 16 + k.q * 4, 40);
	step_meet_warp();
}

/* The norm of a head. */
template <int DIM>
STEP_INLINE void step_head_norm(const step_args &a, const step_worker &k, step_head<DIM> &head, const step_bf16 *weight)
{
	float squares = 0;

#pragma unroll
	for (int i = 0; i < DIM / 8; i++) {
		const uint32_t w = step_word(head.v[i / 8][i / 4 % 2], i % 4);

		squares += step_low(w) * step_low(w) + step_high(w) * step_high(w);
	}
	squares += step_xor(squares, 1);
	squares += step_xor(squares, 2);
	squares = step_rsqrt(squares / DIM + a.eps);
#pragma unroll
	for (int i = 0; i < DIM / 32; i++) {
		const uint4 g = step_ldc_16(weight + i * 32 + k.q * 8);

#pragma unroll
		for (int j = 0; j < 4; j++) {
			const uint32_t w = step_word(head.v[i / 2][i % 2], j), b = step_word(g, j);

			step_set_word(head.v[i / 2][i % 2], j,
				step_pack(step_low(w) * squares * step_low(b),
					step_high(w) * squares * step_high(b)));
		}
	}
}

template <int DIM>
STEP_INLINE void step_head_turn(step_head<DIM> &head, const step_angles (&by)[DIM / 64])
{
	if constexpr (DIM == 64) {
		step_turn_pair(head.v[0][0], head.v[0][1], by[0]);
	} else {
		step_turn_pair(head.v[0][0], head.v[1][0], by[0]);
		step_turn_pair(head.v[0][1], head.v[1][1], by[1]);
	}
}

#endif
