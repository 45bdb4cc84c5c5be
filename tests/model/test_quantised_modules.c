/* SPDX-License-Identifier: MIT */

/* Which modules quantization_config says are quantised. */

#include "tests/model/quantisations.h"

static enum quantisation_rule rule_of(const char *text, const char *module)
{
	char why[QUANTISATION_WHY_MAX];

	return quantisation_rule_of(quantisation_of(text), module, NULL, why);
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
		quantisation_of(FP8(",\"ignored_layers\":[\"x\",\"lm_head\"]")), "lm_head", NULL, why);
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

/* The method of the module's scheme. */
static enum quantisation_method method_of(const char *text, const char *module)
{
	const struct quantisation_scheme *scheme = quantisation_scheme_of(quantisation_of(text), module, NULL);

	assert_non_null(scheme);
	return scheme->method;
}

#define FLOAT(targets) GROUP_OF("float", "float-quantized", targets, CHANNELS)
#define INT(targets) GROUP_OF("int", "pack-quantized", targets, INT4_128)
#define BOTH(first, second) COMPRESSED_GROUPS("mixed-precision", first "," second, ",\"ignore\":[\"lm_head\"]")

static void test_scheme_is_that_of_the_groups_targets(void **state)
{
	const char *text = BOTH(INT("\"re:.*mlp.*\""), FLOAT("\"re:.*attn.*\""));

	assert_int_equal(method_of(text, "a.mlp.up"), QUANTISATION_PACKED);
	assert_int_equal(method_of(text, "a.attn.q"), QUANTISATION_FP8);
	assert_null(quantisation_scheme_of(quantisation_of(text), "a.norm", NULL));
	assert_int_equal(rule_of(text, "a.norm"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(text, "lm_head"), QUANTISATION_NEVER);
}

static void test_lists_may_have_either_name_of_a_module(void **state)
{
	const char *text = BOTH(INT("\"Linear\""), FLOAT("\"a.q\""));
	char why[QUANTISATION_WHY_MAX];

	assert_int_equal(quantisation_scheme_of(quantisation_of(text), "model.a.q", "a.q")->method, QUANTISATION_FP8);
	assert_int_equal(quantisation_scheme_of(quantisation_of(text), "a.q", "q")->method, QUANTISATION_FP8);
	assert_int_equal(quantisation_rule_of(quantisation_of(IGNORED("\"a.q\"")), "model.a.q", "a.q", why),
		QUANTISATION_NEVER);
	assert_string_equal(why, "quantization_config.ignore \"a.q\" excludes it");
	assert_int_equal(quantisation_rule_of(quantisation_of(IGNORED("\"a.q\"")), "a.q", "q", why), QUANTISATION_NEVER);
	assert_int_equal(quantisation_rule_of(quantisation_of(IGNORED("\"a.q\"")), "model.a.k", "a.k", why),
		QUANTISATION_ALWAYS);
}

/* Whichever comes first in the file. */
static void test_name_goes_before_pattern_and_pattern_before_all(void **state)
{
	assert_int_equal(method_of(BOTH(INT("\"re:a.*\""), FLOAT("\"a.q\"")), "a.q"), QUANTISATION_FP8);
	assert_int_equal(method_of(BOTH(INT("\"re:x\",\"Linear\""), FLOAT("\"re:a.*\"")), "a.q"), QUANTISATION_FP8);
	assert_int_equal(method_of(BOTH(INT("\"Linear\""), FLOAT("\"a.q\"")), "a.k"), QUANTISATION_PACKED);
	assert_int_equal(method_of(BOTH(INT("\"re:a.*\""), FLOAT("\"re:.*q\"")), "a.q"), QUANTISATION_PACKED);
}

static void test_modelopts_names_have_stars(void **state)
{
	const char *text = MODELOPT("FP8", ",\"ignore\":[\"lm_head\",\"model.layers.1*\",\"*.gate\",\"a?b*\"]");

	assert_int_equal(rule_of(text, "lm_head"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(text, "model.layers.1"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(text, "model.layers.1.mlp.up_proj"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(text, "model.layers.10.mlp.up_proj"), QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(text, "modelxlayers.1.mlp.up_proj"), QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(text, "model.layers.2.mlp.gate"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(text, "model.layers.2.mlp.gate_proj"), QUANTISATION_ALWAYS);
	assert_int_equal(rule_of(text, "a.b.c"), QUANTISATION_NEVER);
}

static void test_modelopts_star_within_a_part_stands_for_its_rest(void **state)
{
	const char *text = MODELOPT("FP8", ",\"ignore\":[\"*self_attn.q*\"]");

	assert_int_equal(rule_of(text, "model.layers.1.self_attn.q_proj"), QUANTISATION_NEVER);
	assert_int_equal(rule_of(text, "model.layers.1.self_attn.k_proj"), QUANTISATION_ALWAYS);
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

static bool pattern_matches(const char *pattern, const char *name)
{
	char text[1024];

	snprintf(text, sizeof(text), PATTERN("%s"), pattern);
	return rule_of(text, name) == QUANTISATION_NEVER;
}

static void test_pattern_repeats_what_is_before(void **state)
{
	assert_true(pattern_matches("ab*c", "ac") && pattern_matches("ab*c", "abbbc"));
	assert_true(pattern_matches("ab?c", "ac") && pattern_matches("ab?c", "abc"));
	assert_false(pattern_matches("ab?c", "abbc"));
	assert_true(pattern_matches("ab+c", "abbc"));
	assert_false(pattern_matches("ab+c", "ac"));
	assert_true(pattern_matches("(ab)+c", "ababc"));
	assert_false(pattern_matches("(ab)+c", "abac"));
	assert_true(pattern_matches("(a|bc)*d$", "abcad"));
	assert_false(pattern_matches("(a|bc)*d$", "abd"));
	assert_true(pattern_matches("(|a)b", "b") && pattern_matches("(a*)*b", "aab"));
	assert_true(pattern_matches(".*?c", "abc") && pattern_matches("a+?b??c", "aac"));
}

static void test_pattern_has_sets_of_characters(void **state)
{
	assert_true(pattern_matches("[a-c]+x", "abcx") && pattern_matches("[]a]x", "]x"));
	assert_false(pattern_matches("[a-c]x", "dx") || pattern_matches("[^a-c]x", "bx"));
	assert_true(pattern_matches("[-a]x", "-x") && pattern_matches("[a-]x", "-x"));
	assert_true(pattern_matches("[\\\\w.]+-", "a_9.Z-"));
	assert_true(pattern_matches("\\\\D\\\\W\\\\S", "x.y"));
	assert_false(pattern_matches("\\\\D", "1") || pattern_matches("\\\\s", "x"));
	assert_false(pattern_matches(".", ""));
}

static void test_pattern_has_anchors_anywhere(void **state)
{
	assert_true(pattern_matches("^a$", "a") && pattern_matches("(x|^)a(b|$)", "a"));
	assert_false(pattern_matches("^a$", "ab") || pattern_matches("a^b", "ab"));
}

static void test_pattern_has_bounds_references_and_looks_ahead(void **state)
{
	assert_true(pattern_matches("a{2,3}b", "aab") && pattern_matches("(a|b)\\\\1c", "bbc"));
	assert_false(pattern_matches("a{2,3}b", "ab") || pattern_matches("(a|b)\\\\1c", "abc"));
	assert_true(pattern_matches("(?!lm_head)", "model") && pattern_matches("a\\\\b", "a.b"));
	assert_false(pattern_matches("(?!lm_head)", "lm_head") || pattern_matches("a\\\\b", "ab"));
}

static void test_pattern_that_takes_too_many_steps_decides_nothing(void **state)
{
	assert_int_equal(rule_of(PATTERN("(a|aa)+$"), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"),
		QUANTISATION_MAYBE);
}

/* 2^30 copies of a, were + a copy of what is before it. */
static void test_nested_repetitions_take_little_memory_and_time(void **state)
{
	char pattern[160] = "";

	for (uint32_t i = 0; i < 30; i++)
		strcat(pattern, "(");
	strcat(pattern, "a");
	for (uint32_t i = 0; i < 30; i++)
		strcat(pattern, ")+");
	strcat(pattern, "b");
	assert_true(pattern_matches(pattern, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
	assert_false(pattern_matches(pattern, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

/* Characters that make the most steps. */
static void test_pattern_may_have_256_characters(void **state)
{
	char pattern[258] = "";

	for (uint32_t i = 0; i < 128; i++)
		strcat(pattern, "a*");
	assert_true(pattern_matches(pattern, ""));
	memset(pattern, '|', 256);
	assert_true(pattern_matches(pattern, "b"));
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
		cmocka_unit_test(test_scheme_is_that_of_the_groups_targets),
		cmocka_unit_test(test_lists_may_have_either_name_of_a_module),
		cmocka_unit_test(test_name_goes_before_pattern_and_pattern_before_all),
		cmocka_unit_test(test_modelopts_names_have_stars),
		cmocka_unit_test(test_modelopts_star_within_a_part_stands_for_its_rest),
		cmocka_unit_test(test_pattern_matches_from_the_first_character_on),
		cmocka_unit_test(test_pattern_has_pythons_classes_and_groups),
		cmocka_unit_test(test_pattern_repeats_what_is_before),
		cmocka_unit_test(test_pattern_has_sets_of_characters),
		cmocka_unit_test(test_pattern_has_anchors_anywhere),
		cmocka_unit_test(test_pattern_has_bounds_references_and_looks_ahead),
		cmocka_unit_test(test_pattern_that_takes_too_many_steps_decides_nothing),
		cmocka_unit_test(test_nested_repetitions_take_little_memory_and_time),
		cmocka_unit_test(test_pattern_may_have_256_characters),
		REFUSED_PATTERN("repetition of a repetition is refused", "a**"),
		REFUSED_PATTERN("repetition of nothing is refused", "(+a)"),
		REFUSED_PATTERN("group that is not open is refused", "a)b"),
		REFUSED_PATTERN("range that runs backwards is refused", "[z-a]"),
		REFUSED_PATTERN("groups within 33 groups are refused",
			"((((((((((((((((((((((((((((((((("
			"a)))))))))))))))))))))))))))))))))"),
		REFUSED_PATTERN("pattern whose copies are too many is refused", "((a{99}){99}){99}"),
		REFUSED_PATTERN("pattern that ends in an escape is refused", "a\\\\"),
		REFUSED_PATTERN("pattern with an open bracket is refused", "a["),
		REFUSED_PATTERN("pattern with an open group is refused", "a(b"),
		REFUSED("excluded module that is no name is refused", EXCLUDED("7"), -EINVAL,
			"quantization_config.modules_to_not_convert[0] \"(not a string)\""),
	};

	return cmocka_run_group_tests_name("quantised_modules", tests, NULL, free_configs);
}
