/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_PACKED_CUH
#define MIMEO_KERNELS_CUDA_PACKED_CUH

/*
 * Packed weights (kernels/packed.h) in kernels: a format, and the widening of its fragments to bf16, exactly:
 * a lane's 16 bytes become its operands of 16 columns each, two words of two numbers.
 */

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/skinny_ptx.cuh"
#include "kernels/packed.h"

template <enum packed_kind KIND> struct packed_format {
	static constexpr bool is_u4 = KIND == PACKED_U4 || KIND == PACKED_U4_32, grouped = KIND != PACKED_E4M3_ROWS;
	static constexpr int groups = KIND == PACKED_U4_32 ? 4 : 1; /* of a unit */
	static constexpr uint32_t code_bytes = (is_u4 ? 1 : 2) * PACKED_FRAGMENT_BYTES;
	static constexpr uint32_t unit_bytes = code_bytes + (grouped ? groups * PACKED_ROWS * 4 : 0);
};

#if __CUDA_ARCH__ >= 900

/* Bytes 1 and 3 of w, which are e4m3: with the fields moved in place only the exponent's bias is off, by
 * 2^120, for subnormals too (as in convert.h). */
__device__ __forceinline__ uint32_t widen_e4m3(uint32_t w)
{
	const uint32_t bits = (w & 0x80008000u) | (w >> 4 & 0x07f007f0u), scale = 0x7b807b80u;
	const __nv_bfloat162 pair = __hmul2(*(const __nv_bfloat162 *)&bits, *(const __nv_bfloat162 *)&scale);

	return *(const uint32_t *)&pair;
}

/* Nibbles 0 and 4 of w, less their zero: 128 + q is exact in bf16, and so is the difference. */
__device__ __forceinline__ uint32_t widen_u4(uint32_t w, uint32_t zeros)
{
	const uint32_t bits = (w & 0x000f000fu) | 0x43004300u;
	const __nv_bfloat162 pair = __hsub2(*(const __nv_bfloat162 *)&bits, *(const __nv_bfloat162 *)&zeros);

	return *(const uint32_t *)&pair;
}

/* Steps 0 to 3 of a fragment of e4m3. */
__device__ __forceinline__ void widen_fragment(uint32_t (&to)[4][2], const uint4 &v)
{
	const uint32_t words[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
	for (int j = 0; j < 4; j++) {
		to[j][0] = widen_e4m3(words[j]);
		to[j][1] = widen_e4m3(words[j] << 8);
	}
}

/* Steps 2 i and 2 i + 1 of word i of a fragment of numbers from 0 to 15, for two words and their zeros. */
__device__ __forceinline__ void widen_fragment(
	uint32_t (&to)[4][2], uint32_t first, uint32_t second, uint32_t first_zeros, uint32_t second_zeros)
{
	const uint32_t words[2] = {first, second}, zeros[2] = {first_zeros, second_zeros};

#pragma unroll
	for (int i = 0; i < 2; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			to[i * 2 + j / 2][j % 2] = widen_u4(words[i] >> 4 * j, zeros[i]);
}

/* The zero that a factor's bits hold, as widen_u4 wants it. */
__device__ __forceinline__ uint32_t zeros_of(uint32_t factor_bits)
{
	return (0x4300u | (factor_bits & PACKED_ZERO_BITS)) * 0x10001u;
}

template <class F> __device__ __forceinline__ float factor_of(uint32_t bits)
{
	return __uint_as_float(F::is_u4 ? bits & ~PACKED_ZERO_BITS : bits);
}

/* Where a unit in shared memory has the factors of group `group`, [8]. */
template <class F> __device__ __forceinline__ uint32_t factors_at(uint32_t unit, int group)
{
	return unit + F::code_bytes + group * PACKED_ROWS * 4;
}

/* The zeros of this lane's row for a fragment's words 2 half and 2 half + 1, of 32 columns each. */
template <class F> __device__ __forceinline__ uint2 zeros_of_half(uint32_t unit, int half)
{
	const uint32_t row = threadIdx.x % WARP / 4 * 4;
	uint2 zeros;

	zeros.x = zeros_of(load_4(factors_at<F>(unit, F::groups == 4 ? half * 2 : 0) + row));
	zeros.y = F::groups == 4 ? zeros_of(load_4(factors_at<F>(unit, half * 2 + 1) + row)) : zeros.x;
	return zeros;
}

/* Two widened numbers times their row's factor, rounded. */
__device__ __forceinline__ uint32_t scaled(uint32_t pair, float factor)
{
	return pack_2(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor);
}

/* A warp's operands, of columns [64 half, + 64): those of the units of its lower and of its upper 8 rows in shared
 * memory, in the order of an operand a of 16 rows. */
template <class F>
__device__ static inline void widen_half(uint32_t (&to)[4][4], uint32_t lower, uint32_t upper, int half)
{
	const uint32_t lane = threadIdx.x % WARP, at = lane * 16 + (F::is_u4 ? half * 8 : half * PACKED_FRAGMENT_BYTES);
	const uint32_t units[2] = {lower, upper};

#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t words[4][2];

		if constexpr (F::is_u4) {
			const uint2 zeros = zeros_of_half<F>(units[i], half), v = load_8(units[i] + at);

			widen_fragment(words, v.x, v.y, zeros.x, zeros.y);
		} else {
			widen_fragment(words, load_16(units[i] + at));
		}
#pragma unroll
		for (int j = 0; j < 4; j++) {
			to[j][i] = words[j][0];
			to[j][2 + i] = words[j][1];
		}
	}
}

#endif

#endif
