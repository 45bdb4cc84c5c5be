/* SPDX-License-Identifier: MIT */

/* A model's configuration from the metadata of a GGUF file. */
#include "tests/model/gguf_file.h"

#include <errno.h>

#include "daemon/model/gguf_model.h"

/* A field in place of a model's own, or besides it: an integer, a float or a text. */
struct change {
	const char *key, *text;
	enum gguf_value type;
	double number;
};

static void put_change(struct gguf_file *file, const struct change *change)
{
	if (change->type == GGUF_STRING)
		put_text(file, change->key, change->text);
	else if (change->type == GGUF_F32)
		put_f32(file, change->key, (float)change->number);
	else if (change->type == GGUF_ARRAY)
		put_uint(put_array(file, change->key, GGUF_U32, 1), 1, 4);
	else
		put_u32(file, change->key, (uint32_t)change->number);
}

static int parse(const char *architecture, const struct change *change, const char *more,
	struct model_config *ret, struct model_error *error)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;

	put_model_fields(&file, architecture, change ? change->key : "");
	if (change)
		put_change(&file, change);
	if (strcmp(more, "token_embd.weight"))
		put_tensor(&file, "token_embd.weight", 40, 64, 0, 0);
	if (*more)
		put_tensor(&file, more, 1, 0, 0, 1 << 20);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	int rc = gguf_parse("x.gguf", bytes.data, bytes.n, 1 << 24, &gguf, error);
	if (rc)
		fail_msg("%s", error->text);
	gguf.path = strdup("x.gguf");
	rc = gguf_config_parse(&gguf, ret, error);
	gguf_deinit(&gguf);
	free(bytes.data);
	return rc;
}

static struct model_config parse_good(
	const char *architecture, const struct change *change, const char *more)
{
	struct model_config config;
	struct model_error error = {""};

	if (parse(architecture, change, more, &config, &error))
		fail_msg("%s", error.text);
	return config;
}

static void test_sizes_come_from_the_architectures_fields(void **state)
{
	struct model_config c = parse_good("llama", NULL, "");

	assert_int_equal(c.family, MODEL_LLAMA);
	assert_string_equal(c.architecture, "LlamaForCausalLM");
	assert_int_equal(c.max_seq_len, 128);
	assert_int_equal(c.hidden_size, 64);
	assert_int_equal(c.n_layers, 2);
	assert_int_equal(c.intermediate_size, 96);
	assert_int_equal(c.n_heads, 4);
	assert_int_equal(c.n_kv_heads, 2);
	assert_int_equal(c.head_dim, 16);
	assert_int_equal(c.vocab_size, 40);
	assert_true(c.rms_norm_eps == 1e-5f);
	assert_true(c.rope.type == ROPE_DEFAULT && c.rope.theta == 10000);
	assert_int_equal(c.windows[0], 0);
	assert_int_equal(c.bos, -1);
	assert_int_equal(c.n_eos, 0);
	model_config_deinit(&c);
	(void)state;
}

static void test_absent_kv_heads_are_as_many_as_heads(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct model_config c;
	struct model_error error = {""};
	struct gguf gguf;

	put_model_fields(&file, "llama", "llama.attention.head_count_kv");
	put_tensor(&file, "token_embd.weight", 40, 64, 0, 0);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	assert_int_equal(gguf_parse("x.gguf", bytes.data, bytes.n, 1 << 24, &gguf, &error), 0);
	assert_int_equal(gguf_config_parse(&gguf, &c, &error), 0);
	assert_int_equal(c.n_kv_heads, 4);
	model_config_deinit(&c);
	gguf_deinit(&gguf);
	free(bytes.data);
	(void)state;
}

static void test_head_is_tied_without_a_tensor_of_its_own(void **state)
{
	struct model_config tied = parse_good("llama", NULL, "");
	struct model_config untied = parse_good("llama", NULL, "output.weight");

	assert_true(tied.tie_word_embeddings);
	assert_false(untied.tie_word_embeddings);
	model_config_deinit(&tied);
	model_config_deinit(&untied);
	(void)state;
}

static void test_biases_are_those_that_have_tensors(void **state)
{
	static const struct {
		const char *architecture, *tensor;
		bool qkv, o, mlp, norm;
	} cases[] = {
		{"llama", "", false, false, false, false},
		{"llama", "blk.0.attn_q.bias", true, false, false, false},
		{"llama", "blk.1.attn_k.bias", true, false, false, false},
		{"llama", "blk.0.attn_output.bias", false, true, false, false},
		{"llama", "blk.1.ffn_gate.bias", false, false, true, false},
		{"llama", "blk.0.ffn_down.bias", false, false, true, false},
		{"qwen2", "", true, false, false, false},
		{"qwen3", "", false, false, false, true},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct model_config c =
			parse_good(cases[i].architecture, NULL, cases[i].tensor);

		assert_true(c.qkv_bias == cases[i].qkv && c.o_bias == cases[i].o);
		assert_true(c.mlp_bias == cases[i].mlp && c.qk_norm == cases[i].norm);
		model_config_deinit(&c);
	}
	(void)state;
}

static void test_factor_without_a_type_scales_linearly(void **state)
{
	const struct change factor = {"llama.rope.scaling.factor", NULL, GGUF_F32, 4};
	struct model_config c = parse_good("llama", &factor, "");

	assert_true(c.rope.type == ROPE_LINEAR && c.rope.factor == 4);
	model_config_deinit(&c);
	(void)state;
}

static void test_window_of_llama_is_that_of_all_layers(void **state)
{
	const struct change window = {"llama.attention.sliding_window", NULL, GGUF_U32, 33};
	struct model_config c = parse_good("llama", &window, "");

	assert_int_equal(c.windows[0], 33);
	assert_int_equal(c.windows[1], 33);
	model_config_deinit(&c);
	(void)state;
}

static void test_end_tokens_are_those_of_the_vocabulary_once_each(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct model_config c;
	struct model_error error = {""};
	struct gguf gguf;

	put_model_fields(&file, "llama", "");
	put_u32(&file, "tokenizer.ggml.bos_token_id", 39);
	put_u32(&file, "tokenizer.ggml.eos_token_id", 5);
	put_u32(&file, "tokenizer.ggml.eot_token_id", 5);
	put_u32(&file, "tokenizer.ggml.eom_token_id", 40);
	put_tensor(&file, "token_embd.weight", 40, 64, 0, 0);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	assert_int_equal(gguf_parse("x.gguf", bytes.data, bytes.n, 1 << 24, &gguf, &error), 0);
	assert_int_equal(gguf_config_parse(&gguf, &c, &error), 0);
	assert_int_equal(c.bos, 39);
	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos[0], 5);
	model_config_deinit(&c);
	gguf_deinit(&gguf);
	free(bytes.data);
	(void)state;
}

/* The configuration of a model of 40 rows with these tokens and the end token 1. */
static struct model_config parse_tokens(const char *const *tokens, size_t n)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct model_config config;
	struct model_error error = {""};
	struct gguf gguf;

	put_model_fields(&file, "llama", "");
	put_u32(&file, "tokenizer.ggml.eos_token_id", 1);
	struct gguf_bytes *to = put_array(&file, "tokenizer.ggml.tokens", GGUF_STRING, n);
	for (size_t i = 0; i < n; i++)
		put_string(to, tokens[i]);
	put_tensor(&file, "token_embd.weight", 40, 64, 0, 0);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	assert_int_equal(gguf_parse("x.gguf", bytes.data, bytes.n, 1 << 24, &gguf, &error), 0);
	assert_int_equal(gguf_config_parse(&gguf, &config, &error), 0);
	gguf_deinit(&gguf);
	free(bytes.data);
	return config;
}

static void test_tokens_whose_text_ends_an_answer_are_end_tokens(void **state)
{
	static const char *const tokens[] = {"<s>", "<|im_end|>", "</s>", "<|eot_id|>", "<|end|>",
		"<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<|end", "end"};
	static const int32_t want[] = {1, 3, 4, 5, 6, 7, 8};
	struct model_config c = parse_tokens(tokens, ARRAY_SIZE(tokens));

	assert_int_equal(c.n_eos, ARRAY_SIZE(want));
	for (size_t i = 0; i < ARRAY_SIZE(want); i++)
		assert_int_equal(c.eos[i], want[i]);
	model_config_deinit(&c);
	(void)state;
}

static void test_end_tokens_are_as_many_as_a_model_may_have(void **state)
{
	const char *tokens[50];
	struct model_config c;

	for (size_t i = 0; i < ARRAY_SIZE(tokens); i++)
		tokens[i] = i >= 35 ? "<|end|>" : "text";
	c = parse_tokens(tokens, ARRAY_SIZE(tokens));
	assert_int_equal(c.n_eos, 6);
	assert_int_equal(c.eos[5], 39);
	model_config_deinit(&c);
	for (size_t i = 0; i < ARRAY_SIZE(tokens); i++)
		tokens[i] = "<|end|>";
	c = parse_tokens(tokens, ARRAY_SIZE(tokens));
	assert_int_equal(c.n_eos, MODEL_EOS_MAX);
	assert_int_equal(c.eos[0], 1);
	assert_int_equal(c.eos[1], 0);
	assert_int_equal(c.eos[2], 2);
	model_config_deinit(&c);
	(void)state;
}

/* ---- what is refused ---- */

static const struct refusal {
	struct change change;
	const char *architecture;
	int rc;
	const char *words;
} refusals[] = {
	{{"general.architecture", "gemma3", GGUF_STRING}, "llama", -ENOTSUP,
		"general.architecture \"gemma3\" is not one of llama, qwen2, qwen3"},
	{{"general.architecture", NULL, GGUF_U32, 1}, "llama", -EINVAL,
		"general.architecture is not a string"},
	{{"llama.block_count", NULL, GGUF_U32, 0}, "llama", -EINVAL,
		"llama.block_count 0 is not between 1 and 1000"},
	{{"llama.block_count", "2", GGUF_STRING}, "llama", -EINVAL,
		"llama.block_count is not an integer"},
	{{"qwen3.attention.head_count_kv", NULL, GGUF_ARRAY}, "qwen3", -EINVAL,
		"qwen3.attention.head_count_kv is not an integer"},
	{{"qwen2.attention.head_count_kv", NULL, GGUF_U32, 3}, "qwen2", -EINVAL,
		"qwen2.attention.head_count 4 is not a multiple of attention.head_count_kv 3"},
	{{"llama.attention.head_count", NULL, GGUF_U32, 6}, "llama", -EINVAL,
		"llama.embedding_length 64 is not a multiple of attention.head_count 6"},
	{{"llama.attention.key_length", NULL, GGUF_U32, 7}, "llama", -EINVAL,
		"llama.attention.key_length 7 is not an even number"},
	{{"llama.attention.value_length", NULL, GGUF_U32, 8}, "llama", -ENOTSUP,
		"llama.attention.value_length 8 is not attention.key_length 16"},
	{{"llama.rope.dimension_count", NULL, GGUF_U32, 8}, "llama", -ENOTSUP,
		"llama.rope.dimension_count 8 is not attention.key_length 16"},
	{{"llama.attention.layer_norm_rms_epsilon", NULL, GGUF_F32, 2}, "llama", -EINVAL,
		"llama.attention.layer_norm_rms_epsilon 2 is not between 0 and 1"},
	{{"llama.rope.scaling.type", "longrope", GGUF_STRING}, "llama", -ENOTSUP,
		"llama.rope.scaling.type \"longrope\" is not one of none, linear, yarn"},
	{{"llama.rope.scaling.type", "linear", GGUF_STRING}, "llama", -EINVAL,
		"llama.rope.scaling.factor is missing"},
	{{"llama.rope.scale_linear", NULL, GGUF_F32, 2}, "llama", -ENOTSUP,
		"llama.rope.scale_linear 2.0 is not supported"},
	{{"llama.rope.scaling.attn_factor", NULL, GGUF_F32, 2}, "llama", -ENOTSUP,
		"llama.rope.scaling.attn_factor 2 is not 1"},
	{{"llama.rope.freq_base_swa", NULL, GGUF_F32, 2}, "llama", -ENOTSUP,
		"llama.rope.freq_base_swa 2.0 is not supported"},
	{{"llama.attention.causal", NULL, GGUF_U32, 0}, "llama", -EINVAL,
		"llama.attention.causal is neither true nor false"},
	{{"llama.expert_count", NULL, GGUF_U32, 8}, "llama", -ENOTSUP,
		"llama.expert_count 8: experts are not supported"},
	{{"llama.vocab_size", NULL, GGUF_U32, 39}, "llama", -EINVAL,
		"llama.vocab_size is not the number of rows of tensor \"token_embd.weight\", 40"},
	{{"qwen2.attention.sliding_window", NULL, GGUF_U32, 9}, "qwen2", -ENOTSUP,
		"qwen2.attention.sliding_window 9 is not supported"},
	{{"tokenizer.ggml.eos_token_id", "2", GGUF_STRING}, "llama", -EINVAL,
		"tokenizer.ggml.eos_token_id is not an integer"},
};

static void test_refusal_names_field_and_value(void **state)
{
	for (size_t i = 0; i < ARRAY_SIZE(refusals); i++) {
		struct model_config config = {.n_layers = 77};
		struct model_error error = {""};

		assert_int_equal(parse(refusals[i].architecture, &refusals[i].change, "", &config,
					 &error), refusals[i].rc);
		assert_contains(error.text, "x.gguf: ");
		assert_contains(error.text, refusals[i].words);
		assert_int_equal(config.n_layers, 77);
	}
	(void)state;
}

static void test_model_without_an_embedding_is_refused(void **state)
{
	struct model_config config;
	struct model_error error = {""};

	assert_int_equal(parse("llama", NULL, "token_embd.weight", &config, &error), -EINVAL);
	assert_contains(error.text, "x.gguf: tensor \"token_embd.weight\" is missing or does not have");
	(void)state;
}

static void test_rope_factors_of_another_length_are_refused(void **state)
{
	struct model_config config;
	struct model_error error = {""};

	assert_int_equal(parse("llama", NULL, "rope_freqs.weight", &config, &error), -EINVAL);
	assert_contains(error.text,
		"x.gguf: tensor \"rope_freqs.weight\" is not a vector of 8 elements of type F32");
	(void)state;
}

/* ---- names ---- */

static void test_names_are_those_of_the_file(void **state)
{
	static const char *const cases[][2] = {
		{"model.embed_tokens.weight", "token_embd.weight"},
		{"model.norm.weight", "output_norm.weight"},
		{"lm_head.weight", "output.weight"},
		{"model.layers.17.self_attn.q_proj.bias", "blk.17.attn_q.bias"},
		{"model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"},
		{"model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"},
		{"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"},
		{"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.weight"},
		{"fc.weight", "fc.weight"},
	};
	char buffer[SAFETENSORS_NAME_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		assert_string_equal(gguf_rename(cases[i][0], buffer, sizeof(buffer)), cases[i][1]);
	(void)state;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes_come_from_the_architectures_fields),
		cmocka_unit_test(test_absent_kv_heads_are_as_many_as_heads),
		cmocka_unit_test(test_head_is_tied_without_a_tensor_of_its_own),
		cmocka_unit_test(test_biases_are_those_that_have_tensors),
		cmocka_unit_test(test_factor_without_a_type_scales_linearly),
		cmocka_unit_test(test_window_of_llama_is_that_of_all_layers),
		cmocka_unit_test(test_end_tokens_are_those_of_the_vocabulary_once_each),
		cmocka_unit_test(test_tokens_whose_text_ends_an_answer_are_end_tokens),
		cmocka_unit_test(test_end_tokens_are_as_many_as_a_model_may_have),
		cmocka_unit_test(test_refusal_names_field_and_value),
		cmocka_unit_test(test_model_without_an_embedding_is_refused),
		cmocka_unit_test(test_rope_factors_of_another_length_are_refused),
		cmocka_unit_test(test_names_are_those_of_the_file),
	};

	return cmocka_run_group_tests_name("gguf_config", tests, NULL, NULL);
}
