/* SPDX-License-Identifier: MIT */
#include "tests/model/configs.h"

#include <math.h>

#define PHI3(more) CONFIG("Phi3ForCausalLM", more)
/* Rope rotates 4 of the 16 elements of each head. */
#define QUARTER ",\"partial_rotary_factor\":0.25"
#define FACTORS "\"short_factor\":[1,2],\"long_factor\":[4,8]"
#define LONGROPE(type) ",\"rope_scaling\":{\"" type "\":\"longrope\"," FACTORS "}"
#define LENGTHS ",\"max_position_embeddings\":64,\"original_max_position_embeddings\":16"

static void test_defaults_are_those_of_its_class(void **state)
{
	struct model_config c = parse(PHI3(""));

	assert_int_equal(c.family, MODEL_PHI3);
	assert_int_equal(c.head_dim, 16);
	assert_int_equal(c.n_kv_heads, 4);
	assert_int_equal(c.max_seq_len, 4096);
	assert_int_equal(c.rotary_dim, 0);
	assert_int_equal(c.rope.type, ROPE_DEFAULT);
	assert_true(c.rms_norm_eps == 1e-5f);
	assert_int_equal(c.windows[0], 0);
	assert_int_equal(c.bos, 1);
	assert_int_equal(c.n_eos, 0); /* 32000 is not in the vocabulary */
	c = parse(PHI3(",\"attention_bias\":true,\"mlp_bias\":true"));
	assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
}

static void test_window_is_all_layers(void **state)
{
	struct model_config c = parse(PHI3(",\"sliding_window\":9"));

	for (uint32_t layer = 0; layer < 3; layer++)
		assert_int_equal(c.windows[layer], 9);
}

static void test_partial_rotary_factor_is_read_at_either_level(void **state)
{
	assert_int_equal(parse(PHI3(QUARTER)).rotary_dim, 4);
	assert_int_equal(parse(PHI3(",\"rope_parameters\":{\"partial_rotary_factor\":0.75}")).rotary_dim, 12);
	assert_int_equal(parse(PHI3(QUARTER ",\"rope_parameters\":{\"partial_rotary_factor\":1.0}")).rotary_dim, 0);
}

static void test_longrope_has_two_older_names(void **state)
{
	static const char *const types[] = {"longrope", "su", "yarn"};
	char text[600];

	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		struct model_config c;

		snprintf(text, sizeof(text), PHI3(QUARTER ",\"rope_scaling\":{\"type\":\"%s\"," FACTORS "}"),
			types[i]);
		c = parse(text);
		assert_int_equal(c.rope.type, ROPE_LONGROPE);
		assert_true(c.rope.factors[0] == 1 && c.rope.factors[1] == 2);
		assert_true(c.rope.long_factors[0] == 4 && c.rope.long_factors[1] == 8);
		assert_true(c.rope.original_max_position_embeddings == 4096);
		assert_true(c.rope.factor == 1 && c.rope.attention_factor < 0);
	}
}

/* cos and sin of the second pair at position 5. */
static void pair_of(const struct model_config *c, uint32_t max_positions, float ret[2])
{
	float table[64 * 16];

	assert_true(max_positions <= 64);
	model_rope_fill(c, max_positions, table);
	ret[0] = table[5 * 16 + 1];
	ret[1] = table[5 * 16 + 9];
}

static void test_factors_are_the_long_ones_if_the_table_is_longer_than_the_original_length(void **state)
{
	const struct model_config c = parse(PHI3(QUARTER LENGTHS LONGROPE("rope_type")));
	const double scale = sqrt(1 + log(4) / log(16)), frequency = pow(10000, -0.5);
	float pair[2];

	assert_false(model_rope_is_long(&c, 16));
	pair_of(&c, 16, pair);
	assert_true(fabs(pair[0] - scale * cos(5 * frequency / 2)) < 1e-6);
	assert_true(fabs(pair[1] - scale * sin(5 * frequency / 2)) < 1e-6);
	assert_true(model_rope_is_long(&c, 17));
	pair_of(&c, 17, pair);
	assert_true(fabs(pair[0] - scale * cos(5 * frequency / 8)) < 1e-6);
	assert_true(fabs(pair[1] - scale * sin(5 * frequency / 8)) < 1e-6);
}

static void test_pairs_that_are_not_rotated_are_neither_turned_nor_scaled(void **state)
{
	const struct model_config c = parse(PHI3(QUARTER LENGTHS LONGROPE("rope_type")));
	float table[64 * 16];

	model_rope_fill(&c, 64, table);
	for (uint32_t position = 0; position < 64; position++) {
		for (uint32_t pair = 2; pair < 8; pair++)
			assert_true(table[position * 16 + pair] == 1 && table[position * 16 + 8 + pair] == 0);
	}
}

static void test_attention_factor_that_is_given_scales_the_table(void **state)
{
	const struct model_config c = parse(PHI3(
		QUARTER LENGTHS ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"attention_factor\":3," FACTORS "}"));
	float table[64 * 16];

	model_rope_fill(&c, 64, table);
	assert_true(table[0] == 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults_are_those_of_its_class),
		cmocka_unit_test(test_window_is_all_layers),
		cmocka_unit_test(test_partial_rotary_factor_is_read_at_either_level),
		cmocka_unit_test(test_longrope_has_two_older_names),
		cmocka_unit_test(test_factors_are_the_long_ones_if_the_table_is_longer_than_the_original_length),
		cmocka_unit_test(test_pairs_that_are_not_rotated_are_neither_turned_nor_scaled),
		cmocka_unit_test(test_attention_factor_that_is_given_scales_the_table),
		REFUSED("odd number of rotated elements is refused",
			PHI3(",\"partial_rotary_factor\":0.1875"), -ENOTSUP,
			"partial_rotary_factor 0.1875 rotates 3 of head_dim 16 elements"),
		REFUSED("heads that are not rotated are refused",
			PHI3(",\"partial_rotary_factor\":0.0"), -ENOTSUP, "partial_rotary_factor 0 rotates 0"),
		REFUSED("rotated part larger than a head is refused",
			PHI3(",\"partial_rotary_factor\":1.5"), -EINVAL,
			"partial_rotary_factor 1.5 is not between 0 and 1"),
		REFUSED("other ways of stretching are refused",
			PHI3(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"), -ENOTSUP,
			"rope_scaling.type \"linear\" is not one of default, longrope, su, yarn"),
		REFUSED("longrope of other families is refused",
			LLAMA(LONGROPE("rope_type")), -ENOTSUP, "rope_scaling.rope_type \"longrope\" is not one of"),
		REFUSED("too few factors are refused",
			PHI3(LONGROPE("type")), -EINVAL,
			"rope_scaling.short_factor is not a list of 8 numbers"),
		REFUSED("missing long factors are refused",
			PHI3(QUARTER ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1]}"), -EINVAL,
			"rope_scaling.long_factor is not a list of 2 numbers"),
		REFUSED("factor of zero is refused",
			PHI3(QUARTER ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,0],"
			"\"long_factor\":[1,1]}"), -EINVAL, "rope_scaling.short_factor[1] 0 is not between"),
		REFUSED("factor that is no number is refused",
			PHI3(QUARTER ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1],"
			"\"long_factor\":[1,\"2\"]}"), -EINVAL, "rope_scaling.long_factor[1] is not a number"),
		REFUSED("magnitudes by length are refused",
			PHI3(QUARTER ",\"rope_scaling\":{\"type\":\"longrope\",\"long_mscale\":1.2," FACTORS "}"),
			-ENOTSUP, "rope_scaling.long_mscale is not supported"),
		REFUSED("original length of one is refused",
			PHI3(QUARTER ",\"original_max_position_embeddings\":1" LONGROPE("type")), -EINVAL,
			"original_max_position_embeddings 1 is less than 2"),
	};

	return cmocka_run_group_tests_name("hf_phi3", tests, NULL, free_configs);
}
