/* SPDX-License-Identifier: MIT */
#include "tests/model/configs.h"

#include <math.h>

#define DEEP "\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":4,\"vocab_size\":200,"
#define V2(more)                                                                                   \
	"{\"architectures\":[\"DeepseekV2ForCausalLM\"]," DEEP                                     \
	"\"num_hidden_layers\":6,\"num_experts_per_tok\":6" more "}"
#define V3(more)                                                                                   \
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"]," DEEP "\"num_hidden_layers\":6" more "}"
/* Eight experts, few enough for wrong settings. */
#define EIGHT ",\"n_routed_experts\":8"

static void test_v2_defaults_are_those_of_its_class(void **state)
{
	struct model_config c = parse(V2(""));

	assert_int_equal(c.family, MODEL_DEEPSEEK_V2);
	assert_int_equal(c.q_rank, 1536);
	assert_int_equal(c.latent.rank, 512);
	assert_int_equal(c.latent.nope, 128);
	assert_int_equal(c.latent.rope, 64);
	assert_int_equal(c.latent.v, 128);
	assert_int_equal(c.head_dim, 64);
	assert_int_equal(c.n_kv_heads, 1);
	assert_true(c.rope_interleaved);
	assert_int_equal(c.experts.n, 64);
	assert_int_equal(c.experts.n_active, 6);
	assert_int_equal(c.experts.n_shared, 2);
	assert_int_equal(c.experts.intermediate_size, 1407);
	assert_int_equal(c.experts.score, MOE_SOFTMAX);
	assert_int_equal(c.experts.n_groups, 1);
	assert_false(c.experts.group_top_two || c.experts.choice_bias || c.experts.normalise);
	assert_true(c.experts.scale == 1.0f);
	assert_true(model_layer_has_experts(&c, 0));
	assert_int_equal(c.max_seq_len, 2048);
	assert_int_equal(c.bos, 1);
	assert_int_equal(c.eos[0], 2);
	assert_int_equal(c.windows[5], 0);
}

static void test_v3_defaults_are_those_of_its_class(void **state)
{
	struct model_config c = parse(V3(""));

	assert_int_equal(c.family, MODEL_DEEPSEEK_V3);
	assert_int_equal(c.experts.n, 256);
	assert_int_equal(c.experts.n_active, 8);
	assert_int_equal(c.experts.n_shared, 1);
	assert_int_equal(c.experts.intermediate_size, 2048);
	assert_int_equal(c.experts.score, MOE_SIGMOID);
	assert_int_equal(c.experts.n_groups, 8);
	assert_int_equal(c.experts.n_groups_active, 4);
	assert_true(c.experts.group_top_two && c.experts.choice_bias && c.experts.normalise);
	assert_true(c.experts.scale == 2.5f);
	assert_false(model_layer_has_experts(&c, 2));
	assert_true(model_layer_has_experts(&c, 3));
	assert_int_equal(c.max_seq_len, 4096);
	assert_int_equal(c.bos, 0);
	assert_int_equal(c.eos[0], 1);
}

static void test_null_query_rank_experts_and_shared_experts_are_none(void **state)
{
	struct model_config c = parse(V2(",\"q_lora_rank\":null,\"n_shared_experts\":null"));

	assert_int_equal(c.q_rank, 0);
	assert_int_equal(c.experts.n_shared, 0);
	c = parse(V2(",\"n_routed_experts\":null"));
	assert_int_equal(c.experts.n, 0);
	assert_false(model_layer_has_experts(&c, 5));
}

/* As Python reads null where it wants a flag; only absence is the default. */
static void test_null_flags_are_false(void **state)
{
	struct model_config c = parse(V3(",\"norm_topk_prob\":null,\"rope_interleave\":null"));

	assert_false(c.experts.normalise || c.rope_interleaved);
	c = parse(V3(""));
	assert_true(c.experts.normalise && c.rope_interleaved);
}

static void test_without_a_layer_of_experts_no_field_of_theirs_is_needed_or_looked_at(void **state)
{
	struct model_config c = parse("{\"architectures\":[\"DeepseekV2ForCausalLM\"]," DEEP
				      "\"num_hidden_layers\":6,\"first_k_dense_replace\":6}");

	assert_int_equal(c.experts.n, 0);
	/* V3's default of 8 groups does not go with 8 experts */
	c = parse(V3(EIGHT ",\"first_k_dense_replace\":7,\"num_experts_per_tok\":null"));
	assert_int_equal(c.experts.n, 0);
	assert_false(model_layer_has_experts(&c, 5));
}

static void test_heads_of_keys_are_those_of_kv_b_whatever_the_field_says(void **state)
{
	static const char *const said[] = {"1", "2", "3", "128", "null"};
	char text[600];

	for (size_t i = 0; i < ARRAY_SIZE(said); i++) {
		struct model_config c;

		snprintf(text, sizeof(text), V3(",\"num_key_value_heads\":%s"), said[i]);
		c = parse(text);
		assert_int_equal(c.n_heads, 4);
		assert_int_equal(c.n_kv_heads, 1); /* the cache's */
	}
}

static void test_experts_are_in_every_nth_layer_from_the_first_on(void **state)
{
	struct model_config c = parse(V2(",\"first_k_dense_replace\":1,\"moe_layer_freq\":2"));

	for (uint32_t layer = 0; layer < 6; layer++)
		assert_int_equal(model_layer_has_experts(&c, layer), layer == 2 || layer == 4);
	c = parse(V2(",\"first_k_dense_replace\":6"));
	assert_int_equal(c.experts.n, 0);
}

static void test_groups_count_only_where_the_method_says_so(void **state)
{
	struct model_config c = parse(V2(EIGHT ",\"n_group\":4,\"topk_group\":3"));

	assert_int_equal(c.experts.n_groups, 1);
	c = parse(V2(EIGHT ",\"topk_method\":\"group_limited_greedy\",\"n_group\":4,\"topk_group\":3"));
	assert_int_equal(c.experts.n_groups, 4);
	assert_int_equal(c.experts.n_groups_active, 3);
	assert_false(c.experts.group_top_two);
	c = parse(V3(EIGHT ",\"topk_method\":\"noaux_tc\",\"n_group\":4,\"topk_group\":4"));
	assert_int_equal(c.experts.n_groups, 4);
}

static void test_v2_does_not_normalise_and_v3_does_as_asked(void **state)
{
	struct model_config c = parse(V2(",\"norm_topk_prob\":false"));

	assert_false(c.experts.normalise);
	c = parse(V2(",\"norm_topk_prob\":null"));
	assert_false(c.experts.normalise);
	c = parse(V3(",\"norm_topk_prob\":false"));
	assert_false(c.experts.normalise);
}

static void test_yarn_sharpens_the_softmax_by_the_square_of_its_magnitude(void **state)
{
	struct model_config c = parse(V3(",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
		"\"mscale\":1.0,\"mscale_all_dim\":0.5,\"original_max_position_embeddings\":64}"));
	const struct device_info info = {.kv_dtype = DTYPE_F32};
	double m = 0.1 * 0.5 * log(40) + 1;

	assert_true(fabs((double)model_attention(&c, &info).scale - m * m / sqrt(192)) < 1e-7);
	c.rope.mscale_all_dim = -1;
	assert_true(fabs((double)model_attention(&c, &info).scale - 1 / sqrt(192)) < 1e-7);
}

static void test_other_ways_of_stretching_sharpen_it_too(void **state)
{
	static const char *const stretched[] = {
		"\"type\":\"linear\",\"factor\":8", "\"rope_type\":\"llama3\",\"factor\":8,"
		"\"low_freq_factor\":1,\"high_freq_factor\":4"};
	const struct device_info info = {.kv_dtype = DTYPE_F32};
	double m = 0.1 * 0.707 * log(8) + 1;
	struct model_config c;
	char text[600];

	for (size_t i = 0; i < ARRAY_SIZE(stretched); i++) {
		snprintf(text, sizeof(text), V2(",\"rope_scaling\":{%s,\"mscale_all_dim\":0.707}"),
			stretched[i]);
		c = parse(text);
		assert_true(fabs((double)model_attention(&c, &info).scale - m * m / sqrt(192)) <
			1e-7);
	}
	c = parse(V2(",\"rope_scaling\":{\"type\":\"default\",\"factor\":8,"
		     "\"mscale_all_dim\":1}"));
	assert_true(fabs((double)model_attention(&c, &info).scale - 1 / sqrt(192)) < 1e-7);
}

static void test_biases_of_attention_and_mlp_are_read(void **state)
{
	struct model_config c = parse(V2(",\"attention_bias\":true,\"mlp_bias\":true"));

	assert_true(c.o_bias && c.mlp_bias);
	c = parse(V3(",\"mlp_bias\":true,\"rope_interleave\":false")); /* V3 has no such field */
	assert_false(c.o_bias || c.mlp_bias || c.rope_interleaved);
	expect_refusal(V2(",\"mlp_bias\":true,\"n_shared_experts\":0"), -ENOTSUP,
		"mlp_bias is not supported without n_shared_experts");
}

static void test_methods_of_choice_that_are_not_known_are_refused(void **state)
{
	expect_refusal(V2(",\"topk_method\":\"noaux_tc\""), -ENOTSUP,
		"topk_method \"noaux_tc\" is not greedy or group_limited_greedy");
	expect_refusal(V3(",\"topk_method\":\"greedy\""), -ENOTSUP,
		"topk_method \"greedy\" is not noaux_tc");
	expect_refusal(V2(",\"scoring_func\":\"sigmoid\""), -ENOTSUP,
		"scoring_func \"sigmoid\" is not softmax");
	expect_refusal(V3(",\"scoring_func\":3"), -EINVAL, "scoring_func is not");
}

/* The authors' code and transformers' make different things of it. */
static void test_v2_that_asks_for_normalised_weights_is_noted(void **state)
{
	struct model_config c = parse(V2(",\"norm_topk_prob\":true"));

	assert_false(c.experts.normalise);
	assert_true(c.experts.normalise_ignored);
	c = parse(V2(",\"norm_topk_prob\":false"));
	assert_false(c.experts.normalise_ignored);
	c = parse(V3(",\"norm_topk_prob\":true"));
	assert_true(c.experts.normalise);
	assert_false(c.experts.normalise_ignored);
	expect_refusal(V2(",\"norm_topk_prob\":\"yes\""), -EINVAL, "norm_topk_prob is neither true nor false");
	expect_refusal(V3(",\"norm_topk_prob\":1"), -EINVAL, "norm_topk_prob is neither true nor false");
}

static void test_sizes_left_out_are_kept_as_text(void **state)
{
	struct model_config c = parse(V3(",\"q_lora_rank\":null,\"kv_lora_rank\":null,"
		"\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,\"n_shared_experts\":1"));

	assert_string_equal(c.assumed, "kv_lora_rank 512, v_head_dim 128, n_routed_experts 256, "
		"moe_intermediate_size 2048");
}

static void test_groups_that_cannot_be_are_refused(void **state)
{
	expect_refusal(V3(EIGHT ",\"num_experts_per_tok\":2,\"n_group\":5"), -EINVAL,
		"n_routed_experts 8 is not a multiple of n_group 5");
	expect_refusal(V3(EIGHT ",\"num_experts_per_tok\":2,\"n_group\":2"), -EINVAL,
		"topk_group 4, its default, is more than n_group 2");
	expect_refusal(V3(EIGHT ",\"num_experts_per_tok\":2,\"n_group\":8"), -EINVAL,
		"n_group 8 leaves one expert in a group");
	expect_refusal(V3(EIGHT ",\"num_experts_per_tok\":5,\"n_group\":4,\"topk_group\":2"), -EINVAL,
		"num_experts_per_tok 5 is more than the experts of topk_group 2 groups");
	expect_refusal(V3(EIGHT ",\"n_group\":4,\"topk_group\":5"), -EINVAL,
		"topk_group 5 is not between");
	expect_refusal(V2(EIGHT ",\"topk_method\":\"group_limited_greedy\",\"n_group\":4"), -EINVAL,
		"topk_group is missing");
	expect_refusal(V3(EIGHT ",\"num_experts_per_tok\":9"), -EINVAL,
		"num_experts_per_tok 9 is not between");
	expect_refusal(V3(",\"n_routed_experts\":100000"), -EINVAL,
		"n_routed_experts 100000 is not between");
}

static void test_heads_that_cannot_be_are_refused(void **state)
{
	expect_refusal(V2(",\"use_mla\":false,\"qk_nope_head_dim\":0,\"v_head_dim\":0"),
		-ENOTSUP, "use_mla false is not supported");
	expect_refusal(V2(",\"qk_rope_head_dim\":7"), -EINVAL, "qk_rope_head_dim 7 is not an even");
	expect_refusal(V2(",\"kv_lora_rank\":0"), -EINVAL, "kv_lora_rank 0 is not between");
	expect_refusal(V2(",\"v_head_dim\":0"), -EINVAL, "v_head_dim 0 is not between");
	expect_refusal(V3(",\"q_lora_rank\":-1"), -EINVAL, "q_lora_rank -1 is not between");
	expect_refusal("{\"architectures\":[\"DeepseekV2ForCausalLM\"]," DEEP
		       "\"num_hidden_layers\":6}", -EINVAL, "num_experts_per_tok is missing");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_v2_defaults_are_those_of_its_class),
		cmocka_unit_test(test_v3_defaults_are_those_of_its_class),
		cmocka_unit_test(test_null_query_rank_experts_and_shared_experts_are_none),
		cmocka_unit_test(test_null_flags_are_false),
		cmocka_unit_test(
			test_without_a_layer_of_experts_no_field_of_theirs_is_needed_or_looked_at),
		cmocka_unit_test(test_heads_of_keys_are_those_of_kv_b_whatever_the_field_says),
		cmocka_unit_test(test_experts_are_in_every_nth_layer_from_the_first_on),
		cmocka_unit_test(test_groups_count_only_where_the_method_says_so),
		cmocka_unit_test(test_v2_does_not_normalise_and_v3_does_as_asked),
		cmocka_unit_test(test_yarn_sharpens_the_softmax_by_the_square_of_its_magnitude),
		cmocka_unit_test(test_other_ways_of_stretching_sharpen_it_too),
		cmocka_unit_test(test_biases_of_attention_and_mlp_are_read),
		cmocka_unit_test(test_methods_of_choice_that_are_not_known_are_refused),
		cmocka_unit_test(test_v2_that_asks_for_normalised_weights_is_noted),
		cmocka_unit_test(test_sizes_left_out_are_kept_as_text),
		cmocka_unit_test(test_groups_that_cannot_be_are_refused),
		cmocka_unit_test(test_heads_that_cannot_be_are_refused),
	};

	return cmocka_run_group_tests_name("hf deepseek", tests, NULL, free_configs);
}
