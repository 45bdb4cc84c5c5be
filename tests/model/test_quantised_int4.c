/* SPDX-License-Identifier: MIT */

/* Matrices of 4 bits written by hand, and what float32 makes of them. */

#include "tests/model/quantised_file.h"

/* ---- 4 bits, compressed-tensors ---- */

static const struct quantisation_scheme packed = {
	.method = QUANTISATION_PACKED, .block_rows = 1, .block_cols = 4, .symmetric = true};
static const struct quantisation_scheme packed_zeros = {
	.method = QUANTISATION_PACKED, .block_rows = 1, .block_cols = 4};
static const struct quantisation_scheme packed_groups = {.method = QUANTISATION_PACKED,
	.block_rows = 1,
	.block_cols = 4,
	.symmetric = true,
	.needs_groups = true};

/* Row 0 is 0 to 7, row 1 is 8 to 15, as stored. */
#define COUNTED ((uint32_t[]){0x76543210, 0xfedcba98})
#define BY_GROUP ((float[]){1, 10, 100, 1000})

static void test_packed_integers_are_eight_less_than_stored(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	assert_widens(&file, *state, &packed, 2, 8,
		(float[]){-8, -7, -6, -5, -40, -30, -20, -10, 0, 100, 200, 300, 4000, 5000, 6000,
			7000});
}

static void test_columns_behind_the_last_word_do_not_exist(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	assert_widens(&file, *state, &packed, 2, 5,
		(float[]){-8, -7, -6, -5, -40, 0, 100, 200, 300, 4000});
}

/* Zeros as stored: of row 0 in group 0 3, in group 1 4; of row 1 10 and 12. */
static void test_zeros_are_packed_along_the_rows(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	FILE_ADD(&file, "m.weight_zero_point", "I32", "1,2", (uint32_t[]){0xa3, 0xc4});
	assert_widens(&file, *state, &packed_zeros, 2, 8,
		(float[]){-3, -2, -1, 0, 0, 10, 20, 30, -200, -100, 0, 100, 0, 1000, 2000, 3000});
}

static void test_stored_groups_choose_the_factor_of_a_column(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	FILE_ADD(&file, "m.weight_g_idx", "I32", "8", (int32_t[]){1, 0, 1, 0, 1, 0, 1, 0});
	assert_widens(&file, *state, &packed_groups, 2, 8,
		(float[]){-80, -7, -60, -5, -40, -3, -20, -1, 0, 100, 2000, 300, 4000, 500, 6000,
			700});
}

static void test_stored_group_that_is_none_is_named(void **state)
{
	for (int32_t group = -1; group < 3; group += 3) {
		struct quantised_file file = {0};
		char words[96];

		FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
		FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
		FILE_ADD(&file, "m.weight_g_idx", "I32", "8",
			((int32_t[]){1, 0, 1, group, 1, 0, 1, 0}));
		snprintf(words, sizeof(words),
			"tensor \"m.weight_g_idx\": element 3, %d, is not one of 2 groups", group);
		assert_refused(&file, *state, &packed_groups, 2, 8, -EINVAL, words);
	}
}

static void test_missing_groups_are_named(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	assert_refused(&file, *state, &packed_groups, 2, 8, -EINVAL,
		"tensor \"m.weight_g_idx\" is missing");
}

static void test_missing_zeros_are_named(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	assert_refused(&file, *state, &packed_zeros, 2, 8, -EINVAL,
		"tensor \"m.weight_zero_point\" is missing");
}

static void test_zeros_of_symmetric_weights_are_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	FILE_ADD(&file, "m.weight_zero_point", "I32", "1,2", (uint32_t[]){0xa3, 0xc4});
	assert_refused(&file, *state, &packed, 2, 8, -EINVAL,
		"tensor \"m.weight_zero_point\": is there, but the configuration says");
}

static void test_zeros_of_another_shape_or_dtype_are_refused(void **state)
{
	struct quantised_file shape = {0}, dtype = {0};

	FILE_ADD(&shape, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&shape, "m.weight_scale", "F32", "2,2", BY_GROUP);
	FILE_ADD(&shape, "m.weight_zero_point", "I32", "2,1", (uint32_t[]){0xa3, 0xc4});
	assert_refused(&shape, *state, &packed_zeros, 2, 8, -EINVAL,
		"tensor \"m.weight_zero_point\": shape [2, 1] is not [1, 2]");
	FILE_ADD(&dtype, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&dtype, "m.weight_scale", "F32", "2,2", BY_GROUP);
	FILE_ADD(&dtype, "m.weight_zero_point", "U32", "1,2", (uint32_t[]){0xa3, 0xc4});
	assert_refused(&dtype, *state, &packed_zeros, 2, 8, -ENOTSUP,
		"tensor \"m.weight_zero_point\": dtype U32 is not I32");
}

static void test_groups_of_another_shape_are_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.weight_packed", "I32", "2,1", COUNTED);
	FILE_ADD(&file, "m.weight_scale", "F32", "2,2", BY_GROUP);
	FILE_ADD(&file, "m.weight_g_idx", "I32", "7", (int32_t[7]){0});
	assert_refused(&file, *state, &packed_groups, 2, 8, -EINVAL,
		"tensor \"m.weight_g_idx\": shape [7] is not [8]");
}

/* ---- 4 bits, transposed: GPTQ and AWQ ---- */

static const struct quantisation_scheme gptq_v2 = {
	.method = QUANTISATION_GPTQ, .block_rows = 1, .block_cols = 4};
static const struct quantisation_scheme gptq = {
	.method = QUANTISATION_GPTQ, .block_rows = 1, .block_cols = 4, .zeros_less_one = true};
static const struct quantisation_scheme gptq_order = {
	.method = QUANTISATION_GPTQ, .block_rows = 1, .block_cols = 4, .needs_groups = true};
static const struct quantisation_scheme awq = {
	.method = QUANTISATION_AWQ, .block_rows = 1, .block_cols = 2};

/* F16: 1, 2, 3, 4 */
#define F16_GROUPS ((uint16_t[]){0x3c00, 0x4000, 0x4200, 0x4400})

/* Two rows of 8 columns in two groups; a word has a row's columns. Zeros of rows 0 and 1: 1, 2 in
 * group 0 and 3, 4 in group 1. */
static struct quantised_file gptq_file(void)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.qweight", "I32", "1,2", COUNTED);
	FILE_ADD(&file, "m.qzeros", "I32", "2,1", (uint32_t[]){0x21, 0x43});
	FILE_ADD(&file, "m.scales", "F16", "2,2", F16_GROUPS);
	return file;
}

static void test_gptq_v2_has_groups_first_and_zeros_as_they_are(void **state)
{
	struct quantised_file file = gptq_file();

	assert_widens(&file, *state, &gptq_v2, 2, 8,
		(float[]){-1, 0, 1, 2, 3, 6, 9, 12, 12, 14, 16, 18, 32, 36, 40, 44});
}

static void test_gptq_has_zeros_of_one_less(void **state)
{
	struct quantised_file file = gptq_file();

	assert_widens(&file, *state, &gptq, 2, 8,
		(float[]){-2, -1, 0, 1, 0, 3, 6, 9, 10, 12, 14, 16, 28, 32, 36, 40});
}

static void test_gptqs_zero_of_one_less_than_nothing_is_15(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.qweight", "I32", "1,1", (uint32_t[]){0x76543210});
	FILE_ADD(&file, "m.qzeros", "I32", "2,1", (uint32_t[]){0xf, 0});
	FILE_ADD(&file, "m.scales", "F16", "2,1", (uint16_t[]){0x3c00, 0x3c00});
	assert_widens(&file, *state, &gptq, 1, 8, (float[]){0, 1, 2, 3, 3, 4, 5, 6});
}

static void test_gptqs_columns_may_be_in_any_group(void **state)
{
	struct quantised_file file = gptq_file();

	FILE_ADD(&file, "m.g_idx", "I32", "8", (int32_t[]){1, 1, 0, 0, 0, 0, 1, 1});
	assert_widens(&file, *state, &gptq_order, 2, 8,
		(float[]){-9, -6, 1, 2, 3, 4, 9, 12, 16, 20, 16, 18, 20, 22, 40, 44});
}

static void test_gptq_in_the_order_of_activations_needs_groups(void **state)
{
	struct quantised_file file = gptq_file();

	assert_refused(&file, *state, &gptq_order, 2, 8, -EINVAL, "tensor \"m.g_idx\" is missing");
}

static void test_gptq_without_zeros_is_refused(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.qweight", "I32", "1,2", COUNTED);
	FILE_ADD(&file, "m.scales", "F16", "2,2", F16_GROUPS);
	assert_refused(&file, *state, &gptq, 2, 8, -EINVAL, "tensor \"m.qzeros\" is missing");
}

static void test_gptqs_shapes_have_the_columns_first(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.qweight", "I32", "2,1", COUNTED);
	assert_refused(&file, *state, &gptq, 2, 8, -EINVAL,
		"tensor \"m.qweight\": shape [2, 1] is not [1, 2]");
}

static void test_corrupt_factor_of_gptq_is_named(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.qweight", "I32", "1,2", COUNTED);
	FILE_ADD(&file, "m.qzeros", "I32", "2,1", (uint32_t[]){0x21, 0x43});
	FILE_ADD(&file, "m.scales", "F16", "2,2", (uint16_t[]){0x3c00, 0x4000, 0x7c00, 0x4400});
	assert_refused(&file, *state, &gptq, 2, 8, -EINVAL,
		"tensor \"m.scales\": element 2, a factor, is inf");
}

/* Words of 8 rows: the rows of nibbles 0 to 7 are 0, 2, 4, 6, 1, 3, 5, 7. Four columns, two groups;
 * zeros are 0 and, of row 1 in group 1, 3. */
static void test_awq_has_rows_in_its_own_order(void **state)
{
	struct quantised_file file = {0};
	float want[32];

	FILE_ADD(&file, "m.qweight", "I32", "4,1",
		(uint32_t[]){0x76543210, 0x76543210, 0x76543210, 0x76543210});
	FILE_ADD(&file, "m.qzeros", "I32", "2,1", (uint32_t[]){0, 0x30000});
	FILE_ADD(&file, "m.scales", "F32", "2,8",
		(float[]){1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2});
	for (uint32_t row = 0; row < 8; row++) {
		static const float q[8] = {0, 4, 1, 5, 2, 6, 3, 7};

		want[4 * row] = want[4 * row + 1] = q[row];
		want[4 * row + 2] = want[4 * row + 3] = 2 * (row == 1 ? q[row] - 3 : q[row]);
	}
	assert_widens(&file, *state, &awq, 8, 4, want);
}

static void test_awqs_shapes_are_packed_along_the_rows(void **state)
{
	struct quantised_file file = {0};

	FILE_ADD(&file, "m.qweight", "I32", "1,4", (uint32_t[4]){0});
	assert_refused(&file, *state, &awq, 8, 4, -EINVAL,
		"tensor \"m.qweight\": shape [1, 4] is not [4, 1]");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_packed_integers_are_eight_less_than_stored),
		scratch_test(test_columns_behind_the_last_word_do_not_exist),
		scratch_test(test_zeros_are_packed_along_the_rows),
		scratch_test(test_stored_groups_choose_the_factor_of_a_column),
		scratch_test(test_stored_group_that_is_none_is_named),
		scratch_test(test_missing_groups_are_named),
		scratch_test(test_missing_zeros_are_named),
		scratch_test(test_zeros_of_symmetric_weights_are_refused),
		scratch_test(test_zeros_of_another_shape_or_dtype_are_refused),
		scratch_test(test_groups_of_another_shape_are_refused),
		scratch_test(test_gptq_v2_has_groups_first_and_zeros_as_they_are),
		scratch_test(test_gptq_has_zeros_of_one_less),
		scratch_test(test_gptqs_zero_of_one_less_than_nothing_is_15),
		scratch_test(test_gptqs_columns_may_be_in_any_group),
		scratch_test(test_gptq_in_the_order_of_activations_needs_groups),
		scratch_test(test_gptq_without_zeros_is_refused),
		scratch_test(test_gptqs_shapes_have_the_columns_first),
		scratch_test(test_corrupt_factor_of_gptq_is_named),
		scratch_test(test_awq_has_rows_in_its_own_order),
		scratch_test(test_awqs_shapes_are_packed_along_the_rows),
	};

	return cmocka_run_group_tests_name("quantised_int4", tests, NULL, NULL);
}
