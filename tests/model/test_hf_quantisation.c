/* SPDX-License-Identifier: MIT */

/* quantization_config of config.json: what is read, and what is refused by its name and value. */

#include "tests/model/quantisations.h"

#include "daemon/model/hf_modelopt.h"

static void assert_described(const char *text, const char *want)
{
	char have[QUANTISATION_TEXT_MAX];

	quantisation_describe(quantisation_of(text), have);
	assert_string_equal(have, want);
}

/* ---- fp8 ---- */

static void test_fp8_has_blocks_of_the_size_given(void **state)
{
	const struct quantisation_scheme *q =
		scheme_of(FP8(",\"fmt\":\"e4m3\",\"weight_block_size\":[128,64]"));

	assert_int_equal(q->method, QUANTISATION_FP8);
	assert_int_equal(q->block_rows, 128);
	assert_int_equal(q->block_cols, 64);
	assert_described(FP8(",\"weight_block_size\":[128,64]"), "fp8 in blocks of 128 x 64");
}

static void test_fp8_without_a_block_size_has_a_factor_a_tensor(void **state)
{
	assert_int_equal(scheme_of(FP8(""))->block_rows, 0);
	assert_described(FP8(",\"weight_block_size\":null"), "fp8 with a factor a tensor");
}

static void test_schemes_of_activations_do_not_change_weights(void **state)
{
	quantisation_of(FP8(",\"activation_scheme\":\"static\""));
	quantisation_of(FP8(",\"activation_scheme\":\"dynamic\""));
}

/* ---- compressed-tensors ---- */

#define FLOATS(strategy)                                                                           \
	COMPRESSED("float-quantized",                                                              \
		"\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":" strategy, "")
#define INTS(more)                                                                                 \
	COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":" more, "")

static void test_strategies_of_floats_are_factors(void **state)
{
	assert_described(FLOATS("\"channel\""), "fp8 with a factor a row");
	assert_described(FLOATS("\"tensor\""), "fp8 with a factor a tensor");
	assert_described(
		FLOATS("\"block\",\"block_structure\":[128,128]"), "fp8 in blocks of 128 x 128");
}

static void test_strategies_of_packed_integers_are_factors(void **state)
{
	assert_described(INTS("\"group\",\"group_size\":128"), "int4 in groups of 128");
	assert_described(INTS("\"channel\""), "int4 with a factor a row");
}

static void test_packed_integers_are_symmetric_unless_it_says_otherwise(void **state)
{
	assert_true(scheme_of(INTS("\"channel\""))->symmetric);
	assert_false(scheme_of(INTS("\"channel\",\"symmetric\":false"))->symmetric);
}

static void test_only_an_order_by_group_needs_stored_groups(void **state)
{
#define ORDERED(order) INTS("\"group\",\"group_size\":32,\"actorder\":" order)
	assert_true(scheme_of(ORDERED("\"group\""))->needs_groups);
	assert_false(scheme_of(ORDERED("\"weight\""))->needs_groups);
	assert_false(scheme_of(ORDERED("null"))->needs_groups);
}

static void test_inputs_in_8_bits_do_not_change_weights(void **state)
{
	quantisation_of(COMPRESSED_GROUP("float-quantized",
		"\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"float\","
		"\"strategy\":\"channel\"},\"input_activations\":{\"num_bits\":8,"
		"\"type\":\"float\",\"strategy\":\"token\",\"dynamic\":true},"
		"\"output_activations\":null",
		",\"kv_cache_scheme\":null,\"ignore\":[],\"sparsity_config\":{},"
		"\"transform_config\":{},\"version\":\"0.9\",\"quantization_status\":\"frozen\","
		"\"global_compression_ratio\":1.5"));
}

#define MIXED(groups) COMPRESSED_GROUPS("mixed-precision", groups, "")
#define TWO                                                                                        \
	GROUP_OF("a", "float-quantized", "\"re:.*self_attn.*\"", CHANNELS)                         \
	"," GROUP_OF("b", "pack-quantized", "\"Linear\"", INT4_128)

static void test_groups_have_schemes_of_their_own(void **state)
{
	const struct quantisation *q = quantisation_of(MIXED(TWO));

	assert_int_equal(q->n_schemes, 2);
	assert_int_equal(q->schemes[0].method, QUANTISATION_FP8);
	assert_int_equal(q->schemes[1].method, QUANTISATION_PACKED);
	assert_int_equal(q->schemes[1].block_cols, 128);
	assert_described(MIXED(TWO), "fp8 with a factor a row and int4 in groups of 128");
}

static void test_groups_may_share_the_format_of_all(void **state)
{
	assert_described(COMPRESSED_GROUPS("pack-quantized",
				 "\"a\":{\"targets\":[\"x\"],\"weights\":{" INT4_128 "}},"
				 "\"b\":{\"targets\":[\"y\"],\"weights\":{" INT4_128 "}}",
				 ""),
		"int4 in groups of 128");
}

/* ---- gptq, awq ---- */

#define GPTQ(more) QUANTISED("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128" more)
static void test_gptq_of_both_versions_is_read(void **state)
{
	assert_true(scheme_of(GPTQ(""))->zeros_less_one);
	assert_true(scheme_of(GPTQ(",\"checkpoint_format\":\"gptq\""))->zeros_less_one);
	assert_false(scheme_of(GPTQ(",\"checkpoint_format\":\"gptq_v2\""))->zeros_less_one);
	assert_false(scheme_of(GPTQ(",\"format\":\"gptq_v2\""))->zeros_less_one);
	assert_described(GPTQ(""), "int4 (gptq) in groups of 128");
}

static void test_gptq_in_the_order_of_activations_has_stored_groups(void **state)
{
	assert_false(scheme_of(GPTQ(",\"desc_act\":false"))->needs_groups);
	assert_true(scheme_of(GPTQ(",\"desc_act\":true"))->needs_groups);
}

static void test_group_size_of_minus_one_is_a_row(void **state)
{
	assert_described(QUANTISED("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1"),
		"int4 (gptq) with a factor a row");
}

static void test_awq_is_read(void **state)
{
	assert_described(AWQ("gemm", ""), "int4 (awq) in groups of 64");
}

/* ---- modelopt ---- */

/* As Model Optimizer 0.47 writes it. */
#define MODELOPT_GROUPS(weights)                                                                   \
	",\"config_groups\":{\"group_0\":{\"input_activations\":{\"dynamic\":false,\"num_bits\":8,"   \
	"\"type\":\"float\"},\"weights\":{" weights "},\"targets\":[\"Linear\"]}},"                    \
	"\"ignore\":[\"lm_head\",\"model.embed_tokens\"],\"kv_cache_scheme\":{\"dynamic\":false,"      \
	"\"num_bits\":8,\"type\":\"float\"},\"producer\":{\"name\":\"modelopt\",\"version\":\"0.47.0\"}"
#define NESTED(fields)                                                                             \
	QUANTISED("\"quant_method\":\"modelopt\",\"producer\":{},\"quantization\":{" fields "}")

static void test_modelopt_has_a_factor_a_tensor(void **state)
{
	const char *text = MODELOPT("FP8", MODELOPT_GROUPS("\"dynamic\":false,\"num_bits\":8,\"type\":\"float\""));

	assert_int_equal(scheme_of(text)->method, QUANTISATION_FP8);
	assert_int_equal(quantisation_of(text)->kv_rc, 0);
	assert_described(text, "fp8 with a factor a tensor");
	assert_described(MODELOPT("FP8", ""), "fp8 with a factor a tensor");
	assert_described(
		NESTED("\"quant_algo\":\"FP8\",\"kv_cache_quant_algo\":null"), "fp8 with a factor a tensor");
}

/* The file without quantization_config has them, too. */
static void test_modelopt_need_not_have_factors_of_keys(void **state)
{
	assert_false(quantisation_of(NESTED("\"quant_algo\":\"FP8\",\"kv_cache_quant_algo\":\"FP8\""))->kv_factors);
}

static void test_other_caches_of_modelopt_are_refused_with_a_cache_in_fp8(void **state)
{
	const struct quantisation *q =
		quantisation_of(NESTED("\"quant_algo\":\"FP8\",\"kv_cache_quant_algo\":\"NVFP4\""));

	assert_int_equal(q->kv_rc, -ENOTSUP);
	assert_contains(q->kv_error.text, "quantization.kv_cache_quant_algo \"NVFP4\" is not supported");
}

static int parse_file(const char *text, struct quantisation **ret, struct model_error *error)
{
	return hf_modelopt_parse_file("/m/hf_quant_config.json", text, strlen(text), ret, error);
}

static void test_modelopts_own_file_is_read(void **state)
{
	struct quantisation *q = NULL;
	struct model_error error = {""};
	char why[QUANTISATION_WHY_MAX];

	if (parse_file("{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"FP8\","
		       "\"kv_cache_quant_algo\":\"FP8\",\"exclude_modules\":[\"lm_head\"]}}",
		    &q, &error))
		fail_msg("%s", error.text);
	assert_int_equal(q->schemes[0].method, QUANTISATION_FP8);
	assert_int_equal(quantisation_rule_of(q, "lm_head", NULL, why), QUANTISATION_NEVER);
	assert_string_equal(why, "quantization.exclude_modules \"lm_head\" excludes it");
	quantisation_free(q);
}

static void test_fp4_in_modelopts_own_file_is_refused(void **state)
{
	struct quantisation *q = NULL;
	struct model_error error = {""};

	assert_int_equal(parse_file("{\"quantization\":{\"quant_algo\":\"NVFP4\",\"group_size\":16}}", &q, &error), -ENOTSUP);
	assert_string_equal(
		error.text, "/m/hf_quant_config.json: quantization.quant_algo \"NVFP4\" is not supported");
	assert_null(q);
}

static void test_modelopts_own_file_without_its_object_is_refused(void **state)
{
	struct quantisation *q = NULL;
	struct model_error error = {""};

	assert_int_equal(parse_file("{}", &q, &error), -EINVAL);
	assert_contains(error.text, "/m/hf_quant_config.json: quantization is missing");
}

#define REFUSED_FP8(claim, more, words) REFUSED(claim, FP8(more), -ENOTSUP, words)
int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fp8_has_blocks_of_the_size_given),
		cmocka_unit_test(test_fp8_without_a_block_size_has_a_factor_a_tensor),
		cmocka_unit_test(test_schemes_of_activations_do_not_change_weights),
		cmocka_unit_test(test_strategies_of_floats_are_factors),
		cmocka_unit_test(test_strategies_of_packed_integers_are_factors),
		cmocka_unit_test(test_packed_integers_are_symmetric_unless_it_says_otherwise),
		cmocka_unit_test(test_only_an_order_by_group_needs_stored_groups),
		cmocka_unit_test(test_inputs_in_8_bits_do_not_change_weights),
		cmocka_unit_test(test_groups_have_schemes_of_their_own),
		cmocka_unit_test(test_groups_may_share_the_format_of_all),
		cmocka_unit_test(test_gptq_of_both_versions_is_read),
		cmocka_unit_test(test_gptq_in_the_order_of_activations_has_stored_groups),
		cmocka_unit_test(test_group_size_of_minus_one_is_a_row),
		cmocka_unit_test(test_awq_is_read),
		cmocka_unit_test(test_modelopt_has_a_factor_a_tensor),
		cmocka_unit_test(test_modelopt_need_not_have_factors_of_keys),
		cmocka_unit_test(test_other_caches_of_modelopt_are_refused_with_a_cache_in_fp8),
		cmocka_unit_test(test_modelopts_own_file_is_read),
		cmocka_unit_test(test_fp4_in_modelopts_own_file_is_refused),
		cmocka_unit_test(test_modelopts_own_file_without_its_object_is_refused),
		REFUSED("fp4 of modelopt is refused", MODELOPT("NVFP4", ""), -ENOTSUP,
			"quantization_config.quant_algo \"NVFP4\" is not supported"),
		REFUSED("mixed precision of modelopt is refused", NESTED("\"quant_algo\":\"MIXED_PRECISION\""), -ENOTSUP,
			"quantization_config.quantization.quant_algo \"MIXED_PRECISION\" is not supported"),
		REFUSED("modelopt without an algorithm is refused", QUANTISED("\"quant_method\":\"modelopt\""), -EINVAL,
			"quantization_config.quant_algo is missing"),
		REFUSED("weights of modelopt in 4 bits are refused",
			MODELOPT("FP8", MODELOPT_GROUPS("\"num_bits\":4,\"type\":\"float\"")), -ENOTSUP,
			"config_groups.group_0.weights.num_bits 4 is not supported"),
		REFUSED("unknown fields of modelopt are refused", MODELOPT("FP8", ",\"novel\":1"), -ENOTSUP,
			"quantization_config.novel 1 is not supported"),
		REFUSED("sets of characters in modelopt's names are refused", MODELOPT("FP8", ",\"ignore\":[\"a[bc]*\"]"),
			-ENOTSUP, "quantization_config.ignore has \"a[bc]*\", which is not supported"),
		REFUSED("excluded module of modelopt that is no name is refused", MODELOPT("FP8", ",\"ignore\":[7]"), -EINVAL,
			"quantization_config.ignore[0] is not a string"),
		REFUSED("other methods are refused", QUANTISED("\"quant_method\":\"bitsandbytes\""),
			-ENOTSUP,
			"quantization_config.quant_method \"bitsandbytes\" is not one of"),
		REFUSED("missing method is refused", QUANTISED("\"bits\":4"), -EINVAL,
			"quantization_config.quant_method is missing"),
		REFUSED("configuration that is no object is refused",
			LLAMA(",\"quantization_config\":7"), -EINVAL,
			"quantization_config is not an object"),
		REFUSED("compression_config is refused", LLAMA(",\"compression_config\":{}"),
			-ENOTSUP, "compression_config is not supported"),
		REFUSED_FP8("other float formats are refused", ",\"fmt\":\"e5m2\"",
			"quantization_config.fmt \"e5m2\" is not supported"),
		REFUSED_FP8("formats of factors are refused", ",\"scale_fmt\":\"ue8m0\"",
			"quantization_config.scale_fmt \"ue8m0\" is not supported"),
		REFUSED_FP8("unknown schemes of activations are refused",
			",\"activation_scheme\":\"odd\"",
			"quantization_config.activation_scheme \"odd\" is not supported"),
		REFUSED_FP8("unknown fields are refused", ",\"novel\":true",
			"quantization_config.novel true is not supported"),
		REFUSED_FP8("block of one size is refused", ",\"weight_block_size\":[128]",
			"quantization_config.weight_block_size [128] is not supported"),
		REFUSED_FP8("block without rows is refused", ",\"weight_block_size\":[0,128]",
			"quantization_config.weight_block_size [0,128] is not supported"),
		REFUSED_FP8("block that no model has is refused",
			",\"weight_block_size\":[128,4294967297]",
			"quantization_config.weight_block_size [128,4294967297] is not supported"),
		REFUSED_FP8("excluded modules that are no list are refused",
			",\"modules_to_not_convert\":\"lm_head\"",
			"quantization_config.modules_to_not_convert \"lm_head\" is not supported"),
		REFUSED("other formats of compressed-tensors are refused",
			COMPRESSED("nvfp4-pack-quantized", "", ""), -ENOTSUP,
			"quantization_config.format \"nvfp4-pack-quantized\" is not supported"),
		REFUSED("weights that are not compressed are refused",
			COMPRESSED(
				"float-quantized", "", ",\"quantization_status\":\"calibration\""),
			-ENOTSUP, "quantization_config.quantization_status \"calibration\" is not"),
		REFUSED("sparse weights are refused",
			COMPRESSED("float-quantized", "",
				",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"),
			-ENOTSUP,
			"quantization_config.sparsity_config {\"format\":\"sparse-24-bitmask\"} "
			"is"),
		REFUSED("transformed weights are refused",
			COMPRESSED("float-quantized", "", ",\"transform_config\":{\"a\":1}"),
			-ENOTSUP,
			"quantization_config.transform_config {\"a\":1} is not supported"),
		REFUSED("quantised outputs are refused",
			COMPRESSED_GROUP("float-quantized",
				"\"targets\":[\"Linear\"],\"weights\":{},\"output_activations\":{"
				"\"a\":1}",
				""),
			-ENOTSUP,
			"config_groups.group_0.output_activations {\"a\":1} is not supported"),
		REFUSED("inputs in 4 bits are refused",
			COMPRESSED_GROUP("float-quantized",
				"\"targets\":[\"Linear\"],\"weights\":{},\"input_activations\":"
				"{\"num_bits\":4,\"type\":\"float\"}",
				""),
			-ENOTSUP, "group_0.input_activations.num_bits 4 is not supported"),
		REFUSED("no groups are refused", COMPRESSED_GROUPS("pack-quantized", "", ""), -ENOTSUP,
			"quantization_config.config_groups has 0 groups, not 1 to 16"),
		REFUSED("seventeen groups are refused",
			COMPRESSED_GROUPS("pack-quantized",
				"\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{},\"f\":{},\"g\":{},\"h\":{},\"i\":{},"
				"\"j\":{},\"k\":{},\"l\":{},\"m\":{},\"n\":{},\"o\":{},\"p\":{},\"q\":{}",
				""),
			-ENOTSUP, "quantization_config.config_groups has 17 groups, not 1 to 16"),
		REFUSED("mixed group without a format is refused",
			MIXED("\"a\":{\"targets\":[\"Linear\"],\"weights\":{" INT4_128 "}}"), -EINVAL,
			"config_groups.a.format is missing, and that of all is \"mixed-precision\""),
		REFUSED("other formats of a group are refused",
			MIXED(TWO "," GROUP_OF("c", "nvfp4-pack-quantized", "\"lm_head\"", "\"num_bits\":4")), -ENOTSUP,
			"config_groups.c.format \"nvfp4-pack-quantized\" is not supported"),
		REFUSED("second group is checked as the first",
			MIXED(GROUP_OF("a", "float-quantized", "\"x\"", CHANNELS) ","
				GROUP_OF("b", "pack-quantized", "\"Linear\"", "\"num_bits\":8,\"type\":\"int\"")),
			-EINVAL, "config_groups.b.weights.strategy is missing"),
		REFUSED("second group's bits are checked",
			MIXED(GROUP_OF("a", "float-quantized", "\"x\"", CHANNELS) ","
				GROUP_OF("b", "pack-quantized", "\"Linear\"",
					"\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"")),
			-ENOTSUP, "config_groups.b.weights.num_bits 8 is not supported"),
		REFUSED("group without weights is refused",
			COMPRESSED_GROUP("float-quantized", "\"targets\":[\"Linear\"]", ""),
			-EINVAL, "quantization_config.config_groups.group_0.weights is missing"),
		REFUSED("floats of 4 bits are refused",
			COMPRESSED("float-quantized",
				"\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor\"", ""),
			-ENOTSUP, "config_groups.group_0.weights.num_bits 4 is not supported"),
		REFUSED("packed integers of 8 bits are refused",
			COMPRESSED("pack-quantized",
				"\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"", ""),
			-ENOTSUP, "config_groups.group_0.weights.num_bits 8 is not supported"),
		REFUSED("weights quantised as they are used are refused",
			FLOATS("\"tensor\",\"dynamic\":true"), -ENOTSUP,
			"config_groups.group_0.weights.dynamic true is not supported"),
		REFUSED("strategies without a layout are refused", FLOATS("\"token\""), -ENOTSUP,
			"config_groups.group_0.weights.strategy \"token\" is not supported"),
		REFUSED("missing group size is refused", INTS("\"group\""), -EINVAL,
			"config_groups.group_0.weights.group_size is missing"),
		REFUSED("group without columns is refused", INTS("\"group\",\"group_size\":0"),
			-EINVAL, "config_groups.group_0.weights.group_size 0 is not between"),
		REFUSED("missing block is refused", FLOATS("\"block\""), -ENOTSUP,
			"config_groups.group_0.weights.block_structure"),
		REFUSED("gptq of 8 bits is refused",
			QUANTISED("\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":128"),
			-ENOTSUP, "quantization_config.bits 8 is not supported"),
		REFUSED("gptq without bits is refused",
			QUANTISED("\"quant_method\":\"gptq\",\"group_size\":128"), -EINVAL,
			"quantization_config.bits is missing"),
		REFUSED("other layouts of gptq are refused",
			GPTQ(",\"checkpoint_format\":\"marlin\""), -ENOTSUP,
			"quantization_config.checkpoint_format \"marlin\" is not supported"),
		REFUSED("gptq in marlin's layout is refused", GPTQ(",\"is_marlin_format\":true"),
			-ENOTSUP, "quantization_config.is_marlin_format true is not supported"),
		REFUSED("gptq in other words is refused", GPTQ(",\"pack_dtype\":\"int8\""),
			-ENOTSUP, "quantization_config.pack_dtype \"int8\" is not supported"),
		REFUSED("gptq that differs between modules is refused",
			GPTQ(",\"dynamic\":{\"+:.*down.*\":{\"bits\":8}}"), -ENOTSUP,
			"quantization_config.dynamic {\"+:.*down.*\":{\"bits\":8}} is not "
			"supported"),
		REFUSED("gptq of some modules is refused",
			GPTQ(",\"modules_in_block_to_quantize\":[[\"self_attn.q_proj\"]]"),
			-ENOTSUP, "quantization_config.modules_in_block_to_quantize"),
		REFUSED("group size that is none is refused",
			QUANTISED("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-2"),
			-EINVAL, "quantization_config.group_size -2 is not between"),
		REFUSED("other layouts of awq are refused", AWQ("gemv", ""), -ENOTSUP,
			"quantization_config.version \"gemv\" is not supported"),
		REFUSED("awq without zeros is refused",
			QUANTISED("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,"
				  "\"zero_point\":false,\"version\":\"gemm\""),
			-ENOTSUP, "quantization_config.zero_point false is not supported"),
	};

	return cmocka_run_group_tests_name("hf_quantisation", tests, NULL, free_configs);
}
