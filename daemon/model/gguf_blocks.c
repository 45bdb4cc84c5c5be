/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf_blocks.h"

#include <math.h>

#include "kernels/convert.h"

#define K_ELEMENTS 256u /* of a block of the K types */

static float blocks_f16(const uint8_t *bytes)
{
	return f16_to_f32((uint16_t)(bytes[0] | bytes[1] << 8));
}

static uint32_t blocks_u32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
	       (uint32_t)bytes[3] << 24;
}

/* ---- blocks of 32 ---- */

/* scale, 32 signed bytes */
static bool blocks_q8_0(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	bool finite = true;

	for (size_t b = 0; b < n_blocks; b++, src += 34, dst += 32) {
		float d = blocks_f16(src);

		finite &= isfinite(d) != 0;
		for (uint32_t i = 0; i < 32; i++)
			dst[i] = (float)(int8_t)src[2 + i] * d;
	}
	return finite;
}

/* scale, 16 bytes: the low nibbles are elements 0 to 15, the high ones 16 to 31 */
static bool blocks_q4_0(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	bool finite = true;

	for (size_t b = 0; b < n_blocks; b++, src += 18, dst += 32) {
		float d = blocks_f16(src);

		finite &= isfinite(d) != 0;
		for (uint32_t i = 0; i < 16; i++) {
			dst[i] = (float)((src[2 + i] & 15) - 8) * d;
			dst[16 + i] = (float)((src[2 + i] >> 4) - 8) * d;
		}
	}
	return finite;
}

/* scale, minimum, nibbles as in q4_0 */
static bool blocks_q4_1(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	bool finite = true;

	for (size_t b = 0; b < n_blocks; b++, src += 20, dst += 32) {
		float d = blocks_f16(src), m = blocks_f16(src + 2);

		finite &= isfinite(d) && isfinite(m);
		for (uint32_t i = 0; i < 16; i++) {
			dst[i] = (float)(src[4 + i] & 15) * d + m;
			dst[16 + i] = (float)(src[4 + i] >> 4) * d + m;
		}
	}
	return finite;
}

/* scale, 32 fifth bits, nibbles as in q4_0 */
static bool blocks_q5_0(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	bool finite = true;

	for (size_t b = 0; b < n_blocks; b++, src += 22, dst += 32) {
		float d = blocks_f16(src);
		uint32_t high = blocks_u32(src + 2);

		finite &= isfinite(d) != 0;
		for (uint32_t i = 0; i < 16; i++) {
			uint32_t low = (src[6 + i] & 15u) | (high >> i & 1) << 4;
			uint32_t upper = src[6 + i] >> 4 | (high >> (i + 16) & 1) << 4;

			dst[i] = (float)((int32_t)low - 16) * d;
			dst[16 + i] = (float)((int32_t)upper - 16) * d;
		}
	}
	return finite;
}

/* scale, minimum, 32 fifth bits, nibbles as in q4_0 */
static bool blocks_q5_1(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	bool finite = true;

	for (size_t b = 0; b < n_blocks; b++, src += 24, dst += 32) {
		float d = blocks_f16(src), m = blocks_f16(src + 2);
		uint32_t high = blocks_u32(src + 4);

		finite &= isfinite(d) && isfinite(m);
		for (uint32_t i = 0; i < 16; i++) {
			dst[i] = (float)((src[8 + i] & 15u) | (high >> i & 1) << 4) * d + m;
			dst[16 + i] = (float)(src[8 + i] >> 4 | (high >> (i + 16) & 1) << 4) * d + m;
		}
	}
	return finite;
}

/* ---- blocks of 256 ---- */

/* Scale and minimum `i` of 8, of 6 bits each, packed into 12 bytes: the first four of either kind are the low bits of
 * bytes 0 to 3 and 4 to 7, whose top bits complete the nibbles of the others in bytes 8 to 11. */
static void blocks_unpack_scale(
	const uint8_t *packed, uint32_t i, uint32_t *ret_scale, uint32_t *ret_min)
{
	if (i < 4) {
		*ret_scale = packed[i] & 63u;
		*ret_min = packed[i + 4] & 63u;
		return;
	}
	*ret_scale = (packed[i + 4] & 15u) | (packed[i - 4] >> 6) << 4;
	*ret_min = packed[i + 4] >> 4 | (packed[i] >> 6) << 4;
}

/* Elements 32 g to 32 g + 31 share scale g: nibbles of 32 bytes, low for even g, high for odd g. `high` has their fifth
 * bits, bit g of each byte, or is NULL. */
static void blocks_k_group(float *restrict dst, const uint8_t *packed, const uint8_t *nibbles,
	const uint8_t *high, uint32_t g, float d, float d_min)
{
	const uint8_t *bytes = nibbles + g / 2 * 32;
	uint32_t scale, min, shift = g % 2 * 4;

	blocks_unpack_scale(packed, g, &scale, &min);
	float factor = d * (float)scale, less = d_min * (float)min;
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t q = bytes[i] >> shift & 15u;

		if (high)
			q |= (high[i] >> g & 1u) << 4;
		dst[i] = factor * (float)q - less;
	}
}

/* scale of scales, scale of minima, 12 bytes of both, `fifths` bytes of fifth bits, nibbles */
static bool blocks_k(float *restrict dst, const uint8_t *restrict src, size_t n_blocks, size_t fifths)
{
	const size_t nibbles = 16 + fifths;
	bool finite = true;

	for (size_t b = 0; b < n_blocks; b++, src += nibbles + K_ELEMENTS / 2, dst += K_ELEMENTS) {
		float d = blocks_f16(src), d_min = blocks_f16(src + 2);

		finite &= isfinite(d) && isfinite(d_min);
		for (uint32_t g = 0; g < 8; g++)
			blocks_k_group(dst + g * 32, src + 4, src + nibbles, fifths ? src + 16 : NULL, g, d, d_min);
	}
	return finite;
}

static bool blocks_q4_k(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	return blocks_k(dst, src, n_blocks, 0);
}

static bool blocks_q5_k(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	return blocks_k(dst, src, n_blocks, K_ELEMENTS / 8);
}

/* Half of a block: four groups of 32, whose low four bits are the low and then the high nibbles of 64 bytes and whose
 * upper two are a pair of bits in each of 32 bytes; a scale for each 16 elements. */
static void blocks_q6_k_half(float *restrict dst, const uint8_t *low, const uint8_t *high,
	const uint8_t *scales, float d)
{
	for (uint32_t g = 0; g < 4; g++) {
		const uint8_t *nibbles = low + g % 2 * 32;
		uint32_t shift = g / 2 * 4;

		for (uint32_t i = 0; i < 32; i++) {
			float factor = d * (float)(int8_t)scales[g * 2 + i / 16];
			uint32_t q = (nibbles[i] >> shift & 15u) | (high[i] >> (g * 2) & 3u) << 4;

			dst[g * 32 + i] = factor * (float)((int32_t)q - 32);
		}
	}
}

/* 128 bytes of nibbles, 64 of upper bits, 16 signed scales, scale of scales */
static bool blocks_q6_k(float *restrict dst, const uint8_t *restrict src, size_t n_blocks)
{
	bool finite = true;

	for (size_t b = 0; b < n_blocks; b++, src += 210, dst += K_ELEMENTS) {
		float d = blocks_f16(src + 208);

		finite &= isfinite(d) != 0;
		for (uint32_t half = 0; half < 2; half++)
			blocks_q6_k_half(dst + half * 128, src + half * 64, src + 128 + half * 32,
				src + 192 + half * 8, d);
	}
	return finite;
}

/* ---- types ---- */

static const struct block_format q4_0 = {32, 18, blocks_q4_0}, q4_1 = {32, 20, blocks_q4_1},
				 q5_0 = {32, 22, blocks_q5_0}, q5_1 = {32, 24, blocks_q5_1},
				 q8_0 = {32, 34, blocks_q8_0},
				 q4_k = {K_ELEMENTS, 144, blocks_q4_k},
				 q5_k = {K_ELEMENTS, 176, blocks_q5_k},
				 q6_k = {K_ELEMENTS, 210, blocks_q6_k};

/* Those without a dtype are known by size and name alone. */
static const struct gguf_type types[] = {
	{0, "F32", 1, 4, true, DTYPE_F32, NULL},
	{1, "F16", 1, 2, true, DTYPE_F16, NULL},
	{2, "Q4_0", 32, 18, true, DTYPE_F32, &q4_0},
	{3, "Q4_1", 32, 20, true, DTYPE_F32, &q4_1},
	{6, "Q5_0", 32, 22, true, DTYPE_F32, &q5_0},
	{7, "Q5_1", 32, 24, true, DTYPE_F32, &q5_1},
	{8, "Q8_0", 32, 34, true, DTYPE_F32, &q8_0},
	{9, "Q8_1", 32, 36},
	{10, "Q2_K", K_ELEMENTS, 84},
	{11, "Q3_K", K_ELEMENTS, 110},
	{12, "Q4_K", K_ELEMENTS, 144, true, DTYPE_F32, &q4_k},
	{13, "Q5_K", K_ELEMENTS, 176, true, DTYPE_F32, &q5_k},
	{14, "Q6_K", K_ELEMENTS, 210, true, DTYPE_F32, &q6_k},
	{15, "Q8_K", K_ELEMENTS, 292},
	{16, "IQ2_XXS", K_ELEMENTS, 66},
	{17, "IQ2_XS", K_ELEMENTS, 74},
	{18, "IQ3_XXS", K_ELEMENTS, 98},
	{19, "IQ1_S", K_ELEMENTS, 50},
	{20, "IQ4_NL", 32, 18},
	{21, "IQ3_S", K_ELEMENTS, 110},
	{22, "IQ2_S", K_ELEMENTS, 82},
	{23, "IQ4_XS", K_ELEMENTS, 136},
	{24, "I8", 1, 1},
	{25, "I16", 1, 2},
	{26, "I32", 1, 4},
	{27, "I64", 1, 8},
	{28, "F64", 1, 8},
	{29, "IQ1_M", K_ELEMENTS, 56},
	{30, "BF16", 1, 2, true, DTYPE_BF16, NULL},
	{34, "TQ1_0", K_ELEMENTS, 54},
	{35, "TQ2_0", K_ELEMENTS, 66},
	{39, "MXFP4", 32, 17},
	{40, "NVFP4", 64, 36},
	{41, "Q1_0", 128, 18},
};

const struct gguf_type *gguf_type_find(uint32_t number)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (types[i].number == number)
			return &types[i];
	}
	return NULL;
}
