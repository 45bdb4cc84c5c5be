/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_GROUPED_PACKED_CUH
#define MIMEO_KERNELS_CUDA_GROUPED_PACKED_CUH

/*
 * Packed weights for grouped.cuh's kernel: the same tiles, lists, ring and stores. A stage is one unit (128 columns)
 * of each 8 rows of a tile, by a box of the copy engine, and two boxes of x. A warp takes two units, of 16 rows, and
 * widens their codes from shared memory to registers.
 *
 * Few pairs (tiles of up to 32), where time is W's bytes: products of a warp, with the widened codes as
 * operand a and x as b, eight pairs at a time and only those that are there. Codes are exact in bf16; a group's
 * factors are applied to its float32 sums. A product of a warpgroup would make each warp wait for it twice a unit.
 *
 * More pairs: products of a warpgroup with W in registers. Sums of a group beside those of the tile would not fit in
 * the registers of a thread, so W is rounded to bf16 with its factors, as widening it at load does. While one
 * half of a unit is multiplied, the other is widened.
 *
 * Measured on an H100, us of all of a layer's experts of DeepSeek-V2-Lite (64, 6 a token; bench-internals experts),
 * plain, E4M3 and U4, and in parentheses what their bytes take at the rate of a copy:
 *
 *	tokens   1                         8              32             128            1024
 *	         49/34/27 (35/18/9)        210/124/80     364/208/128    387/228/220    450/401/381
 *	                                   (200/103/53)   (357/184/95)   (373/194/102)  (401/223/147)
 *
 * Known gap: with 64 and more pairs an expert, widening and not the bytes is the limit.
 */

#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/packed.cuh"

enum { FEW = 32 }; /* pairs of a tile */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* This warp's units in a stage: of its lower 8 rows; those of the upper are behind it. Warps without rows in a low
 * tile take others' again: their sums are not stored. */
template <class W> __device__ static inline uint32_t units_at(const grouped_block &b, uint32_t index)
{
	const uint32_t panel = min(threadIdx.x / WARP * 2, b.height / PACKED_ROWS - 2);

	return b.ring + index * b.stage_bytes + panel * W::F::unit_bytes;
}

template <class W> __device__ static inline float factor_at(uint32_t unit)
{
	return factor_of<typename W::F>(load_4(unit + W::F::code_bytes + threadIdx.x % WARP / 4 * 4));
}

/* ---- few pairs ---- */

/* The products of 16 rows and 64 columns of W with eight rows of x, at `rows`, in two chains of sums: a product's
 * latency is long. */
__device__ static inline void multiply_eight(
	float (&even)[4], float (&odd)[4], const uint32_t (&w)[4][4], uint32_t rows)
{
	const uint32_t lane = threadIdx.x % WARP, row = lane % 8, at = rows + row * ROW_BYTES;
	uint32_t x[4]; /* of 32 columns */

#pragma unroll
	for (uint32_t i = 0; i < 2; i++) {
		load_operands(x, at + ((i * 4 + lane / 8) ^ row) * 16);
		mma(even, w[i * 2][0], w[i * 2][1], w[i * 2][2], w[i * 2][3], x[0], x[1]);
		mma(odd, w[i * 2 + 1][0], w[i * 2 + 1][1], w[i * 2 + 1][2], w[i * 2 + 1][3], x[2], x[3]);
	}
}

/* sums += the unit's products with n rows of x, in two boxes. */
template <class W>
__device__ static inline void multiply_unit(float (&sums)[W::n / 8][4], uint32_t unit, uint32_t x, uint32_t n)
{
	const uint32_t upper = unit + W::F::unit_bytes;
	float even[W::n / 8][4] = {}, odd[W::n / 8][4] = {};

#pragma unroll
	for (int half = 0; half < 2; half++) {
		uint32_t w[4][4];

		widen_half<typename W::F>(w, unit, upper, half);
#pragma unroll
		for (uint32_t i = 0; i < W::n / 8; i++)
			if (i == 0 || i * 8 < n)
				multiply_eight(even[i], odd[i], w,
					x + half * grouped_shape<W::n>::x_bytes + i * 8 * ROW_BYTES);
	}
	const float low = factor_at<W>(unit), high = factor_at<W>(upper);

#pragma unroll
	for (int i = 0; i < W::n / 8; i++) {
		sums[i][0] += (even[i][0] + odd[i][0]) * low;
		sums[i][1] += (even[i][1] + odd[i][1]) * low;
		sums[i][2] += (even[i][2] + odd[i][2]) * high;
		sums[i][3] += (even[i][3] + odd[i][3]) * high;
	}
}

template <class W>
__device__ static inline void multiply_few(
	const grouped_block &b, uint32_t n, ring_stage &s, float (&sums)[W::n / 8][4])
{
#pragma unroll
	for (int i = 0; i < W::n / 8; i++)
		sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
	for (uint32_t chunk = 0; chunk < b.n_chunks; chunk++) {
		barrier_wait(b.full + s.index * 8, s.parity);
		multiply_unit<W>(sums, units_at<W>(b, s.index), b.ring + s.index * b.stage_bytes + b.w_bytes, n);
		__syncwarp();
		release(b, s.index);
		s.next(b.n_stages);
	}
}

/* ---- more pairs ---- */

/* Operands of half a unit with their factors. */
template <class W>
__device__ static inline void widen_scaled(uint32_t (&to)[4][4], uint32_t unit, int half, float low, float high)
{
	widen_half<typename W::F>(to, unit, unit + W::F::unit_bytes, half);
#pragma unroll
	for (int j = 0; j < 4; j++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			to[j][i] = scaled(to[j][i], i % 2 ? high : low);
}

/* Begin the products of half a unit with a box of x. */
template <int USED, int N>
__device__ static inline void begin_half(float (&sums)[N / 8][4], uint32_t (&w)[4][4], uint32_t box)
{
	settle(w);
	settle(sums);
	products_fence();
#pragma unroll
	for (int j = 0; j < 4; j++)
		product_of_words(*(float(*)[USED / 8][4]) & sums, w[j], rows_at(box) + j * 2, 1);
	products_commit();
}

/* Products read their operands in registers until they have ended: those of a half are written again when only the
 * other half's are pending. */
template <class W, int USED>
__device__ static inline void multiply_many(const grouped_block &b, ring_stage &s, float (&sums)[W::n / 8][4])
{
	uint32_t first[4][4], second[4][4] = {}, before = 0;

#pragma unroll
	for (int i = 0; i < W::n / 8; i++)
		sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
	for (uint32_t chunk = 0; chunk < b.n_chunks; chunk++) {
		const uint32_t unit = units_at<W>(b, s.index), x = b.ring + s.index * b.stage_bytes + b.w_bytes;

		barrier_wait(b.full + s.index * 8, s.parity);
		const float low = factor_at<W>(unit), high = factor_at<W>(unit + W::F::unit_bytes);

		widen_scaled<W>(first, unit, 0, low, high);
		begin_half<USED, W::n>(sums, first, x);
		products_wait<1>();
		settle(second);
		if (chunk != 0)
			release(b, before);
		widen_scaled<W>(second, unit, 1, low, high);
		begin_half<USED, W::n>(sums, second, x + grouped_shape<W::n>::x_bytes);
		products_wait<1>();
		settle(first);
		before = s.index;
		s.next(b.n_stages);
	}
	products_wait<0>();
	settle(second);
	settle(sums);
	release(b, before);
}

#endif

/* ---- both ---- */

/* KIND: with factors in its units. */
template <enum packed_kind KIND, int N, bool GATED> struct packed_units {
	typedef packed_format<KIND> F;
	static constexpr int n = N;
	static constexpr bool gated = GATED;
	static constexpr uint32_t boxes = PACKED_COLS / COLS, row_bytes = F::unit_bytes / PACKED_ROWS;
	static constexpr uint32_t map_cols = F::unit_bytes / 8, map_rows = PACKED_ROWS; /* words of 8 bytes */
	static_assert(F::grouped && LOW_ROWS * row_bytes % 128 == 0, "where a box may begin");
	static_assert(N <= 128, "sums and operands fit in registers");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	__device__ static inline void multiply(
		const grouped_block &b, const grouped_tile &t, ring_stage &s, float (&sums)[N / 8][4])
	{
		if constexpr (N <= FEW)
			return multiply_few<packed_units>(b, t.n, s, sums);
		else if constexpr (N == 64)
			return multiply_many<packed_units, 64>(b, s, sums);
		else if (t.n <= 96) /* with fewer, widening is the limit */
			return multiply_many<packed_units, 96>(b, s, sums);
		else
			return multiply_many<packed_units, N>(b, s, sums);
	}
#endif
};

#endif
