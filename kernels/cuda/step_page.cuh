/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_PAGE_CUH
#define MIMEO_KERNELS_CUDA_STEP_PAGE_CUH

/*
 * A page of 16 tokens, of one warp: scores, weights, values. It lies in shared memory as boxes of 64 columns:
 * [K, V][16 tokens][128 bytes], the 16-byte chunk c of a token at place c ^ token % 8. Row i of a
 * matrix is token i / 2 + i % 2 * 4, so that a quarter of a warp reads from all banks.
 */

#include "kernels/cuda/step_heads.cuh"

/* Of a warp over its pages: heads 2 q and 2 q + 1. */
template <int DIM> struct step_share {
	float top[2], total[2];
	float out[DIM / 16][4]; /* columns 16 i + r8 and 8 more, of both heads */
};

/* ---- a page ---- */

STEP_INLINE uint32_t step_token_of(uint32_t row)
{
	return row / 2 + row % 2 * 4;
}

/* Values of tokens that are not there may be NaN, which a weight of 0 does not hide. */
template <int DIM> STEP_INLINE void step_page_clear(const step_worker &k, uint32_t page, uint32_t from)
{
#pragma unroll
	for (int g = 0; g < DIM / 64; g++)
		for (uint32_t i = from * 8 + k.lane; i < STEP_PAGE * 8; i += 32)
			step_sts_16(page + g * 4096 + 2048 + i * 16, make_uint4(0, 0, 0, 0));
	step_fence_copies();
	step_meet_warp();
}

/* Scores of tokens token_of(r8) and 8 more, heads 2 q and 2 q + 1. */
template <int DIM>
STEP_INLINE void step_page_scores(const step_worker &k, const step_head<DIM> &q, uint32_t page, float (&c)[4])
{
	const uint32_t token = step_token_of(k.r8), row = page + token * 128;
	float d[4] = {};

	c[0] = c[1] = c[2] = c[3] = 0;
#pragma unroll
	for (int i = 0; i < DIM / 32; i++) {
		const uint32_t at = row + i / 2 * 4096 + ((k.q + i % 2 * 4) ^ token) * 16;
		const uint4 u = step_lds_16(at), v = step_lds_16(at + 1024), b = q.v[i / 2][i % 2];

		step_mma(c, u.x, v.x, u.y, v.y, b.x, b.y);
		step_mma(d, u.z, v.z, u.w, v.w, b.z, b.w);
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		c[i] += d[i];
}

/* Scores become weights; what was there before is scaled to the new top. */
template <int DIM>
STEP_INLINE void step_page_weigh(const step_args &a, const step_worker &k, step_share<DIM> &share, float (&c)[4], uint32_t n)
{
	const uint32_t token = step_token_of(k.r8);

#pragma unroll
	for (int i = 0; i < 4; i++)
		c[i] = token + i / 2 * 8 < n ? c[i] * a.scale_log2 : -INFINITY;
#pragma unroll
	for (int e = 0; e < 2; e++) {
		float top = fmaxf(fmaxf(c[e], c[2 + e]), share.top[e]), keep;

		top = fmaxf(top, step_xor(top, 4));
		top = fmaxf(top, step_xor(top, 8));
		top = fmaxf(top, step_xor(top, 16));
		keep = share.top[e] == -INFINITY ? 0.0f : step_exp2(share.top[e] - top);
		c[e] = c[e] == -INFINITY ? 0.0f : step_exp2(c[e] - top);
		c[2 + e] = c[2 + e] == -INFINITY ? 0.0f : step_exp2(c[2 + e] - top);
		share.top[e] = top;
		share.total[e] = share.total[e] * keep + c[e] + c[2 + e];
#pragma unroll
		for (int i = 0; i < DIM / 16; i++) {
			share.out[i][e] *= keep;
			share.out[i][2 + e] *= keep;
		}
	}
}

/* A page's first n tokens. */
template <int DIM>
STEP_INLINE void step_page(const step_args &a, const step_worker &k, const step_head<DIM> &q, uint32_t page,
	uint32_t n, step_share<DIM> &share)
{
	const uint32_t i = k.lane % 8, token = k.lane / 16 * 8 + step_token_of(i);
	const uint32_t row = page + 2048 + token * 128, half = k.lane / 8 % 2;
	uint32_t b0, b1;
	float c[4];

	if (n < STEP_PAGE)
		step_page_clear<DIM>(k, page, n);
	step_page_scores<DIM>(k, q, page, c);
	step_page_weigh<DIM>(a, k, share, c, n);
	b0 = step_transpose(step_pack(c[0], c[1]));
	b1 = step_transpose(step_pack(c[2], c[3]));
#pragma unroll
	for (int t = 0; t < DIM / 16; t++) {
		uint32_t v[4];

		step_load_transposed(v, row + t / 4 * 4096 + ((t % 4 * 2 + half) ^ token % 8) * 16);
		step_mma(share.out[t], v[0], v[1], v[2], v[3], b0, b1);
	}
}

#endif
