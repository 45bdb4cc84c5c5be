/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_GATHER_CUH
#define MIMEO_KERNELS_CUDA_STEP_GATHER_CUH

/*
 * Pieces of attention, merged before the product of o, where there are more of them than its columns merge. A
 * warp takes 32 columns of one row's head: lane (r8, q) eight of them, of pieces r8, r8 + 8, ...
 */

#include "kernels/cuda/step_heads.cuh"

enum { STEP_GATHERED = 32 }; /* columns of a warp */

/* A lane's pieces. */
struct step_gathering {
	uint4 v[STEP_SERIAL_MAX];
	uint32_t lse[STEP_SERIAL_MAX];
};

/* Words at p and l, and every `stride` and `lse_stride` behind them, until all n are there. */
STEP_INLINE void step_gathering_load(step_gathering &g, const uint32_t *p, uint32_t stride, const uint32_t *l,
	uint32_t lse_stride, uint32_t n)
{
#pragma unroll
	for (uint32_t i = 0; i < STEP_SERIAL_MAX; i++) {
		g.v[i] = i < n ? step_ldx_16(p + i * stride) : make_uint4(0, 0, 0, 0);
		g.lse[i] = i < n ? step_ldx_4(l + i * lse_stride) : step_bits(-INFINITY);
	}
#pragma unroll
	for (uint32_t i = 0; i < STEP_SERIAL_MAX; i++) {
		if (!step_is_whole(g.v[i]))
			g.v[i] = step_get_16(p + i * stride, 70);
		if (g.lse[i] == STEP_EMPTY)
			g.lse[i] = step_get(l + i * lse_stride, 71);
	}
	step_meet_warp();
}

STEP_INLINE float step_sum_pieces(float v)
{
	v += step_xor(v, 4);
	v += step_xor(v, 8);
	return v + step_xor(v, 16);
}

/* The warp's columns, of all pieces. */
STEP_INLINE uint4 step_gathering_merge(const step_gathering &g)
{
	float top = -INFINITY, total = 0, sum[8] = {};
	uint4 merged;

#pragma unroll
	for (int i = 0; i < STEP_SERIAL_MAX; i++)
		top = fmaxf(top, step_float(g.lse[i]));
	for (int o = 4; o < 32; o *= 2)
		top = fmaxf(top, step_xor(top, o));
#pragma unroll
	for (int i = 0; i < STEP_SERIAL_MAX; i++) {
		const float lse = step_float(g.lse[i]), w = lse == -INFINITY ? 0.0f : step_exp2(lse - top);

		total += w;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			sum[2 * j] += w * step_low(step_word(g.v[i], j));
			sum[2 * j + 1] += w * step_high(step_word(g.v[i], j));
		}
	}
	total = step_sum_pieces(total);
	total = total > 0 ? 1.0f / total : 0.0f;
#pragma unroll
	for (int j = 0; j < 8; j++)
		sum[j] = step_sum_pieces(sum[j]) * total;
#pragma unroll
	for (int j = 0; j < 4; j++)
		step_set_word(merged, j, step_pack(sum[2 * j], sum[2 * j + 1]));
	return merged;
}

/* Of all warps that multiply, in all blocks. */
template <int DIM> STEP_INLINE void step_gather(const step_args &a, const step_worker &k, uint32_t *region)
{
	constexpr uint32_t PARTS = DIM / STEP_GATHERED;
	const step_region r = step_region_of<DIM>(a, k.division.serial);
	const uint32_t width = a.n_heads * DIM / 2, n = a.rows * a.n_heads * PARTS;

#pragma unroll 1
	for (uint32_t i = k.warp * gridDim.x + blockIdx.x; i < n; i += STEP_WORKERS * gridDim.x) {
		const uint32_t row = i / (a.n_heads * PARTS), head = i / PARTS % a.n_heads;
		const uint32_t column = i % (a.n_heads * PARTS) * (STEP_GATHERED / 2) + k.q * 4; /* in words */
		const uint32_t used = step_used_pieces(k.division, step_row_len<DIM>(k, row));
		const uint32_t mine = used > k.r8 ? (used - k.r8 + 7) / 8 : 0, at = k.r8 * a.rows + row;
		step_gathering g;

		step_gathering_load(g, region + r.pieces + at * width + column, 8 * a.rows * width,
			region + r.lse + at * a.n_heads + head, 8 * a.rows * a.n_heads, mine);
		const uint4 merged = step_gathering_merge(g);
		if (k.r8 == 0)
#pragma unroll
			for (int j = 0; j < 4; j++)
				step_put(region + r.gathered + row * width + column + j, step_word(merged, j));
	}
}

#endif
