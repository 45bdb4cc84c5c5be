/* SPDX-License-Identifier: MIT */

/* Which modules quantization_config says are quantised. */

#include "tests/model/quantisations.h"

static enum quantisation_rule rule_of(const char *text, const char *module)
{
	char why[QUANTISATION_WHY_MAX];

	return quantisation_rule_of(quantisation_of(text), module, why);
}

#define EXCLUDED(list) FP8(",\"modules_to_not_convert\":[" list "]")

static void test_a_module_that_no_list_names_is_quantised(void **state)
{
	assert_int_equal(rule_of(FP8(""), "model.layers.0.mlp.up_proj"), QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(EXCLUDED("\"lm_head\""), "model.layers.0.mlp.up_proj"),
		QUANTISATION_ALWAYS);
}

static void test_a_name_excludes_modules_that_have_its_parts(void **state)
{
	assert_int_equal(rule_of(EXCLUDED("\"a\",\"lm_head\""), "lm_head"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(EXCLUDED("\"model.layers.0\""), "model.layers.0.mlp.up_proj"),
		QUANTISATION_NEVER);
	assert_int_equal(rule_of(EXCLUDED("\"self_attn\""), "model.layers.3.self_attn.q_proj"),
		QUANTISATION_NEVER);
}

/* "mlp.gate" is the router; some programs take it for gate_proj as well. */
static void test_a_name_within_a_part_decides_nothing(void **state)
{
	assert_int_equal(rule_of(EXCLUDED("\"mlp.gate\""), "model.layers.0.mlp.gate_proj"),
		QUANTISATION_MAYBE);
	assert_int_equal(rule_of(EXCLUDED("\"model.layers.1\""), "model.layers.11.mlp.up_proj"),
		QUANTISATION_MAYBE);
	assert_int_equal(rule_of(EXCLUDED("\"head\""), "lm_head"), QUANTISATION_MAYBE);
}

static void test_ignored_layers_are_a_list_of_that_kind(void **state)
{
	assert_int_equal(
		rule_of(FP8(",\"ignored_layers\":[\"lm_head\"]"), "lm_head"), QUANTISATION_NEVER);
}

static void test_reason_names_the_field_and_its_entry(void **state)
{
	char why[QUANTISATION_WHY_MAX] = "";

	quantisation_rule_of(
		quantisation_of(FP8(",\"ignored_layers\":[\"x\",\"lm_head\"]")), "lm_head", why);
	assert_string_equal(why, "quantization_config.ignored_layers \"lm_head\" excludes it");
}

#define IGNORED(list)                                                                              \
	COMPRESSED("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\"", \
		",\"ignore\":[" list "]")

static void test_compressed_tensors_names_are_whole(void **state)
{
	assert_int_equal(rule_of(IGNORED("\"lm_head\""), "lm_head"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(IGNORED("\"model.layers.0\""), "model.layers.0.mlp.up_proj"),
		QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(IGNORED("\"re:.*up_proj\""), "model.layers.0.mlp.up_proj"),
		QUANTISATION_NEVER);
}

static void test_awq_leaves_modules_that_its_list_names(void **state)
{
#define AWQ_BUT(name) AWQ("gemm", ",\"modules_to_not_convert\":[\"" name "\"]")
	assert_int_equal(rule_of(AWQ_BUT("mlp.gate"), "a.mlp.gate"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(AWQ_BUT("mlp.gate"), "a.mlp.up"), QUANTISATION_ALWAYS);
}

static void test_only_targets_are_quantised(void **state)
{
#define TARGET(name)                                                                               \
	COMPRESSED_GROUP("float-quantized",                                                        \
		"\"targets\":[" name "],\"weights\":{\"num_bits\":8,\"type\":\"float\","           \
		"\"strategy\":\"tensor\"}",                                                        \
		"")
	assert_int_equal(rule_of(TARGET("\"re:.*mlp.*\""), "a.mlp.up"), QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(TARGET("\"re:.*mlp.*\""), "a.attn.q"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(TARGET("\"a.attn.q\""), "a.attn.q"), QUANTISATION_ALWAYS);
}

#define PATTERN(text) EXCLUDED("\"re:" text "\"")

static void test_pattern_matches_from_the_first_character_on(void **state)
{
	assert_int_equal(rule_of(PATTERN("mlp"), "model.mlp"), QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(PATTERN("model"), "model.mlp"), QUANTISATION_NEVER);
	assert_int_equal(
		rule_of(PATTERN(".*mlp.gate$"), "model.layers.0.mlp.gate"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(PATTERN(".*mlp.gate$"), "model.layers.0.mlp.gate_proj"),
		QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(PATTERN("a|x"), "b.x"), QUANTISATION_ALWAYS);
}

static void test_pattern_has_pythons_classes_and_groups(void **state)
{
	assert_int_equal(
		rule_of(PATTERN("model\\\\.layers\\\\.\\\\d+\\\\.mlp"), "model.layers.10.mlp"),
		QUANTISATION_NEVER);
	assert_int_equal(
		rule_of(PATTERN("model\\\\.layers\\\\.\\\\d\\\\.mlp"), "model.layers.10.mlp"),
		QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(PATTERN("model\\\\.x"), "modelyx"), QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(PATTERN("\\\\w+\\\\.(?:up|down)_proj"), "mlp.down_proj"),
		QUANTISATION_NEVER);
	assert_int_equal(rule_of(PATTERN(".*[02]\\\\.x"), "layers.2.x"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(PATTERN(".*[^02]\\\\.x"), "layers.2.x"), QUANTISATION_ALWAYS);
}

#define REFUSED_PATTERN(claim, text)                                                               \
	REFUSED(claim, PATTERN(text), -ENOTSUP,                                                    \
		"quantization_config.modules_to_not_convert[0] \"re:")

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_compressed_tensors_names_are_whole),
		cmocka_unit_test(test_awq_leaves_modules_that_its_list_names),
		cmocka_unit_test(test_only_targets_are_quantised),
		cmocka_unit_test(test_a_module_that_no_list_names_is_quantised),
		cmocka_unit_test(test_a_name_excludes_modules_that_have_its_parts),
		cmocka_unit_test(test_a_name_within_a_part_decides_nothing),
		cmocka_unit_test(test_ignored_layers_are_a_list_of_that_kind),
		cmocka_unit_test(test_reason_names_the_field_and_its_entry),
		cmocka_unit_test(test_pattern_matches_from_the_first_character_on),
		cmocka_unit_test(test_pattern_has_pythons_classes_and_groups),
		REFUSED_PATTERN("pattern with a back reference is refused", "(a)\\\\1"),
		REFUSED_PATTERN("pattern with an escape that is no class is refused", "a\\\\b"),
		REFUSED_PATTERN("pattern with bounds is refused", "a{1,3000}"),
		REFUSED_PATTERN("pattern that looks ahead is refused", "(?!lm_head)"),
		REFUSED_PATTERN("pattern with an escape in brackets is refused", "[\\\\w.]"),
		REFUSED_PATTERN("pattern that ends in an escape is refused", "a\\\\"),
		REFUSED_PATTERN("pattern with an open bracket is refused", "a["),
		REFUSED_PATTERN("pattern with an open group is refused", "a(b"),
		REFUSED("excluded module that is no name is refused", EXCLUDED("7"), -EINVAL,
			"quantization_config.modules_to_not_convert[0] \"(not a string)\""),
	};

	return cmocka_run_group_tests_name("quantised_modules", tests, NULL, free_configs);
}
