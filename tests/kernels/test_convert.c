/* SPDX-License-Identifier: MIT */

/* float32 to e4m3, against all values that e4m3 has. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/convert.h"

#define LARGEST 0x7eu /* 448 */
#define MINUS 0x80u

/* OCP's "8-bit Floating Point Specification": 4 bits of exponent, bias 7, 3 of mantissa, no infinity. */
static float value_of(uint32_t code)
{
	const int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
	const float magnitude = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);

	return code & MINUS ? -magnitude : magnitude;
}

static void expect(float value, uint32_t code)
{
	if (f32_to_e4m3(value) != code)
		fail_msg("%a is 0x%02x, not 0x%02x", (double)value, f32_to_e4m3(value), code);
}

/* Of both signs. */
static void expect_both(float value, uint32_t code)
{
	expect(value, code);
	expect(-value, code | MINUS);
}

static void test_the_254_finite_values_are_themselves(void **state)
{
	uint32_t n = 0;

	for (uint32_t code = 0; code < 256; code++) {
		if ((code & 0x7f) == 0x7f)
			continue;
		assert_true(e4m3_to_f32((uint8_t)code) == value_of(code));
		expect(value_of(code), code);
		n++;
	}
	assert_int_equal(n, 254);
}

static void test_midpoints_go_to_the_even_code(void **state)
{
	for (uint32_t code = 0; code < LARGEST; code++)
		expect_both((value_of(code) + value_of(code + 1)) / 2, code + code % 2);
}

static void test_values_beside_midpoints_go_to_the_nearer_code(void **state)
{
	for (uint32_t code = 0; code < LARGEST; code++) {
		const float middle = (value_of(code) + value_of(code + 1)) / 2;

		expect_both(nextafterf(middle, 0), code);
		expect_both(nextafterf(middle, INFINITY), code + 1);
	}
}

static void test_values_above_448_saturate(void **state)
{
	static const float values[] = {448.00003f, 463.99997f, 464, 480, 1e4f, 0x1.fffffep127f, INFINITY};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		expect_both(values[i], LARGEST);
}

static void test_subnormals_are_multiples_of_two_to_the_minus_9(void **state)
{
	expect_both(0x1p-9f, 1);
	expect_both(7 * 0x1p-9f, 7);
	expect_both(0x1p-6f, 8); /* the smallest normal one */
	expect_both(0x1p-10f, 0);
	expect_both(0x1.000002p-10f, 1);
	expect_both(0x1p-149f, 0); /* float32's own */
	expect_both(0x1.fffffcp-127f, 0);
}

static void test_zero_keeps_its_sign(void **state)
{
	expect(0.0f, 0);
	expect(-0.0f, MINUS);
}

static void test_nan_stays_one(void **state)
{
	expect_both(NAN, 0x7f);
}

/* Every 61st of all float32s. */
static void test_codes_rise_with_values(void **state)
{
	uint32_t last = 0;

	for (uint32_t bits = 0; bits <= 0x7f800000u; bits += 61) {
		const uint32_t code = f32_to_e4m3(float_of_bits(bits));

		if (code < last)
			fail_msg("%a is 0x%02x, behind 0x%02x", (double)float_of_bits(bits), code, last);
		last = code;
	}
	assert_int_equal(last, LARGEST);
}

static void test_codes_of_a_cache_are_values_times_the_factor_and_nan_stays_one(void **state)
{
	uint8_t codes[256];
	float values[256];

	for (uint32_t code = 0; code < 256; code++)
		codes[code] = (uint8_t)code;
	for (size_t n = 250; n <= 256; n++) { /* whole runs of a loop, and what is left over */
		kv_decode(values, codes, 0.37f, n);
		for (uint32_t code = 0; code < n; code++)
			assert_true((code & 0x7f) == 0x7f ? isnan(values[code])
							  : values[code] == value_of(code) * 0.37f);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_254_finite_values_are_themselves),
		cmocka_unit_test(test_midpoints_go_to_the_even_code),
		cmocka_unit_test(test_values_beside_midpoints_go_to_the_nearer_code),
		cmocka_unit_test(test_values_above_448_saturate),
		cmocka_unit_test(test_subnormals_are_multiples_of_two_to_the_minus_9),
		cmocka_unit_test(test_zero_keeps_its_sign),
		cmocka_unit_test(test_nan_stays_one),
		cmocka_unit_test(test_codes_rise_with_values),
		cmocka_unit_test(test_codes_of_a_cache_are_values_times_the_factor_and_nan_stays_one),
	};

	return cmocka_run_group_tests_name("convert", tests, NULL, NULL);
}
