/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CONVERT_H
#define MIMEO_KERNELS_CONVERT_H

/*
 * bf16, f16, f32 and e4m3 to float32, on the host, exactly; and float32 to bf16 and e4m3. Runs of CONVERT_BLOCK
 * have a constant trip count and no branches, which compilers vectorise at -O2 as well.
 */

#include <string.h>

#include "kernels/ops.h"
#include "kernels/unchecked.h"

#define CONVERT_BLOCK 32

/* Inlined into loops that are not instrumented, too. */
#define CONVERT_VALUE __attribute__((always_inline)) static inline

union convert_bits {
	uint32_t bits;
	float value;
};

CONVERT_VALUE float float_of_bits(uint32_t bits)
{
	return (union convert_bits){.bits = bits}.value;
}

CONVERT_VALUE uint32_t bits_of_float(float value)
{
	return (union convert_bits){.value = value}.bits;
}

CONVERT_VALUE float bf16_to_f32(uint16_t x)
{
	return float_of_bits((uint32_t)x << 16);
}

/* With the fields moved in place only the exponent's bias is off, by 2^112, for subnormals too
 * (which are float32's at that point). Infinities and NaNs get their exponent from the mask. */
CONVERT_VALUE float f16_to_f32(uint16_t x)
{
	uint32_t magnitude = x & 0x7fffu;
	uint32_t special = magnitude > 0x7bffu ? 0x7f800000u : 0;
	float value = float_of_bits(magnitude << 13) * 0x1p112f;

	return float_of_bits(bits_of_float(value) | special | (uint32_t)(x & 0x8000u) << 16);
}

/* As above: the bias of e4m3 is 7, that of float32 127. Its NaN, 0x7f and 0xff, becomes 480. */
CONVERT_VALUE float e4m3_to_f32(uint8_t x)
{
	return float_of_bits((x & 0x7fu) << 20 | (x & 0x80u) << 24) * 0x1p120f;
}

CONVERT_VALUE float e4m3_or_nan_to_f32(uint8_t x)
{
	uint32_t special = (x & 0x7fu) == 0x7fu ? 0x7fc00000u : 0;

	return float_of_bits(bits_of_float(e4m3_to_f32(x)) | special);
}

/* To nearest, ties to even; 448, the largest, stands for what is above it; a NaN stays one. Below 2^-6, e4m3's
 * smallest normal number, its step is that of float32 at 2^14, whose lowest bits are the code then. */
CONVERT_VALUE uint8_t f32_to_e4m3(float value)
{
	const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
	const uint32_t limited = magnitude > 0x43e00000u ? 0x43e00000u : magnitude;
	const uint32_t normal = ((limited + 0x7ffffu + (limited >> 20 & 1)) >> 20) - (120u << 3);
	const uint32_t small = bits_of_float(float_of_bits(limited) + 0x1p14f) - 0x46800000u;
	const uint32_t code = magnitude > 0x7f800000u ? 0x7f : limited < 0x3c800000u ? small : normal;

	return (uint8_t)(code | (bits >> 24 & 0x80u));
}

/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t f32_to_bf16(float value)
{
	uint32_t bits = bits_of_float(value);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40u);
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* dst may be src's own memory: bytes of an element are written after it was read. */
static inline void f32_to_bf16_n(void *dst, const void *src, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float value;
		uint16_t narrow;

		memcpy(&value, (const uint8_t *)src + i * sizeof(value), sizeof(value));
		narrow = f32_to_bf16(value);
		memcpy((uint8_t *)dst + i * sizeof(narrow), &narrow, sizeof(narrow));
	}
}

UNCHECKED_LOOP void bf16_to_f32_n(float *restrict dst, const uint16_t *restrict src, size_t n)
{
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			dst[i + j] = bf16_to_f32(src[i + j]);
	for (; i < n; i++)
		dst[i] = bf16_to_f32(src[i]);
}

UNCHECKED_LOOP void f16_to_f32_n(float *restrict dst, const uint16_t *restrict src, size_t n)
{
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			dst[i + j] = f16_to_f32(src[i + j]);
	for (; i < n; i++)
		dst[i] = f16_to_f32(src[i]);
}

UNCHECKED_LOOP void e4m3_to_f32_n(float *restrict dst, const uint8_t *restrict src, size_t n)
{
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			dst[i + j] = e4m3_to_f32(src[i + j]);
	for (; i < n; i++)
		dst[i] = e4m3_to_f32(src[i]);
}

/* Of a cache of fp8 (struct kv_factors): codes times the factor. A NaN is one. */
UNCHECKED_LOOP void kv_decode_loop(float *restrict dst, const uint8_t *restrict src, float factor, size_t n)
{
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			dst[i + j] = e4m3_or_nan_to_f32(src[i + j]) * factor;
	for (; i < n; i++)
		dst[i] = e4m3_or_nan_to_f32(src[i]) * factor;
}

static inline void kv_decode(float *dst, const uint8_t *src, float factor, size_t n)
{
	check_range(dst, n * sizeof(*dst));
	check_range(src, n);
	kv_decode_loop(dst, src, factor, n);
}

static inline void kv_encode(uint8_t *dst, const float *src, float factor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = f32_to_e4m3(src[i] / factor);
}

/* n elements of the weight, from element `first` in row order. */
static inline void weight_to_f32(float *dst, const struct weight *w, size_t first, size_t n)
{
	const uint16_t *narrow = (const uint16_t *)w->data + first;

	if (w->dtype == DTYPE_F32) {
		memcpy(dst, (const float *)w->data + first, n * sizeof(*dst));
		return;
	}
	check_range(dst, n * sizeof(*dst));
	check_range(narrow, n * sizeof(*narrow));
	if (w->dtype == DTYPE_BF16)
		bf16_to_f32_n(dst, narrow, n);
	else
		f16_to_f32_n(dst, narrow, n);
}

/* A one-row weight as float32: its own memory where it is that already, else `storage`. */
static inline const float *weight_vector(const struct weight *w, float *storage)
{
	if (w->dtype == DTYPE_F32)
		return w->data;
	weight_to_f32(storage, w, 0, w->cols);
	return storage;
}

#endif
