/* SPDX-License-Identifier: MIT */
#include "tests/model/configs.h"

static void test_rope_scaling_of_older_files_is_read(void **state)
{
	struct model_config c = parse(LLAMA(",\"rope_theta\":700,\"rope_scaling\":"
					    "{\"type\":\"linear\",\"factor\":4}"));

	assert_int_equal(c.rope.type, ROPE_LINEAR);
	assert_true(c.rope.theta == 700 && c.rope.factor == 4);
}

static void test_rope_parameters_of_newer_files_are_read(void **state)
{
	struct model_config c = parse(LLAMA(
		",\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"llama3\","
		"\"rope_theta\":500000.0,\"factor\":8.0,\"low_freq_factor\":1.0,"
		"\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}"));

	assert_int_equal(c.rope.type, ROPE_LLAMA3);
	assert_true(c.rope.theta == 500000 && c.rope.factor == 8);
	assert_true(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
	assert_true(c.rope.original_max_position_embeddings == 8192);
}

static void test_rope_scaling_wins_over_rope_parameters(void **state)
{
	struct model_config c = parse(LLAMA(
		",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},"
		"\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":3}"));

	assert_true(c.rope.factor == 2);
}

static void test_yarn_defaults(void **state)
{
	struct model_config c = parse(LLAMA(",\"max_position_embeddings\":4096,\"rope_scaling\":"
					    "{\"rope_type\":\"yarn\",\"factor\":4}"));

	assert_int_equal(c.rope.type, ROPE_YARN);
	assert_true(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate);
	assert_true(c.rope.attention_factor < 0 && c.rope.mscale < 0 && c.rope.mscale_all_dim < 0);
	assert_true(c.rope.original_max_position_embeddings == 4096);
	assert_int_equal(c.max_seq_len, 4096);
}

static void test_yarn_null_truncate_is_false(void **state)
{
	struct model_config c = parse(LLAMA(
		",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":null}"));

	assert_false(c.rope.truncate);
}

static void test_yarn_null_factor_is_the_ratio_of_lengths(void **state)
{
	struct model_config c = parse(LLAMA(
		",\"max_position_embeddings\":4096,\"rope_scaling\":{\"rope_type\":\"yarn\","
		"\"factor\":null,\"original_max_position_embeddings\":512,\"beta_fast\":0}"));

	assert_true(c.rope.factor == 8 && c.rope.beta_fast == 32);
}

static void test_original_length_at_the_top_level_wins(void **state)
{
	struct model_config c = parse(LLAMA(
		",\"original_max_position_embeddings\":64,\"rope_scaling\":{\"rope_type\":\"yarn\","
		"\"factor\":2,\"original_max_position_embeddings\":512}"));

	assert_true(c.rope.original_max_position_embeddings == 64);
}

static void test_partial_rotary_is_refused_at_either_level(void **state)
{
	expect_refusal(
		LLAMA(",\"partial_rotary_factor\":0.5"), -ENOTSUP, "partial_rotary_factor 0.5");
	expect_refusal(LLAMA(",\"rope_parameters\":{\"partial_rotary_factor\":0.25}"), -ENOTSUP,
		"rope_parameters.partial_rotary_factor 0.25");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rope_scaling_of_older_files_is_read),
		cmocka_unit_test(test_rope_parameters_of_newer_files_are_read),
		cmocka_unit_test(test_rope_scaling_wins_over_rope_parameters),
		cmocka_unit_test(test_yarn_defaults),
		cmocka_unit_test(test_yarn_null_truncate_is_false),
		cmocka_unit_test(test_yarn_null_factor_is_the_ratio_of_lengths),
		cmocka_unit_test(test_original_length_at_the_top_level_wins),
		REFUSED("unknown rope type is refused",
			LLAMA(",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}"),
			-ENOTSUP, "rope_scaling.rope_type \"dynamic\" is not one of"),
		REFUSED("rope without its factor is refused",
			LLAMA(",\"rope_parameters\":{\"rope_type\":\"linear\"}"), -EINVAL,
			"rope_parameters.factor is missing"),
		cmocka_unit_test(test_partial_rotary_is_refused_at_either_level),
		REFUSED("rope per layer type is refused",
			LLAMA(",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}"),
			-EINVAL, "rope_parameters.full_attention is an object"),
		REFUSED("llama3 bands in the wrong order are refused",
			LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
			"\"low_freq_factor\":4,\"high_freq_factor\":4}"), -EINVAL,
			"high_freq_factor 4 is not greater than low_freq_factor 4"),
		REFUSED("rope theta of one is refused",
			LLAMA(",\"rope_theta\":1"), -EINVAL, "rope_theta 1 is not between"),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, free_configs);
}
