/* SPDX-License-Identifier: MIT */

/* Tokenizers of GGUF files that are refused, and how long they may be. */
#include "tests/model/gguf_texts.h"

/* ---- what is refused ---- */

static void expect_refusal(struct gguf_file *file, const struct scratch *scratch, int rc, const char *words)
{
	struct mimeo_model_files *files;
	struct model_error error = {""};

	assert_int_equal(load(file, scratch, &files, &error), rc);
	assert_contains(error.text, "m.gguf: ");
	assert_contains(error.text, words);
}

static void test_other_tokenizers_are_refused_by_name(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	put_tokenizer(&file, "gpt2", "tokenizer.ggml.model");
	put_text(&file, "tokenizer.ggml.model", "bert");
	expect_refusal(&file, *state, -ENOTSUP,
		"tokenizer.ggml.model \"bert\" is neither gpt2 nor llama");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_tokenizer(&file, "gpt2", "");
	put_text(&file, "tokenizer.ggml.pre", "tekken");
	expect_refusal(&file, *state, -ENOTSUP,
		"tokenizer.ggml.pre \"tekken\" is not one of default, gpt-2, llama-bpe, llama3, "
		"llama-v3, qwen2, smollm");
}

static void test_missing_parts_are_named(void **state)
{
	static const struct {
		const char *model, *without, *words;
	} cases[] = {
		{"gpt2", "tokenizer.ggml.tokens", "tokenizer.ggml.tokens is missing"},
		{"gpt2", "tokenizer.ggml.merges", "tokenizer.ggml.merges is missing"},
		{"llama", "tokenizer.ggml.scores", "tokenizer.ggml.scores is missing"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct gguf_file file = GGUF_FILE_INIT;

		put_tokenizer(&file, cases[i].model, cases[i].without);
		expect_refusal(&file, *state, -EINVAL, cases[i].words);
	}
}

static void test_bad_element_is_named(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	put_tokenizer(&file, "gpt2", "tokenizer.ggml.token_type");
	put_uint(put_array(&file, "tokenizer.ggml.token_type", GGUF_I32, 1), 1, 4);
	expect_refusal(&file, *state, -EINVAL, "tokenizer.ggml.token_type has 1 elements for 3");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_tokenizer(&file, "gpt2", "tokenizer.ggml.token_type");
	put_uint(put_array(&file, "tokenizer.ggml.token_type", GGUF_U8, 1), 1, 1);
	expect_refusal(&file, *state, -EINVAL, "tokenizer.ggml.token_type has elements of type 0");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_text(&file, "tokenizer.ggml.model", "llama");
	put_string(put_array(&file, "tokenizer.ggml.tokens", GGUF_STRING, 1), "a");
	put_bytes(put_array(&file, "tokenizer.ggml.scores", GGUF_F32, 1), &(float){NAN}, 4);
	expect_refusal(&file, *state, -EINVAL, "tokenizer.ggml.scores[0] is not finite");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_text(&file, "tokenizer.ggml.model", "llama");
	put_string(put_array(&file, "tokenizer.ggml.tokens", GGUF_STRING, 1), "\xc3");
	expect_refusal(&file, *state, -EINVAL, "tokenizer.ggml.tokens[0] is not UTF-8 or has a NUL");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_tokenizer(&file, "gpt2", "tokenizer.ggml.merges");
	struct gguf_bytes *to = put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 1);
	put_uint(to, 3, 8);
	put_bytes(to, "a \0", 3);
	expect_refusal(&file, *state, -EINVAL, "tokenizer.ggml.merges[0] is not UTF-8 or has a NUL");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_text(&file, "tokenizer.ggml.model", "gpt2");
	to = put_array(&file, "tokenizer.ggml.tokens", GGUF_STRING, 1);
	put_uint(to, 2, 8);
	put_bytes(to, "a\0", 2);
	put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 0);
	expect_refusal(&file, *state, -EINVAL, "tokenizer.ggml.tokens[0] is not UTF-8 or has a NUL");
}

/* ---- limits ---- */

static int make(struct gguf_file *file, size_t tokenizer_max, size_t config_max, size_t *ret_bytes,
	struct model_error *error)
{
	const struct gguf_text_limits limits = {tokenizer_max, config_max};
	struct gguf_bytes bytes = gguf_file_finish(file);
	struct gguf_text text;
	struct gguf gguf;

	assert_int_equal(gguf_parse("x.gguf", bytes.data, bytes.n, bytes.n + WHOLE, &gguf, error), 0);
	gguf.path = strdup("x.gguf");
	int rc = gguf_text_make(&gguf, limits, &text, error);
	if (!rc) {
		*ret_bytes = strlen(text.tokenizer);
		gguf_text_deinit(&text);
	}
	gguf_deinit(&gguf);
	free(bytes.data);
	return rc;
}

static void expect_too_long(struct gguf_file *file, size_t tokenizer_max, const char *words)
{
	struct model_error error = {""};

	assert_int_equal(make(file, tokenizer_max, 100, NULL, &error), -EFBIG);
	assert_contains(error.text, words);
}

static void test_texts_may_be_as_long_as_their_limits(void **state)
{
	static const char *const models[] = {"gpt2", "llama"};

	for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
		struct gguf_file file = GGUF_FILE_INIT;
		struct model_error error = {""};
		size_t bytes;

		put_tokenizer(&file, models[i], "");
		assert_int_equal(make(&file, 1 << 20, 100, &bytes, &error), 0);
		file = (struct gguf_file)GGUF_FILE_INIT;
		put_tokenizer(&file, models[i], "");
		assert_int_equal(make(&file, bytes, 100, &bytes, &error), 0);
		for (size_t limit = 0; limit < bytes; limit = limit ? 2 * limit : 1) {
			file = (struct gguf_file)GGUF_FILE_INIT;
			put_tokenizer(&file, models[i], "");
			expect_too_long(&file, bytes - 1 - limit,
				"x.gguf: its tokenizer.json exceeds the limit of ");
		}
	}
	(void)state;
}

static void test_more_tokens_than_rows_are_refused_with_both_numbers(void **state)
{
	for (uint64_t rows = ARRAY_SIZE(marks) - 1; rows <= ARRAY_SIZE(marks) + 1; rows++) {
		struct gguf_file file = GGUF_FILE_INIT;
		struct model_error error = {""};
		size_t bytes;
		bool fits = rows >= ARRAY_SIZE(marks);

		put_tokens(&file, "gpt2", marks, ARRAY_SIZE(marks));
		put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 0);
		put_tensor(&file, "token_embd.weight", rows, 64, 0, 0);
		assert_int_equal(make(&file, 10000, 100, &bytes, &error), fits ? 0 : -EINVAL);
		if (!fits)
			assert_contains(error.text, "x.gguf: tokenizer.ggml.tokens has 8 elements for "
						    "7 rows of tensor \"token_embd.weight\"");
	}
	(void)state;
}

/* What comes behind the limit is not read. */
static void test_text_above_its_limit_ends_the_work(void **state)
{
	static const struct token letters[] = {{"a", GGUF_TOKEN_NORMAL}, {"b", GGUF_TOKEN_NORMAL},
		{"\x01", GGUF_TOKEN_CONTROL}, {"\x02", GGUF_TOKEN_NORMAL}};
	struct gguf_file file = GGUF_FILE_INIT;

	put_tokens(&file, "gpt2", letters, ARRAY_SIZE(letters));
	expect_too_long(&file, 100, "its tokenizer.json exceeds the limit of 100 bytes");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_tokens(&file, "gpt2", letters, ARRAY_SIZE(letters));
	struct gguf_bytes *to = put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 101);
	for (int i = 0; i < 100; i++)
		put_string(to, "a b");
	put_string(to, "\xff");
	expect_too_long(&file, 700, "its tokenizer.json exceeds the limit of 700 bytes");
	(void)state;
}

static void test_chat_template_above_its_limit_is_refused(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	char *chat = calloc(1, TEXT_FILES_CONFIG_MAX + 1);

	assert_non_null(chat);
	memset(chat, 'x', TEXT_FILES_CONFIG_MAX);
	put_tokenizer(&file, "gpt2", "");
	put_text(&file, "tokenizer.chat_template", chat);
	free(chat);
	expect_refusal(&file, *state, -EFBIG,
		"its tokenizer_config.json exceeds the limit of 33554432 bytes");
}

static void test_more_than_two_million_merges_are_refused(void **state)
{
	enum { N = (2 << 20) + 1 };
	uint64_t *lengths = calloc(N, sizeof(*lengths));

	assert_non_null(lengths);
	for (uint64_t n = N - 1; n <= N; n++) {
		struct gguf_file file = GGUF_FILE_INIT;
		struct model_error error = {""};
		size_t bytes;

		put_tokens(&file, "gpt2", marks, ARRAY_SIZE(marks));
		put_bytes(put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, n), lengths,
			n * sizeof(*lengths));
		assert_int_equal(make(&file, TEXT_FILES_TOKENIZER_MAX, 100, &bytes, &error),
			n == N ? -EINVAL : 0);
		if (n == N)
			assert_contains(error.text, "tokenizer.ggml.merges is missing, not of strings, "
						    "or has more than 2097152");
	}
	free(lengths);
	(void)state;
}

static void test_more_added_tokens_than_clients_read_are_refused(void **state)
{
	for (uint32_t n = GGUF_ADDED_MAX; n <= GGUF_ADDED_MAX + 1; n++) {
		struct token *tokens = calloc(n, sizeof(*tokens));
		struct gguf_file file = GGUF_FILE_INIT;
		struct model_error error = {""};
		char (*texts)[12] = calloc(n, sizeof(*texts));
		size_t bytes;

		assert_true(tokens && texts);
		for (uint32_t i = 0; i < n; i++) {
			snprintf(texts[i], sizeof(texts[i]), "<%u>", i);
			tokens[i] = (struct token){texts[i], GGUF_TOKEN_USER_DEFINED};
		}
		put_tokens(&file, "gpt2", tokens, n);
		put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 0);
		assert_int_equal(make(&file, TEXT_FILES_TOKENIZER_MAX, 100, &bytes, &error),
			n > GGUF_ADDED_MAX ? -E2BIG : 0);
		free(texts);
		free(tokens);
	}
	(void)state;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		scratch_test(test_other_tokenizers_are_refused_by_name),
		scratch_test(test_missing_parts_are_named),
		scratch_test(test_bad_element_is_named),
		cmocka_unit_test(test_texts_may_be_as_long_as_their_limits),
		cmocka_unit_test(test_more_tokens_than_rows_are_refused_with_both_numbers),
		cmocka_unit_test(test_text_above_its_limit_ends_the_work),
		scratch_test(test_chat_template_above_its_limit_is_refused),
		cmocka_unit_test(test_more_than_two_million_merges_are_refused),
		cmocka_unit_test(test_more_added_tokens_than_clients_read_are_refused),
	};

	return cmocka_run_group_tests_name("gguf_tokenizer_limits", tests, read_data, free_data);
}
