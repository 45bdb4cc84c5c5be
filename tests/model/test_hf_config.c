/* SPDX-License-Identifier: MIT */
#include "tests/model/configs.h"

/* ---- families and sizes ---- */

static void test_llama_defaults_are_those_of_its_class(void **state)
{
	struct model_config c = parse(LLAMA(""));

	assert_int_equal(c.family, MODEL_LLAMA);
	assert_string_equal(c.architecture, "LlamaForCausalLM");
	assert_int_equal(c.hidden_size, 64);
	assert_int_equal(c.intermediate_size, 96);
	assert_int_equal(c.n_layers, 3);
	assert_int_equal(c.n_heads, 4);
	assert_int_equal(c.n_kv_heads, 4);
	assert_int_equal(c.head_dim, 16);
	assert_int_equal(c.vocab_size, 200);
	assert_int_equal(c.max_seq_len, 2048);
	assert_true(c.rms_norm_eps == 1e-6f);
	assert_false(c.tie_word_embeddings || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
	assert_int_equal(c.rope.type, ROPE_DEFAULT);
	assert_true(c.rope.theta == 10000.0);
	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos[0], 2);
	assert_int_equal(c.bos, 1);
	assert_true(c.sampling.temperature == 0 && c.sampling.top_p == 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(c.windows[i], 0);
}

static void test_fields_replace_defaults(void **state)
{
	struct model_config c = parse(LLAMA(
		",\"num_key_value_heads\":2,\"head_dim\":32,\"max_position_embeddings\":99,"
		"\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"attention_bias\":true,"
		"\"mlp_bias\":true,\"rope_theta\":5e5,\"attention_dropout\":0.5,"
		"\"eos_token_id\":[5,6]"));

	assert_int_equal(c.n_kv_heads, 2);
	assert_int_equal(c.head_dim, 32);
	assert_int_equal(c.max_seq_len, 99);
	assert_true(c.rms_norm_eps == 1e-5f);
	assert_true(c.tie_word_embeddings && c.qkv_bias && c.o_bias && c.mlp_bias && !c.qk_norm);
	assert_true(c.rope.theta == 500000.0);
	assert_int_equal(c.n_eos, 2);
	assert_int_equal(c.eos[1], 6);
}

static void test_null_head_dim_and_kv_heads_are_derived(void **state)
{
	struct model_config c = parse(
		CONFIG("Qwen3ForCausalLM", ",\"head_dim\":null,\"num_key_value_heads\":null"));

	assert_int_equal(c.head_dim, 16);
	assert_int_equal(c.n_kv_heads, 4);
}

static void test_qwen2_always_has_qkv_bias_alone(void **state)
{
	struct model_config c = parse(QWEN2(",\"attention_bias\":false,\"mlp_bias\":true"));

	assert_int_equal(c.family, MODEL_QWEN2);
	assert_true(c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm);
	assert_int_equal(c.max_seq_len, 32768);
	assert_int_equal(c.n_eos, 0);
	assert_int_equal(c.bos, -1);
}

static void test_qwen3_norms_heads_and_defaults_to_128_wide_heads(void **state)
{
	struct model_config c = parse(QWEN3(",\"attention_bias\":true"));

	assert_int_equal(c.family, MODEL_QWEN3);
	assert_int_equal(c.head_dim, 128);
	assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias && c.qk_norm);
}

static void test_mistral_has_no_bias(void **state)
{
	struct model_config c = parse(MISTRAL(",\"attention_bias\":true"));

	assert_false(c.qkv_bias || c.o_bias);
	assert_int_equal(c.max_seq_len, 131072);
}

/* ---- what is refused ---- */

static void test_quantization_null_is_no_quantization(void **state)
{
	parse(LLAMA(",\"quantization_config\":null"));
}

static void test_size_of_a_wrong_type_is_refused(void **state)
{
	expect_refusal("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":\"8\"}", -EINVAL,
		"hidden_size is not an integer");
	expect_refusal("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8.5}", -EINVAL,
		"hidden_size is not an integer");
}

static void test_sizes_out_of_range_are_refused(void **state)
{
	expect_refusal("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":0}", -EINVAL,
		"hidden_size 0 is not between");
	expect_refusal("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":-3}", -EINVAL,
		"hidden_size -3 is not between");
	expect_refusal("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":4294967297}",
		-EINVAL, "hidden_size 4294967297 is not between");
	expect_refusal("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,"
		       "\"intermediate_size\":8,\"num_hidden_layers\":1001}",
		-EINVAL, "num_hidden_layers 1001 is not between");
}

static void test_heads_that_kv_heads_do_not_divide_are_refused(void **state)
{
	expect_refusal(LLAMA(",\"num_key_value_heads\":3"), -EINVAL,
		"num_attention_heads 4 is not a multiple of num_key_value_heads 3");
	expect_refusal(CONFIG("MistralForCausalLM", ""), -EINVAL,
		"is not a multiple of num_key_value_heads 8, its default");
}

static void test_broken_json_is_refused_with_its_line(void **state)
{
	expect_refusal("{\n\"a\": 1,\n}", -EINVAL, "line 3: is not valid JSON");
	expect_refusal("", -EINVAL, "is not valid JSON");
	expect_refusal("[1]", -EINVAL, "is not a JSON object");
}

/* ---- ids and generation_config.json ---- */

static struct model_config with_generation(const char *config, const char *generation)
{
	struct model_config c = parse(config);
	struct model_error error = {""};

	if (hf_generation_parse("g.json", generation, strlen(generation), &c, &error))
		fail_msg("%s", error.text);
	return c;
}

static void test_generation_config_ids_win(void **state)
{
	struct model_config c = with_generation(LLAMA(",\"eos_token_id\":3,\"bos_token_id\":4"),
		"{\"eos_token_id\":[7,8,7],\"bos_token_id\":9}");

	assert_int_equal(c.n_eos, 2);
	assert_int_equal(c.eos[0], 7);
	assert_int_equal(c.eos[1], 8);
	assert_int_equal(c.bos, 9);
}

static void test_generation_config_without_ids_keeps_those_of_config(void **state)
{
	struct model_config c =
		with_generation(LLAMA(",\"eos_token_id\":3"), "{\"eos_token_id\":null}");

	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos[0], 3);
}

static void test_null_ids_are_none(void **state)
{
	struct model_config c = parse(LLAMA(",\"eos_token_id\":null,\"bos_token_id\":null"));

	assert_int_equal(c.n_eos, 0);
	assert_int_equal(c.bos, -1);
}

static void test_ids_out_of_the_vocabulary_are_dropped(void **state)
{
	struct model_config c = parse(LLAMA(",\"eos_token_id\":[200,199,-1],\"bos_token_id\":200"));

	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos[0], 199);
	assert_int_equal(c.bos, -1);
}

static void test_eos_id_of_a_wrong_type_is_refused(void **state)
{
	expect_refusal(LLAMA(",\"eos_token_id\":\"</s>\""), -EINVAL,
		"eos_token_id is neither an integer nor a list");
	expect_refusal(LLAMA(",\"eos_token_id\":[1,null]"), -EINVAL,
		"eos_token_id is neither an integer nor a list");
}

static void test_sampling_without_do_sample_is_greedy(void **state)
{
	struct model_config c = with_generation(LLAMA(""), "{\"temperature\":0.6,\"top_k\":5}");

	assert_true(c.sampling.temperature == 0);
	assert_int_equal(c.sampling.top_k, 0);
}

static void test_do_sample_has_the_defaults_of_generate(void **state)
{
	struct model_config c = with_generation(LLAMA(""), "{\"do_sample\":true}");

	assert_true(c.sampling.temperature == 1 && c.sampling.top_p == 1 && c.sampling.min_p == 0);
	assert_int_equal(c.sampling.top_k, 50);
}

static void test_do_sample_takes_what_is_given(void **state)
{
	struct model_config c = with_generation(LLAMA(""),
		"{\"do_sample\":true,\"temperature\":0.5,\"top_k\":0,\"top_p\":0.75,"
		"\"min_p\":0.25}");

	assert_true(c.sampling.temperature == 0.5f && c.sampling.top_p == 0.75f);
	assert_true(c.sampling.min_p == 0.25f);
	assert_int_equal(c.sampling.top_k, 0);
}

static void test_top_p_out_of_range_is_refused_and_nothing_changes(void **state)
{
	struct model_config c = parse(LLAMA(""));
	struct model_error error = {""};
	const char *text = "{\"eos_token_id\":9,\"do_sample\":true,\"top_p\":1.5}";

	assert_int_equal(hf_generation_parse("g.json", text, strlen(text), &c, &error), -EINVAL);
	assert_contains(error.text, "g.json: top_p 1.5 is not between 0 and 1");
	assert_int_equal(c.eos[0], 2);
	assert_true(c.sampling.temperature == 0);
}

/* ---- the directory ---- */

static void test_directory_without_config_is_refused(void **state)
{
	struct scratch *scratch = *state;
	struct model_config config;
	struct model_error error = {""};

	assert_int_equal(model_config_load(scratch->directory, &config, &error), -ENOENT);
	assert_contains(error.text, "/config.json: does not exist");
}

static void test_generation_config_may_be_absent(void **state)
{
	struct scratch *scratch = *state;
	struct model_config config;
	struct model_error error = {""};

	scratch_text(scratch, "config.json", LLAMA(",\"eos_token_id\":11"));
	assert_int_equal(model_config_load(scratch->directory, &config, &error), 0);
	assert_int_equal(config.eos[0], 11);
	model_config_deinit(&config);
}

static void test_broken_generation_config_is_refused_by_name(void **state)
{
	struct scratch *scratch = *state;
	struct model_config config;
	struct model_error error = {""};

	scratch_text(scratch, "config.json", LLAMA(""));
	scratch_text(scratch, "generation_config.json", "{");
	assert_int_equal(model_config_load(scratch->directory, &config, &error), -EINVAL);
	assert_contains(error.text, "/generation_config.json: line 1: is not valid JSON");
}

static void test_config_of_17_mib_is_refused(void **state)
{
	struct scratch *scratch = *state;
	struct model_config config;
	struct model_error error = {""};
	char path[256];

	scratch_text(scratch, "config.json", "{");
	scratch_path(scratch, "config.json", path);
	assert_int_equal(truncate(path, 17 << 20), 0);
	assert_int_equal(model_config_load(scratch->directory, &config, &error), -EFBIG);
	assert_contains(error.text, "/config.json: 17825792 bytes exceed the limit");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_llama_defaults_are_those_of_its_class),
		cmocka_unit_test(test_fields_replace_defaults),
		cmocka_unit_test(test_null_head_dim_and_kv_heads_are_derived),
		cmocka_unit_test(test_qwen2_always_has_qkv_bias_alone),
		cmocka_unit_test(test_qwen3_norms_heads_and_defaults_to_128_wide_heads),
		cmocka_unit_test(test_mistral_has_no_bias),
		WINDOWS("mistral window is 4096 when absent", MISTRAL(""), 4096, 4096, 4096),
		WINDOWS("mistral window null is none",
			MISTRAL(",\"sliding_window\":null"), 0, 0, 0),
		WINDOWS("mistral window holds for all layers",
			MISTRAL(",\"sliding_window\":9"), 9, 9, 9),
		WINDOWS("llama ignores a window", LLAMA(",\"sliding_window\":9"), 0, 0, 0),
		WINDOWS("qwen window needs use sliding window",
			QWEN2(",\"sliding_window\":9,\"max_window_layers\":0"), 0, 0, 0),
		WINDOWS("qwen layers from max window layers slide",
			QWEN3(",\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":1"),
			0, 9, 9),
		WINDOWS("qwen max window layers is 28 when absent",
			QWEN2(",\"use_sliding_window\":true,\"sliding_window\":9"), 0, 0, 0),
		WINDOWS("qwen layer types win over max window layers",
			QWEN2(",\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":1,"
			"\"layer_types\":[\"sliding_attention\",\"full_attention\","
			"\"sliding_attention\"]"), 9, 0, 9),
		REFUSED("layer types of wrong length are refused",
			QWEN2(",\"layer_types\":[\"full_attention\"]"), -EINVAL,
			"layer_types is not a list of num_hidden_layers = 3"),
		REFUSED("unknown layer type is refused",
			QWEN2(",\"layer_types\":[\"full_attention\",\"linear_attention\","
			"\"full_attention\"]"), -ENOTSUP, "layer_types[1] \"linear_attention\""),
		REFUSED("sliding layer without window is refused",
			QWEN2(",\"layer_types\":[\"sliding_attention\",\"full_attention\","
			"\"full_attention\"]"), -EINVAL,
			"layer_types[0] is sliding_attention, but there is no sliding_window"),
		REFUSED("mistral layer types that contradict its window are refused",
			MISTRAL(",\"sliding_window\":9,\"layer_types\":[\"sliding_attention\","
			"\"full_attention\",\"sliding_attention\"]"), -ENOTSUP,
			"layer_types[1] is full_attention, but sliding_window 9 applies to all"),
		REFUSED("window of zero is refused",
			MISTRAL(",\"sliding_window\":0"), -EINVAL,
			"sliding_window 0 is not between 1"),
		REFUSED("unknown architecture is refused by name",
			CONFIG("GPT2LMHeadModel", ""), -ENOTSUP,
			"architectures \"GPT2LMHeadModel\" is not one of LlamaForCausalLM"),
		REFUSED("missing architectures are refused",
			"{" SIZES "}", -EINVAL, "architectures is not a list of one name"),
		cmocka_unit_test(test_quantization_null_is_no_quantization),
		REFUSED("other activations are refused",
			LLAMA(",\"hidden_act\":\"gelu\""), -ENOTSUP,
			"hidden_act \"gelu\" is not silu"),
		REFUSED("missing size is refused",
			"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8}", -EINVAL,
			"intermediate_size is missing"),
		cmocka_unit_test(test_size_of_a_wrong_type_is_refused),
		cmocka_unit_test(test_sizes_out_of_range_are_refused),
		cmocka_unit_test(test_heads_that_kv_heads_do_not_divide_are_refused),
		REFUSED("odd head dim is refused",
			LLAMA(",\"head_dim\":17"), -EINVAL, "head_dim 17 is not an even number"),
		REFUSED("hidden size that heads do not divide is refused",
			"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":65,"
			"\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
			"\"vocab_size\":9}", -EINVAL,
			"hidden_size 65 is not a multiple of num_attention_heads 4"),
		REFUSED("field named twice is refused",
			LLAMA(",\"vocab_size\":300"), -EINVAL, "duplicate"),
		cmocka_unit_test(test_broken_json_is_refused_with_its_line),
		REFUSED("bool of a wrong type is refused",
			LLAMA(",\"tie_word_embeddings\":\"no\""), -EINVAL,
			"tie_word_embeddings is neither true nor false"),
		cmocka_unit_test(test_generation_config_ids_win),
		cmocka_unit_test(test_generation_config_without_ids_keeps_those_of_config),
		cmocka_unit_test(test_null_ids_are_none),
		cmocka_unit_test(test_ids_out_of_the_vocabulary_are_dropped),
		REFUSED("nine eos ids are refused",
			LLAMA(",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]"), -EINVAL,
			"eos_token_id lists more than 8 ids"),
		cmocka_unit_test(test_eos_id_of_a_wrong_type_is_refused),
		cmocka_unit_test(test_sampling_without_do_sample_is_greedy),
		cmocka_unit_test(test_do_sample_has_the_defaults_of_generate),
		cmocka_unit_test(test_do_sample_takes_what_is_given),
		cmocka_unit_test(test_top_p_out_of_range_is_refused_and_nothing_changes),
		scratch_test(test_directory_without_config_is_refused),
		scratch_test(test_generation_config_may_be_absent),
		scratch_test(test_broken_generation_config_is_refused_by_name),
		scratch_test(test_config_of_17_mib_is_refused),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, free_configs);
}
