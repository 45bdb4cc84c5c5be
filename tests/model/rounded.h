/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_ROUNDED_H
#define MIMEO_TESTS_MODEL_ROUNDED_H

/* What mimeod(8) says that a head rounded to fp8 is, computed by a search in e4m3's values. */

#include <math.h>

#include "tests/model/packing.h"

static inline float rounded_value(uint32_t code)
{
	const int exponent = (int)(code >> 3), mantissa = (int)(code & 7);

	return exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
}

/* The nearest value of e4m3, of two as near the one of the even code. */
static inline float rounded_nearest(float value)
{
	static float values[0x7f];
	const float magnitude = fabsf(value);
	uint32_t low = 0, high = 0x7e;

	for (uint32_t code = 0; code <= high && !values[high]; code++)
		values[code] = rounded_value(code);
	if (magnitude >= values[high])
		return copysignf(values[high], value);
	while (high - low > 1) {
		const uint32_t middle = (low + high) / 2;

		if (values[middle] <= magnitude)
			low = middle;
		else
			high = middle;
	}
	const double below = (double)magnitude - values[low], above = values[high] - (double)magnitude;

	return copysignf(values[below < above || (below == above && low % 2 == 0) ? low : high], value);
}

/* ret[cols], and the factor. */
static inline float rounded_row(const float *row, uint32_t cols, float *ret)
{
	float largest = 0, factor;

	for (uint32_t k = 0; k < cols; k++)
		largest = fmaxf(largest, fabsf(row[k]));
	factor = largest > 0 ? largest / 448 : 1;
	for (uint32_t k = 0; k < cols; k++)
		ret[k] = rounded_nearest(row[k] / factor) * factor;
	return factor;
}

/* Is the head, on the host, that of those elements, bit for bit? */
static inline void assert_rounded(const struct weight *head, const float *elements)
{
	const uint32_t cols = head->cols;
	float *want = malloc(cols * sizeof(*want)), *have = malloc(cols * sizeof(*have));

	assert_true(want && have);
	for (uint32_t r = 0; r < head->rows; r++) {
		const float factor = rounded_row(elements + (size_t)r * cols, cols, want);

		if (packed_is(head->dtype)) {
			packed_to_f32(head, r, have);
			assert_memory_equal(&head->factors[r], &factor, sizeof(factor));
		} else {
			weight_to_f32(have, head, (size_t)r * cols, cols);
		}
		for (uint32_t k = 0; k < cols && head->dtype == DTYPE_BF16; k++)
			want[k] = bf16_to_f32(f32_to_bf16(want[k]));
		if (memcmp(have, want, cols * sizeof(*want)))
			fail_msg("row %u of the head differs", r);
	}
	free(want);
	free(have);
}

/* model_config_load, and the caller's wish for a rounded head. */
static inline int rounded_config_load(const char *path, struct model_config *ret, struct model_error *error)
{
	int rc = model_config_load(path, ret, error);

	ret->head_fp8 = true;
	return rc;
}

#endif
