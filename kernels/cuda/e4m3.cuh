/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_E4M3_CUH
#define MIMEO_KERNELS_CUDA_E4M3_CUH

/*
 * Codes of keys and values (struct kv_factors). float16 has every number of e4m3. Devices before 8.9, which have no
 * instruction for it, read a NaN as 480.
 */

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

/* The two codes in the low half, as float16 in the same order. */
static __device__ __forceinline__ uint32_t e4m3_to_f16(uint32_t codes)
{
	uint32_t pair;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)codes));
#else
	/* A code in the upper byte of each half, its magnitude moved in place: the exponent's bias is off by 2^8. */
	const uint32_t upper = __byte_perm(codes, 0, 0x1404);
	const uint32_t moved = (upper & 0x80008000u) | (upper >> 1 & 0x3f803f80u);
	const __half2 wide = __hmul2(*(const __half2 *)&moved, __float2half2_rn(256.0f));

	pair = *(const uint32_t *)&wide;
#endif
	return pair;
}

static __device__ __forceinline__ float kv_number_of(uint8_t code)
{
	const uint32_t pair = e4m3_to_f16(code);

	return __low2float(*(const __half2 *)&pair);
}

/* x / factor to nearest, ties to even, and to at most 448. */
static __device__ __forceinline__ uint8_t kv_code_of(float x, float factor)
{
	return (uint8_t)__nv_cvt_float_to_fp8(__fdiv_rn(x, factor), __NV_SATFINITE, __NV_E4M3);
}

/* N numbers, 8 of them aligned to 8 bytes. */
template <int N>
static __device__ __forceinline__ void e4m3_store(uint8_t *to, const float (&v)[N], float factor)
{
	if constexpr (N == 8) {
		uint32_t words[2] = {};

#pragma unroll
		for (int i = 0; i < N; i++)
			words[i / 4] |= (uint32_t)kv_code_of(v[i], factor) << i % 4 * 8;
		*(uint2 *)to = make_uint2(words[0], words[1]);
	} else {
#pragma unroll
		for (int i = 0; i < N; i++)
			to[i] = kv_code_of(v[i], factor);
	}
}

#endif
