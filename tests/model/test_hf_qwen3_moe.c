/* SPDX-License-Identifier: MIT */
#include "tests/model/configs.h"

#define SIZED(more)                                                                                \
	",\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"num_key_value_heads\":2" more
#define MOE(more) CONFIG("Qwen3MoeForCausalLM", SIZED(",\"num_experts\":8" more))

static void test_defaults_are_those_of_its_class(void **state)
{
	struct model_config c = parse(MOE(""));

	assert_int_equal(c.family, MODEL_QWEN3_MOE);
	assert_int_equal(c.head_dim, 16);
	assert_int_equal(c.max_seq_len, 32768);
	assert_true(c.qk_norm);
	assert_false(c.qkv_bias || c.o_bias || c.mlp_bias);
	assert_int_equal(c.experts.n, 8);
	assert_int_equal(c.experts.n_active, 2);
	assert_int_equal(c.experts.n_shared, 0);
	assert_int_equal(c.experts.intermediate_size, 32);
	assert_int_equal(c.experts.n_groups, 1);
	assert_int_equal(c.experts.n_groups_active, 1);
	assert_int_equal(c.experts.score, MOE_SOFTMAX);
	assert_false(c.experts.normalise || c.experts.choice_bias);
	assert_true(c.experts.scale == 1.0f);
	for (uint32_t layer = 0; layer < 3; layer++)
		assert_true(model_layer_has_experts(&c, layer));
}

static void test_weights_are_normalised_as_asked(void **state)
{
	assert_true(parse(MOE(",\"norm_topk_prob\":true")).experts.normalise);
	assert_false(parse(MOE(",\"norm_topk_prob\":null")).experts.normalise);
}

static void test_number_of_experts_has_a_second_name(void **state)
{
	struct model_config c = parse(CONFIG("Qwen3MoeForCausalLM", SIZED(",\"num_local_experts\":4")));

	assert_int_equal(c.experts.n, 4);
}

struct layers {
	const char *text;
	bool layers[3];
};

static void test_layers(void **state)
{
	const struct layers *want = *state;
	struct model_config c = parse(want->text);

	for (uint32_t layer = 0; layer < 3; layer++)
		assert_int_equal(model_layer_has_experts(&c, layer), want->layers[layer]);
}

#define LAYERS(claim, text, l0, l1, l2) \
	{claim, test_layers, NULL, NULL, &(struct layers){text, {l0, l1, l2}}}

static void test_without_a_layer_of_experts_no_field_of_theirs_is_needed(void **state)
{
	struct model_config c = parse(CONFIG("Qwen3MoeForCausalLM",
		",\"num_key_value_heads\":2,\"num_experts\":8,\"mlp_only_layers\":[0,1,2]"));

	assert_int_equal(c.experts.n, 0);
	c = parse(CONFIG("Qwen3MoeForCausalLM", ",\"num_key_value_heads\":2,\"num_experts\":0"));
	assert_int_equal(c.experts.n, 0);
}

static void test_window_is_all_layers_and_needs_use_sliding_window(void **state)
{
	struct model_config c = parse(MOE(",\"sliding_window\":9,\"max_window_layers\":2"));

	assert_int_equal(c.windows[2], 0);
	c = parse(MOE(",\"sliding_window\":9,\"max_window_layers\":2,\"use_sliding_window\":true"));
	for (uint32_t layer = 0; layer < 3; layer++)
		assert_int_equal(c.windows[layer], 9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults_are_those_of_its_class),
		cmocka_unit_test(test_weights_are_normalised_as_asked),
		cmocka_unit_test(test_number_of_experts_has_a_second_name),
		LAYERS("layers that the step divides have experts",
			MOE(",\"decoder_sparse_step\":2"), false, true, false),
		LAYERS("layers of mlp only layers have none", MOE(",\"mlp_only_layers\":[0,2]"), false, true, false),
		LAYERS("mlp only layers null is none", MOE(",\"mlp_only_layers\":null"), true, true, true),
		cmocka_unit_test(test_without_a_layer_of_experts_no_field_of_theirs_is_needed),
		cmocka_unit_test(test_window_is_all_layers_and_needs_use_sliding_window),
		REFUSED("missing number of experts is refused",
			CONFIG("Qwen3MoeForCausalLM", SIZED("")), -EINVAL, "num_experts is missing"),
		REFUSED("missing size of an expert is refused",
			CONFIG("Qwen3MoeForCausalLM", ",\"num_key_value_heads\":2,\"num_experts\":8,"
			"\"num_experts_per_tok\":2"), -EINVAL, "moe_intermediate_size is missing"),
		REFUSED("more active experts than there are are refused",
			CONFIG("Qwen3MoeForCausalLM", SIZED(",\"num_experts\":1")), -EINVAL,
			"num_experts_per_tok 2 is not between 1 and 1"),
		REFUSED("more experts than a device takes are refused",
			CONFIG("Qwen3MoeForCausalLM", SIZED(",\"num_experts\":1025")), -EINVAL,
			"num_experts 1025 is not between 0 and 1024"),
		REFUSED("sparse step of zero is refused",
			MOE(",\"decoder_sparse_step\":0"), -EINVAL, "decoder_sparse_step 0 is not between 1"),
		REFUSED("mlp only layer out of the model is refused",
			MOE(",\"mlp_only_layers\":[1,3]"), -EINVAL,
			"mlp_only_layers[1] 3 is not a layer: num_hidden_layers is 3"),
		REFUSED("mlp only layers that are no list are refused",
			MOE(",\"mlp_only_layers\":1"), -EINVAL, "mlp_only_layers is not a list"),
		REFUSED("mlp only layer that is no number is refused",
			MOE(",\"mlp_only_layers\":[\"1\"]"), -EINVAL, "mlp_only_layers[0] is not an integer"),
	};

	return cmocka_run_group_tests_name("hf_qwen3_moe", tests, NULL, free_configs);
}
