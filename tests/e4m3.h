/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E4M3_H
#define MIMEO_TESTS_E4M3_H

/* e4m3 by its definition (OCP's "8-bit Floating Point Specification"), which nothing of the product knows: 4 bits of
 * exponent, bias 7, 3 of mantissa, no infinity; 0x7f and 0xff are NaN. */

#include <math.h>
#include <stdint.h>

static inline float e4m3_to_float(uint8_t x)
{
	int exponent = x >> 3 & 15, mantissa = x & 7;
	float magnitude = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);

	if ((x & 0x7f) == 0x7f)
		return NAN;
	return x & 0x80 ? -magnitude : magnitude;
}

/* To nearest, and to at most 448; a NaN is 0x7f. The numbers ascend with their codes: the last one that is not above
 * x, or the next; of two as near the one whose last bit is 0. */
static inline uint8_t e4m3_from_float(float x)
{
	double magnitude = fabs((double)x), below, above;
	uint8_t code = 0, sign = signbit(x) ? 0x80 : 0;

	if (isnan(x))
		return 0x7f;
	for (uint8_t bit = 0x40; bit; bit >>= 1)
		if ((code | bit) < 0x7f && (double)e4m3_to_float(code | bit) <= magnitude)
			code |= bit;
	if (code == 0x7e)
		return code | sign;
	below = magnitude - (double)e4m3_to_float(code);
	above = (double)e4m3_to_float(code + 1) - magnitude;
	code += above < below || (above == below && (code & 1));
	return code | sign;
}

#endif
