/* SPDX-License-Identifier: MIT */
#include "tests/model/configs.h"

#include <math.h>

#define GEMMA2(more) CONFIG("Gemma2ForCausalLM", more)
#define GEMMA3(more) CONFIG("Gemma3ForCausalLM", more)

static void test_defaults_are_those_of_its_class(void **state)
{
	struct model_config c = parse(GEMMA2(""));

	assert_int_equal(c.family, MODEL_GEMMA2);
	assert_int_equal(c.head_dim, 256);
	assert_int_equal(c.n_kv_heads, 4);
	assert_int_equal(c.max_seq_len, 8192);
	assert_true(c.rms_norm_eps == 1e-6f);
	assert_true(c.tie_word_embeddings && c.norms_add_one);
	assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
	assert_int_equal(c.bos, 2);
	assert_int_equal(c.eos[0], 1);
	assert_true(c.embedding_scale == 8.0f); /* hidden_size 64 */
	assert_true(c.query_scalar == 256 && c.score_cap == 50 && c.logit_cap == 30);
}

static void test_fields_replace_defaults(void **state)
{
	struct model_config c = parse(GEMMA2(",\"head_dim\":16,\"query_pre_attn_scalar\":144,\"attention_bias\":true,"
		"\"attn_logit_softcapping\":20.5,\"final_logit_softcapping\":7,\"tie_word_embeddings\":false,"
		"\"hidden_act\":\"gelu\",\"hidden_activation\":\"gelu_pytorch_tanh\""));
	const struct attention_config attention = model_attention(&c, DEVICE_F32);

	assert_true(c.query_scalar == 144 && c.score_cap == 20.5f && c.logit_cap == 7);
	assert_true(c.qkv_bias && c.o_bias && !c.tie_word_embeddings);
	assert_true(fabsf(attention.scale - 1.0f / 12) < 1e-7f && attention.soft_cap == 20.5f);
}

static void test_caps_of_null_are_none(void **state)
{
	struct model_config c =
		parse(GEMMA2(",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null"));

	assert_true(c.score_cap == 0 && c.logit_cap == 0);
}

static void test_other_families_have_none_of_it(void **state)
{
	struct model_config c =
		parse(LLAMA(",\"attn_logit_softcapping\":20.5,\"query_pre_attn_scalar\":144"));
	const struct attention_config attention = model_attention(&c, DEVICE_F32);

	assert_false(c.norms_add_one);
	assert_true(c.embedding_scale == 0 && c.score_cap == 0 && c.logit_cap == 0);
	assert_true(attention.scale == 0.25f && attention.soft_cap == 0);
}

/* ---- Gemma 3 ---- */

static void test_gemma3_defaults_are_those_of_its_class(void **state)
{
	struct model_config c = parse(GEMMA3(""));

	assert_int_equal(c.family, MODEL_GEMMA3);
	assert_int_equal(c.head_dim, 256);
	assert_int_equal(c.n_kv_heads, 4);
	assert_int_equal(c.max_seq_len, 131072);
	assert_true(c.tie_word_embeddings && c.norms_add_one && c.qk_norm);
	assert_false(c.qkv_bias || c.o_bias || c.mlp_bias);
	assert_int_equal(c.bos, 2);
	assert_int_equal(c.eos[0], 1);
	assert_true(c.query_scalar == 256 && c.score_cap == 0 && c.logit_cap == 0);
	assert_true(c.rope.type == ROPE_DEFAULT && c.rope.theta == 1000000 && c.local_theta == 10000);
	assert_int_equal(model_n_rope_tables(&c), 2);
}

static void test_gemma3_older_rope_fields_scale_layers_without_a_window_alone(void **state)
{
	struct model_config c = parse(GEMMA3(",\"rope_theta\":7000,\"rope_local_base_freq\":300,"
		"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}"));

	assert_true(c.rope.type == ROPE_LINEAR && c.rope.factor == 8 && c.rope.theta == 7000);
	assert_true(c.local_theta == 300);
}

static void test_gemma3_newer_rope_fields_are_by_layer_type(void **state)
{
	struct model_config c = parse(GEMMA3(",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
		"\"factor\":8,\"rope_theta\":7000},\"sliding_attention\":{\"rope_type\":\"default\","
		"\"rope_theta\":300}}"));

	assert_true(c.rope.type == ROPE_LINEAR && c.rope.factor == 8 && c.rope.theta == 7000);
	assert_true(c.local_theta == 300);
}

static void test_gemma3_second_rope_table_is_of_the_local_base(void **state)
{
	struct model_config c = parse(GEMMA3(",\"head_dim\":16,\"rope_theta\":7000,\"rope_local_base_freq\":300,"
		"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}"));
	struct model_config plain = parse(GEMMA3(",\"head_dim\":16,\"rope_theta\":300"));
	float tables[2][5][16], want[2][5][16];

	model_rope_fill(&c, 5, &tables[0][0][0]);
	model_rope_fill(&plain, 5, &want[0][0][0]);
	assert_memory_equal(tables[1], want[0], sizeof(want[0]));
	assert_memory_not_equal(tables[0], want[0], sizeof(want[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults_are_those_of_its_class),
		cmocka_unit_test(test_fields_replace_defaults),
		cmocka_unit_test(test_caps_of_null_are_none),
		cmocka_unit_test(test_other_families_have_none_of_it),
		WINDOWS("every other layer slides, from the first one on", GEMMA2(""), 4096, 0, 4096),
		WINDOWS("layer types say which layers slide",
			GEMMA2(",\"sliding_window\":9,\"layer_types\":[\"full_attention\",\"sliding_attention\","
			"\"sliding_attention\"]"), 0, 9, 9),
		WINDOWS("window null is none", GEMMA2(",\"sliding_window\":null"), 0, 0, 0),
		REFUSED("other activations are refused",
			GEMMA2(",\"hidden_activation\":\"gelu\""), -ENOTSUP,
			"hidden_activation \"gelu\" is not gelu_pytorch_tanh"),
		REFUSED("attention in both directions is refused",
			GEMMA2(",\"use_bidirectional_attention\":true"), -ENOTSUP,
			"use_bidirectional_attention true is not supported"),
		REFUSED("cap of zero is refused",
			GEMMA2(",\"attn_logit_softcapping\":0"), -EINVAL, "attn_logit_softcapping 0 is not between"),
		REFUSED("query scalar of zero is refused",
			GEMMA2(",\"query_pre_attn_scalar\":0"), -EINVAL, "query_pre_attn_scalar 0 is not between"),
		cmocka_unit_test(test_gemma3_defaults_are_those_of_its_class),
		cmocka_unit_test(test_gemma3_older_rope_fields_scale_layers_without_a_window_alone),
		cmocka_unit_test(test_gemma3_newer_rope_fields_are_by_layer_type),
		cmocka_unit_test(test_gemma3_second_rope_table_is_of_the_local_base),
		WINDOWS("gemma 3: each sixth layer has no window", GEMMA3(""), 4096, 4096, 4096),
		WINDOWS("gemma 3: the pattern says which layer has none",
			GEMMA3(",\"sliding_window\":9,\"sliding_window_pattern\":2"), 9, 0, 9),
		WINDOWS("gemma 3: layer types override the pattern",
			GEMMA3(",\"sliding_window\":9,\"sliding_window_pattern\":2,\"layer_types\":[\"full_attention\","
			"\"sliding_attention\",\"full_attention\"]"), 0, 9, 0),
		REFUSED("gemma 3: a cap of scores is refused",
			GEMMA3(",\"attn_logit_softcapping\":20"), -ENOTSUP,
			"attn_logit_softcapping is not supported for Gemma 3"),
		REFUSED("gemma 3: attention in both directions is refused",
			GEMMA3(",\"use_bidirectional_attention\":true"), -ENOTSUP,
			"use_bidirectional_attention true is not supported"),
		REFUSED("gemma 3: pattern of zero is refused",
			GEMMA3(",\"sliding_window_pattern\":0"), -EINVAL, "sliding_window_pattern 0 is not between"),
		REFUSED("gemma 3: a scaled local rope is refused",
			GEMMA3(",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}"),
			-ENOTSUP, "rope_parameters.sliding_attention.rope_type \"linear\" is not default"),
		REFUSED("gemma 3: rope settings of no layer type are refused",
			GEMMA3(",\"rope_parameters\":{\"rope_theta\":5}"), -ENOTSUP,
			"rope_parameters.rope_theta is neither full_attention nor sliding_attention"),
		REFUSED("gemma 3: a local base of one is refused",
			GEMMA3(",\"rope_local_base_freq\":1"), -EINVAL, "rope_local_base_freq 1 is not between"),
	};

	return cmocka_run_group_tests_name("hf_gemma", tests, NULL, free_configs);
}
