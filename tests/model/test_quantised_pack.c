/* SPDX-License-Identifier: MIT */

/* Which quantised matrices units can hold, decided before their data is read. */

#include "tests/model/fixture.h"

#include "daemon/model/quantised_format.h"

static struct quantised_source source_of(
	enum quantisation_method method, uint32_t block_rows, uint32_t block_cols, const struct safetensors_tensor *factors)
{
	return (struct quantised_source){
		.format = quantised_format_of(method),
		.sides = {[QUANTISED_FACTORS] = factors},
		.rows = 256,
		.cols = 512,
		.block_rows = block_rows,
		.block_cols = block_cols,
	};
}

static const struct safetensors_tensor f32 = {.dtype = DTYPE_F32}, f16 = {.dtype = DTYPE_F16},
				       bf16 = {.dtype = DTYPE_BF16};

static void expect_packing(const struct quantised_source *source, enum dtype dtype, bool grouped)
{
	struct quantised_packing packing;
	struct model_error error = {""};

	assert_int_equal(quantised_packing_of(source, NULL, &packing, &error), 0);
	assert_int_equal(packing.dtype, dtype);
	assert_int_equal(packing.grouped, grouped);
}

static void expect_widening(const struct quantised_source *source)
{
	struct quantised_packing packing;
	struct model_error error = {""};

	assert_int_equal(quantised_packing_of(source, NULL, &packing, &error), QUANTISED_WIDENS);
}

static void test_fp8_has_a_factor_a_row_where_blocks_are_as_long_as_rows(void **state)
{
	struct quantised_source source = source_of(QUANTISATION_FP8, 256, 512, &f32);

	expect_packing(&source, DTYPE_E4M3, false);
	source.block_rows = 1;
	expect_packing(&source, DTYPE_E4M3, false);
	source.block_cols = 640;
	expect_packing(&source, DTYPE_E4M3, false);
}

static void test_fp8_has_factors_in_its_units_where_blocks_are_shorter(void **state)
{
	struct quantised_source source = source_of(QUANTISATION_FP8, 128, 128, &f32);

	expect_packing(&source, DTYPE_E4M3, true);
	source.block_cols = 384; /* the second one is cut */
	expect_packing(&source, DTYPE_E4M3, true);
}

static void test_four_bits_have_factors_in_their_units(void **state)
{
	static const enum quantisation_method methods[] = {QUANTISATION_PACKED, QUANTISATION_GPTQ, QUANTISATION_AWQ};

	for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
		struct quantised_source source = source_of(methods[i], 1, 128, &f16);

		expect_packing(&source, DTYPE_U4, true);
		source.block_cols = 512;
		source.sides[QUANTISED_FACTORS] = &bf16;
		expect_packing(&source, DTYPE_U4, true);
	}
}

/* Their lowest bits are needed for the zeros. */
static void test_four_bits_with_factors_of_float32_are_widened(void **state)
{
	const struct quantised_source source = source_of(QUANTISATION_AWQ, 1, 128, &f32);

	expect_widening(&source);
}

static void test_blocks_of_fp8_that_are_no_multiple_of_128_are_widened(void **state)
{
	static const uint32_t sizes[] = {16, 64, 192};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		const struct quantised_source fp8 = source_of(QUANTISATION_FP8, 128, sizes[i], &f32);

		expect_widening(&fp8);
	}
}

static void test_four_bits_in_groups_of_other_multiples_of_32_have_four_factors_a_unit(void **state)
{
	static const uint32_t sizes[] = {32, 64, 192};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		const struct quantised_source gptq = source_of(QUANTISATION_GPTQ, 1, sizes[i], &f16);

		expect_packing(&gptq, DTYPE_U4_32, true);
	}
}

static void test_four_bits_in_groups_that_are_no_multiple_of_32_are_widened(void **state)
{
	static const uint32_t sizes[] = {16, 48, 136};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		const struct quantised_source gptq = source_of(QUANTISATION_GPTQ, 1, sizes[i], &f16);

		expect_widening(&gptq);
	}
}

static void test_matrices_that_are_not_made_of_units_are_widened(void **state)
{
	struct quantised_source source = source_of(QUANTISATION_FP8, 256, 512, &f32);

	source.rows = 252;
	expect_widening(&source);
	source.rows = 256;
	source.cols = source.block_cols = 576;
	expect_widening(&source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fp8_has_a_factor_a_row_where_blocks_are_as_long_as_rows),
		cmocka_unit_test(test_fp8_has_factors_in_its_units_where_blocks_are_shorter),
		cmocka_unit_test(test_four_bits_have_factors_in_their_units),
		cmocka_unit_test(test_four_bits_with_factors_of_float32_are_widened),
		cmocka_unit_test(test_blocks_of_fp8_that_are_no_multiple_of_128_are_widened),
		cmocka_unit_test(test_four_bits_in_groups_of_other_multiples_of_32_have_four_factors_a_unit),
		cmocka_unit_test(test_four_bits_in_groups_that_are_no_multiple_of_32_are_widened),
		cmocka_unit_test(test_matrices_that_are_not_made_of_units_are_widened),
	};

	return cmocka_run_group_tests_name("quantised_pack", tests, NULL, NULL);
}
