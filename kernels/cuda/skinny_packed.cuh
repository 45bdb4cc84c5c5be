/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SKINNY_PACKED_CUH
#define MIMEO_KERNELS_CUDA_SKINNY_PACKED_CUH

/*
 * Packed weights for skinny.cuh's kernel. A stage is 8 units of 128 columns of each 8 rows, which lie together
 * in memory: one bulk copy of 4 to 8 KB. A warp takes one unit of each 8 rows: it widens the codes behind their
 * load, multiplies, and scales the sums of a group by its factor. W's side of a product is bf16 and exact;
 * factors are applied to float32 sums.
 *
 * x's rows are 16 bytes further apart than they are long, so that ldmatrix uses each bank once.
 *
 * Measured on an H100 (copies 3.0 TB/s), us, plain / E4M3 in groups / U4 (in parentheses what their bytes take at
 * that rate):
 *
 *	rows  model  qkv              o                gate_up             down                head
 *	1     1B     6.1/4.8/4.3      4.1/3.7/3.1      22/14/11            13/8.3/6.7          169/90/71
 *	1     8B     18/11/8.7        13/8.4/6.7       76/42/33            39/23/17            333/177/135
 *	8     8B     18/13/12         13/11/8.9        77/44/36            45/25/22            343/184/138
 *	1     8B     (17/8.6/4.4)     (11/5.8/3.0)     (78/40/21)          (39/20/10)          (349/180/93)
 *
 * Known gap: with 4 bits widening and not the bytes is the limit.
 */

#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/skinny.cuh"

#if __CUDA_ARCH__ >= 900

/* This lane's operands of the unit's eight steps. */
template <class F> __device__ static inline void widen_unit(uint32_t (&to)[2][4][2], uint32_t unit)
{
	const uint32_t lane = threadIdx.x % WARP;
	const uint4 v = load_16(unit + lane * 16);

	if constexpr (F::is_u4) {
		const uint2 zeros = zeros_of_half<F>(unit, 0);

		widen_fragment(to[0], v.x, v.y, zeros.x, zeros.y);
		widen_fragment(to[1], v.z, v.w, zeros.x, zeros.y);
	} else {
		widen_fragment(to[0], v);
		widen_fragment(to[1], load_16(unit + PACKED_FRAGMENT_BYTES + lane * 16));
	}
}

/* Of four steps, with zeros of their own: all eight and their zeros would not fit in the registers. */
template <class F> __device__ static inline void widen_steps(uint32_t (&to)[4][2], uint32_t unit, int half)
{
	const uint2 v = load_8(unit + threadIdx.x % WARP * 16 + half * 8), zeros = zeros_of_half<F>(unit, half);

	widen_fragment(to, v.x, v.y, zeros.x, zeros.y);
}

/* sums += those of a group times its factors; they become 0. */
template <class F>
__device__ static inline void add_group(
	float (&sums)[4], float (&even)[4], float (&odd)[4], uint32_t unit, int group)
{
	uint2 factors = {};

	if (F::grouped)
		factors = load_8(factors_at<F>(unit, group) + threadIdx.x % 4 * 8);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		sums[i] += (even[i] + odd[i]) * (F::grouped ? factor_of<F>(i % 2 ? factors.y : factors.x) : 1);
		even[i] = odd[i] = 0;
	}
}

#endif

template <enum packed_kind KIND, int M, int R, bool GATED> struct packed_rows {
	typedef packed_format<KIND> F;
	static constexpr int m = M, r = R, kc = WARPS * PACKED_COLS;
	static constexpr bool gated = GATED;
	static constexpr uint32_t panel_bytes = WARPS * F::unit_bytes; /* 8 rows of a stage */
	static constexpr uint32_t w_bytes = R / 8 * panel_bytes, x_pad = 16;
	static_assert(M <= 16 && w_bytes % 16 == 0, "one operand of x's rows; copies of 16 bytes");

	__device__ static inline void fetch(
		const skinny_args &a, const skinny_block &b, skinny_place p, uint32_t s, uint32_t lane)
	{
#if __CUDA_ARCH__ >= 900
		constexpr int PANELS = R / 8, GROUP = GATED ? PANELS / 2 : PANELS;
		const uint32_t n_units = a.k / PACKED_COLS, unit = p.chunk * WARPS, full = b.full + s * 8;
		const uint32_t bytes = min((uint32_t)WARPS, n_units - unit) * F::unit_bytes;
		const uint32_t panel = min(p.tile * GROUP + lane % GROUP, a.n / 8 - 1) +
				       (lane < GROUP ? 0 : a.n / 8);

		if (lane == 0)
			barrier_expect(full, bytes * PANELS + (b.x ? 0 : chunk_bytes<kc>(a, p) * a.n_rows));
		__syncwarp();
		if (lane < PANELS)
			bulk_copy(b.ring + s * b.stage_bytes + lane * panel_bytes,
				(const uint8_t *)a.w + ((size_t)panel * n_units + unit) * F::unit_bytes, bytes, full);
#endif
	}

	__device__ static inline void multiply(float (&sums)[1][R / 8][4], const skinny_args &a, uint32_t w, uint32_t x,
		uint32_t x_pitch, uint32_t n_cols)
	{
#if __CUDA_ARCH__ >= 900
		const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
		const uint32_t at = x + warp * PACKED_COLS * 2 + lane / 8 * 16;
		uint32_t lower[4][4], upper[4][4] = {}; /* of 32 columns each */

		if (warp * PACKED_COLS >= n_cols)
			return;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			load_operands(lower[i], at + min(lane % 8, a.n_rows - 1) * x_pitch + i * 64);
			if (M > 8)
				load_operands(upper[i], at + min(8 + lane % 8, a.n_rows - 1) * x_pitch + i * 64);
		}
#pragma unroll
		for (int n = 0; n < R / 8; n++) {
			const uint32_t unit = w + n * panel_bytes + warp * F::unit_bytes;
			float even[4] = {}, odd[4] = {};
			uint32_t b[2][4][2];

			if constexpr (F::groups == 1)
				widen_unit<F>(b, unit);
#pragma unroll
			for (int i = 0; i < 4; i++) { /* two chains of sums: a product's latency is long */
				if constexpr (F::groups == 4)
					if (i % 2 == 0)
						widen_steps<F>(b[i / 2], unit, i / 2);
				const uint32_t(&step)[4][2] = b[i / 2];

				mma(even, lower[i][0], upper[i][0], lower[i][1], upper[i][1], step[i % 2 * 2][0],
					step[i % 2 * 2][1]);
				mma(odd, lower[i][2], upper[i][2], lower[i][3], upper[i][3], step[i % 2 * 2 + 1][0],
					step[i % 2 * 2 + 1][1]);
				if (F::groups == 4)
					add_group<F>(sums[0][n], even, odd, unit, i);
			}
			if (F::groups != 4)
				add_group<F>(sums[0][n], even, odd, unit, 0);
		}
#endif
	}
};

#endif
