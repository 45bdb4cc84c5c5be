/* SPDX-License-Identifier: MIT */
#include "daemon/model/rounding.h"

#include "kernels/convert.h"

#define E4M3_MAX 448.0f
#define INFINITE_BITS 0x7f800000u

static inline uint32_t rounding_larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The bits of the largest magnitude, whose order is that of the values; a NaN's are above those of infinity. */
UNCHECKED_LOOP uint32_t rounding_largest_n(const float *row, size_t n)
{
	uint32_t largest = 0;
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			largest = rounding_larger(largest, bits_of_float(row[i + j]) & 0x7fffffffu);
	for (; i < n; i++)
		largest = rounding_larger(largest, bits_of_float(row[i]) & 0x7fffffffu);
	return largest;
}

UNCHECKED_LOOP void rounding_codes_n(uint8_t *restrict ret, const float *restrict row, size_t n, float factor)
{
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			ret[i + j] = f32_to_e4m3(row[i + j] / factor);
	for (; i < n; i++)
		ret[i] = f32_to_e4m3(row[i] / factor);
}

bool rounding_row(const float *row, uint32_t cols, uint8_t *ret, float *ret_factor)
{
	uint32_t largest;

	check_range(row, cols * sizeof(*row));
	check_range(ret, cols);
	largest = rounding_largest_n(row, cols);
	if (largest >= INFINITE_BITS)
		return false;
	*ret_factor = float_of_bits(largest) / E4M3_MAX;
	if (*ret_factor == 0)
		*ret_factor = 1;
	rounding_codes_n(ret, row, cols, *ret_factor);
	return true;
}

void rounding_widen(float *ret, const uint8_t *codes, uint32_t cols, float factor)
{
	check_range(ret, cols * sizeof(*ret));
	e4m3_to_f32_n(ret, codes, cols);
	for (uint32_t k = 0; k < cols; k++)
		ret[k] *= factor;
}
