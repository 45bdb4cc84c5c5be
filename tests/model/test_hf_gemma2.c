/* SPDX-License-Identifier: MIT */
#include "tests/model/configs.h"

#include <math.h>

#define GEMMA2(more) CONFIG("Gemma2ForCausalLM", more)

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
	};

	return cmocka_run_group_tests_name("hf_gemma2", tests, NULL, free_configs);
}
