/* SPDX-License-Identifier: MIT */

/* Matrices in fp8 written by hand, and what float32 makes of them. */

#include "tests/model/quantised_file.h"

#include <math.h>

static const struct quantisation_scheme blocks = {
	.method = QUANTISATION_FP8, .block_rows = 2, .block_cols = 2};
static const struct quantisation_scheme by_row = {.method = QUANTISATION_FP8, .block_rows = 1};
static const struct quantisation_scheme by_tensor = {.method = QUANTISATION_FP8};

/* By the definition: four bits of exponent with bias 7, three of fraction, no infinity. */
static float e4m3(uint8_t byte)
{
	int exponent = byte >> 3 & 15, fraction = byte & 7;
	float magnitude = exponent ? ldexpf(1 + (float)fraction / 8, exponent - 7)
				   : ldexpf((float)fraction / 8, -6);

	return byte & 0x80 ? -magnitude : magnitude;
}

static void test_every_byte_of_e4m3_has_its_value(void **state)
{
	struct quantised_file file = {0};
	uint8_t bytes[254];
	float want[254];

	for (uint32_t i = 0, byte = 0; byte < 256; byte++) {
		if ((byte & 0x7f) == 0x7f)
			continue;
		bytes[i] = (uint8_t)byte;
		want[i++] = e4m3((uint8_t)byte);
	}
	assert_true(want[126] == 448 && want[1] == 0.001953125f);
	FILE_ADD(&file, "m.weight", "F8_E4M3", "2,127", bytes);
	FILE_ADD(&file, "m.weight_scale", "F32", "1", (float[]){1});
	assert_widens(&file, *state, &by_tensor, 2, 127, want);
}

/* 0x38 is 1, 0x40 is 2. */
#define ONES_3X5                                                                                   \
	((uint8_t[]){0x38, 0x38, 0x38, 0x38, 0x40, 0x38, 0x38, 0x38, 0x38, 0x40, 0x38, 0x38, 0x38, \
		0x38, 0xc0})

static void test_blocks_at_the_edges_are_cut(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "3,5", ONES_3X5);
	FILE_ADD(&file, "m.weight_scale_inv", "F32", "2,3", (float[]){1, 2, 3, 4, 5, 6});
	assert_widens(&file, *state, &blocks, 3, 5,
		(float[]){1, 1, 2, 2, 6, 1, 1, 2, 2, 6, 4, 4, 5, 5, -12});
}

static void test_factors_multiply_whichever_name_they_have(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "3,5", ONES_3X5);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,3", (float[]){1, 2, 3, 4, 5, 6});
	assert_widens(&file, *state, &blocks, 3, 5,
		(float[]){1, 1, 2, 2, 6, 1, 1, 2, 2, 6, 4, 4, 5, 5, -12});
}

static void test_rows_have_factors_of_their_own(void **state)
{
	struct quantised_file file = {0};

	/* BF16: 0.5, 3, -1 */
	FILE_ADD(&file, "m.weight", "F8_E4M3", "3,5", ONES_3X5);
	FILE_ADD(&file, "m.weight_scale", "BF16", "3,1", (uint16_t[]){0x3f00, 0x4040, 0xbf80});
	assert_widens(&file, *state, &by_row, 3, 5,
		(float[]){.5, .5, .5, .5, 1, 3, 3, 3, 3, 6, -1, -1, -1, -1, 2});
}

static void test_factor_of_a_tensor_may_be_a_scalar(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "1,2", (uint8_t[]){0x38, 0x40});
	FILE_ADD(&file, "m.weight_scale", "F32", "", (float[]){3});
	assert_widens(&file, *state, &by_tensor, 1, 2, (float[]){3, 6});
}

static void test_weight_that_is_no_number_is_named(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "2,2", (uint8_t[]){0x38, 0x40, 0x38, 0xff});
	FILE_ADD(&file, "m.weight_scale", "F32", "1", (float[]){1});
	assert_refused(&file, *state, &by_tensor, 2, 2, -EINVAL,
		"tensor \"m.weight\": element [1, 1] is NaN");
}

static void refuse_factor(void **state, float factor, const char *words)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "2,2", (uint8_t[]){0x38, 0x40, 0x38, 0x38});
	FILE_ADD(&file, "m.weight_scale", "F32", "2,1", ((float[]){1, factor}));
	assert_refused(&file, *state, &by_row, 2, 2, -EINVAL, words);
}

static void test_factor_that_is_no_number_is_named(void **state)
{
	refuse_factor(state, NAN, "tensor \"m.weight_scale\": element 1, a factor, is nan");
}

static void test_infinite_factor_is_named(void **state)
{
	refuse_factor(state, -INFINITY, "tensor \"m.weight_scale\": element 1, a factor, is -inf");
}

static void test_factor_that_makes_infinite_weights_is_named(void **state)
{
	refuse_factor(state, 1e36f, "tensor \"m.weight_scale\": element 1, a factor, is 1e+36");
}

static void test_missing_factors_are_named(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "3,5", ONES_3X5);
	assert_refused(
		&file, *state, &blocks, 3, 5, -EINVAL, "tensor \"m.weight_scale_inv\" is missing");
}

static void test_factors_under_two_names_are_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "1,1", (uint8_t[]){0x38});
	FILE_ADD(&file, "m.weight_scale", "F32", "1", (float[]){1});
	FILE_ADD(&file, "m.weight_scale_inv", "F32", "1", (float[]){1});
	assert_refused(&file, *state, &by_tensor, 1, 1, -EINVAL,
		"tensor \"m.weight_scale\": is beside \"m.weight_scale_inv\"");
}

static void test_factors_of_another_shape_are_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "3,5", ONES_3X5);
	FILE_ADD(&file, "m.weight_scale_inv", "F32", "3,2", (float[]){1, 2, 3, 4, 5, 6});
	assert_refused(&file, *state, &blocks, 3, 5, -EINVAL,
		"tensor \"m.weight_scale_inv\": shape [3, 2] is not [2, 3]");
	assert_refused(&file, *state, &by_row, 3, 5, -EINVAL, "shape [3, 2] is not [3, 1]");
	assert_refused(&file, *state, &by_tensor, 3, 5, -EINVAL, "shape [3, 2] is not [1]");
}

static void test_factors_of_another_dtype_are_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "2,2", (uint8_t[]){0x38, 0x40, 0x38, 0x38});
	FILE_ADD(&file, "m.weight_scale", "F8_E8M0", "2,1", (uint8_t[]){1, 2});
	assert_refused(&file, *state, &by_row, 2, 2, -ENOTSUP,
		"tensor \"m.weight_scale\": dtype F8_E8M0 is not one of F32, BF16, F16");
}

static void test_data_of_another_shape_is_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E4M3", "5,3", ONES_3X5);
	FILE_ADD(&file, "m.weight_scale", "F32", "1", (float[]){1});
	assert_refused(&file, *state, &by_tensor, 3, 5, -EINVAL,
		"tensor \"m.weight\": shape [5, 3] is not [3, 5]");
}

static void test_data_of_another_dtype_is_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight", "F8_E5M2", "3,5", ONES_3X5);
	FILE_ADD(&file, "m.weight_scale", "F32", "1", (float[]){1});
	assert_refused(&file, *state, &by_tensor, 3, 5, -ENOTSUP,
		"tensor \"m.weight\": dtype F8_E5M2 is not F8_E4M3");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_every_byte_of_e4m3_has_its_value),
		scratch_test(test_blocks_at_the_edges_are_cut),
		scratch_test(test_factors_multiply_whichever_name_they_have),
		scratch_test(test_rows_have_factors_of_their_own),
		scratch_test(test_factor_of_a_tensor_may_be_a_scalar),
		scratch_test(test_weight_that_is_no_number_is_named),
		scratch_test(test_factor_that_is_no_number_is_named),
		scratch_test(test_infinite_factor_is_named),
		scratch_test(test_factor_that_makes_infinite_weights_is_named),
		scratch_test(test_missing_factors_are_named),
		scratch_test(test_factors_under_two_names_are_refused),
		scratch_test(test_factors_of_another_shape_are_refused),
		scratch_test(test_factors_of_another_dtype_are_refused),
		scratch_test(test_data_of_another_shape_is_refused),
		scratch_test(test_data_of_another_dtype_is_refused),
	};

	return cmocka_run_group_tests_name("quantised", tests, NULL, NULL);
}
