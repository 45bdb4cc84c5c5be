/* SPDX-License-Identifier: MIT */

/* The tokenizer of a GGUF file, as libmimeo-text reads what is made of it: ids of tokenizers.json. */
#include "tests/model/gguf_texts.h"

/* ---- what it gives ---- */

static void expect_ids(const struct mimeo_text *text, const char *input, const json_t *want)
{
	int32_t *ids;
	size_t n;

	assert_int_equal(
		mimeo_text_encode(text, input, strlen(input), MIMEO_TEXT_SPECIAL, &ids, &n), 0);
	for (size_t i = 0; i < n || i < json_array_size(want); i++)
		if (n != json_array_size(want) ||
			ids[i] != json_integer_value(json_array_get(want, i)))
			fail_msg("\"%s\": %zu ids, not %zu, or id %zu is not %d", input, n,
				json_array_size(want), i,
				(int)json_integer_value(json_array_get(want, i)));
	free(ids);
}

static void test_texts_get_the_ids_of_the_reference(void **state)
{
	struct scratch *scratch = *state;
	const json_t *cases = json_object_get(data, "cases"), *item, *pair;
	size_t i, j;

	json_array_foreach((json_t *)(uintptr_t)cases, i, item) {
		struct gguf_file file = GGUF_FILE_INIT;
		struct mimeo_text *text;

		put_tokenizer(&file, json_string_value(json_object_get(item, "vocabulary")), "");
		put_text(&file, "tokenizer.ggml.pre",
			json_string_value(json_object_get(item, "pre")));
		text = open_text(&file, scratch);
		json_array_foreach(json_object_get(item, "texts"), j, pair) {
			expect_ids(text, json_string_value(json_array_get(pair, 0)),
				json_array_get(pair, 1));
		}
		mimeo_text_close(text);
	}
}

static void test_ids_give_back_their_text(void **state)
{
	static const char *const models[] = {"gpt2", "llama"};
	const char input[] = " Hello,  w\xc3\xb6rld\n\xf0\x9f\x98\x80";

	for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
		struct gguf_file file = GGUF_FILE_INIT;
		struct mimeo_text *text;
		int32_t *ids;
		char *output;
		size_t n;

		put_tokenizer(&file, models[i], "");
		text = open_text(&file, *state);
		assert_int_equal(mimeo_text_encode(text, input, strlen(input), MIMEO_TEXT_SPECIAL,
					 &ids, &n), 0);
		assert_int_equal(mimeo_text_decode(text, ids, n, MIMEO_TEXT_SKIP_SPECIAL, &output,
					 &n), 0);
		assert_string_equal(output, input);
		free(output);
		free(ids);
		mimeo_text_close(text);
	}
}

/* The text becomes these ids, which end with -1. */
static void expect_encoded(
	const struct mimeo_text *text, const char *input, uint32_t flags, const int32_t *want)
{
	int32_t *ids;
	size_t n;

	assert_int_equal(mimeo_text_encode(text, input, strlen(input), flags, &ids, &n), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(ids[i], want[i]);
	assert_int_equal(want[n], -1);
	free(ids);
}

#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})

static void test_user_defined_token_in_literal_text_is_text(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct mimeo_text *text;

	put_tokens(&file, "gpt2", marks, ARRAY_SIZE(marks));
	put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 0);
	text = open_text(&file, *state);
	expect_encoded(text, "<t><t>", 0, IDS(3, 3));
	expect_encoded(text, "t>", 0, IDS(5));
	assert_int_equal(mimeo_text_id(text, "<end>"), 4);
	expect_encoded(text, "<t>", MIMEO_TEXT_LITERAL, IDS(0, 1, 2));
	mimeo_text_close(text);
}

static void test_added_tokens_keep_their_ids_where_two_tokens_are_the_same(void **state)
{
	struct token tokens[ARRAY_SIZE(marks)];
	struct gguf_file file = GGUF_FILE_INIT;
	struct mimeo_text *text;

	memcpy(tokens, marks, sizeof(marks));
	tokens[1].text = "<";
	put_tokens(&file, "gpt2", tokens, ARRAY_SIZE(tokens));
	put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 0);
	text = open_text(&file, *state);
	expect_encoded(text, "<t><end>t>", 0, IDS(3, 4, 5));
	mimeo_text_close(text);
}

static void test_added_tokens_that_merges_make_stay_in_the_vocabulary(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct mimeo_text *text;

	put_tokens(&file, "gpt2", marks, ARRAY_SIZE(marks));
	put_string(put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 1), "< t>");
	text = open_text(&file, *state);
	expect_encoded(text, "<t><end>t>", 0, IDS(3, 4, 5));
	mimeo_text_close(text);
}

static void test_pieces_are_made_of_normal_tokens_only(void **state)
{
	static const struct token tokens[] = {{"<unk>", GGUF_TOKEN_UNKNOWN},
		{"<s>", GGUF_TOKEN_CONTROL}, {"\xe2\x96\x81", GGUF_TOKEN_NORMAL},
		{"ab", GGUF_TOKEN_USER_DEFINED}, {"a", GGUF_TOKEN_NORMAL},
		{"b", GGUF_TOKEN_NORMAL}, {"bb", GGUF_TOKEN_NORMAL}, {"aab", GGUF_TOKEN_NORMAL},
		{"aa", GGUF_TOKEN_USER_DEFINED}};
	struct gguf_file file = GGUF_FILE_INIT;
	struct mimeo_text *text;

	put_tokens(&file, "llama", tokens, ARRAY_SIZE(tokens));
	text = open_text(&file, *state);
	expect_encoded(text, "bb", MIMEO_TEXT_LITERAL, IDS(2, 6));
	expect_encoded(text, "aa", MIMEO_TEXT_LITERAL, IDS(2, 4, 4));
	expect_encoded(text, "aa", 0, IDS(8));
	mimeo_text_close(text);
}

static void test_tokens_of_fields_and_known_ends_are_special_without_a_type(void **state)
{
	struct token tokens[] = {{"<", 0}, {"e", 0}, {">", 0}, {"|", 0}, {"n", 0}, {"d", 0},
		{"<e>", 0}, {"<d>", 0}, {"<n>", 0}, {"<|end|>", 0}};
	static const char *const fields[] = {"bos", "eos", "eot", "eom", "unknown", "padding"};

	for (size_t i = 0; i < 2 * ARRAY_SIZE(fields); i++) {
		struct gguf_file file = GGUF_FILE_INIT;
		struct mimeo_text *text;
		char key[64];

		tokens[0].type = i % 2 ? GGUF_TOKEN_NORMAL : 0;
		for (size_t j = 1; j < ARRAY_SIZE(tokens); j++)
			tokens[j].type = GGUF_TOKEN_NORMAL;
		snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", fields[i / 2]);
		put_tokens(&file, "gpt2", tokens, ARRAY_SIZE(tokens));
		put_array(&file, "tokenizer.ggml.merges", GGUF_STRING, 0);
		put_u32(&file, key, 7);
		text = open_text(&file, *state);
		expect_encoded(text, "<d><|end|>", 0, IDS(7, 9));
		expect_encoded(text, "<n>", 0, IDS(0, 4, 2));
		expect_encoded(text, "<d>", MIMEO_TEXT_LITERAL, IDS(0, 5, 2));
		expect_encoded(text, "<|end|>", MIMEO_TEXT_LITERAL, IDS(0, 3, 1, 4, 5, 3, 2));
		mimeo_text_close(text);
	}
}

static uint64_t hash_of(const struct gguf_hash_point *point, const char *text, size_t n)
{
	uint64_t hash = 0;

	for (size_t i = 0; i < n; i++)
		hash = gguf_hash_append(point, hash, (uint8_t)text[i]);
	return hash;
}

/* Byte i says whether i has an odd number of bits. */
static void write_thue_morse(char *text, size_t n, bool negated)
{
	for (size_t i = 0; i < n; i++)
		text[i] = (__builtin_popcountll(i) & 1) == negated ? 'a' : 'b';
}

static void test_thue_morse_texts_have_different_hashes(void **state)
{
	static char texts[2][4096];
	struct gguf_hash_point point;

	gguf_hash_choose(&point);
	for (size_t n = 1; n <= sizeof(texts[0]); n *= 2) {
		write_thue_morse(texts[0], n, false);
		write_thue_morse(texts[1], n, true);
		assert_int_not_equal(hash_of(&point, texts[0], n), hash_of(&point, texts[1], n));
	}
	assert_int_equal(gguf_hash_multiply(point.base, point.inverse), 1);
	(void)state;
}

/* Tokens of ten blocks, each one of two such texts, and one of twenty blocks. */
static void test_merges_of_thue_morse_tokens_are_found(void **state)
{
	enum { BLOCK = 1024, BLOCKS = 10, TOKENS = 1 << BLOCKS, BYTES = BLOCK * BLOCKS };
	char *texts = malloc((size_t)BYTES * TOKENS);
	struct gguf_token *tokens = calloc(TOKENS + 1, sizeof(*tokens));
	struct gguf_vocabulary vocabulary = {.tokens = tokens, .n = TOKENS + 1};
	struct gguf_budget budget = {"tokenizer.json", SIZE_MAX, SIZE_MAX};
	struct model_error error = {""};
	json_t *merges;

	assert_true(texts && tokens);
	for (size_t i = 0; i < TOKENS; i++) {
		for (size_t j = 0; j < BLOCKS; j++)
			write_thue_morse(&texts[i * BYTES + j * BLOCK], BLOCK, i >> j & 1);
		tokens[i] = (struct gguf_token){&texts[i * BYTES], BYTES, GGUF_TOKEN_NORMAL, 0};
	}
	tokens[TOKENS] = (struct gguf_token){texts, 2 * (size_t)BYTES, GGUF_TOKEN_NORMAL, 0};
	assert_int_equal(gguf_merges_of_scores(&vocabulary, "x.gguf", &budget, &merges, &error), 0);
	assert_int_equal(json_array_size(merges), 1);
	const json_t *pair = json_array_get(merges, 0);
	for (size_t i = 0; i < 2; i++)
		assert_memory_equal(json_string_value(json_array_get(pair, i)),
			tokens[i].text, BYTES);
	json_decref(merges);
	free(texts);
	free(tokens);
	(void)state;
}

static void test_last_token_of_a_text_counts(void **state)
{
	struct gguf_token tokens[] = {{"a", 1, GGUF_TOKEN_NORMAL, 0}, {"b", 1, GGUF_TOKEN_NORMAL, 0},
		{"ab", 2, GGUF_TOKEN_NORMAL, 9}, {"ba", 2, GGUF_TOKEN_NORMAL, 5},
		{"ab", 2, GGUF_TOKEN_NORMAL, 1}, {"bb", 2, GGUF_TOKEN_NORMAL, 0},
		{"bb", 2, GGUF_TOKEN_CONTROL, 0}};
	struct gguf_vocabulary vocabulary = {.tokens = tokens, .n = ARRAY_SIZE(tokens)};
	struct gguf_budget budget = {"tokenizer.json", 1000, 1000};
	struct model_error error = {""};
	json_t *merges;

	assert_int_equal(gguf_merges_of_scores(&vocabulary, "x.gguf", &budget, &merges, &error), 0);
	CLEANUP(cleanup_free) char *text = json_dumps(merges, JSON_COMPACT);
	assert_string_equal(text, "[[\"b\",\"a\"],[\"a\",\"b\"]]");
	json_decref(merges);
	(void)state;
}

/* The ids around an empty text. */
static void expect_ends(const struct scratch *scratch, struct gguf_file *file, const char *bos, const char *eos)
{
	struct mimeo_text *text = open_text(file, scratch);
	int32_t *ids;
	size_t n;

	assert_int_equal(mimeo_text_encode(text, "", 0, MIMEO_TEXT_SPECIAL, &ids, &n), 0);
	assert_int_equal(n, (*bos != 0) + (*eos != 0));
	if (*bos)
		assert_int_equal(ids[0], mimeo_text_id(text, bos));
	if (*eos)
		assert_int_equal(ids[n - 1], mimeo_text_id(text, eos));
	free(ids);
	mimeo_text_close(text);
}

static void test_begin_and_end_tokens_are_added_as_the_file_says(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	put_tokenizer(&file, "llama", "");
	expect_ends(*state, &file, "<s>", "");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_tokenizer(&file, "llama", "");
	put_uint(put_key(&file, "tokenizer.ggml.add_bos_token", GGUF_BOOL), 0, 1);
	put_uint(put_key(&file, "tokenizer.ggml.add_eos_token", GGUF_BOOL), 1, 1);
	expect_ends(*state, &file, "", "</s>");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_tokenizer(&file, "gpt2", "");
	expect_ends(*state, &file, "", "");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_tokenizer(&file, "gpt2", "");
	put_uint(put_key(&file, "tokenizer.ggml.add_bos_token", GGUF_BOOL), 1, 1);
	expect_ends(*state, &file, "<|begin|>", "");
}

static void test_space_prefix_is_left_out_where_the_file_says_so(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct mimeo_text *text;
	int32_t *ids;
	size_t n;

	put_tokenizer(&file, "llama", "");
	put_uint(put_key(&file, "tokenizer.ggml.add_space_prefix", GGUF_BOOL), 0, 1);
	text = open_text(&file, *state);
	assert_int_equal(mimeo_text_encode(text, "the", 3, 0, &ids, &n), 0);
	assert_int_not_equal(ids[0], mimeo_text_id(text, "\xe2\x96\x81the"));
	free(ids);
	mimeo_text_close(text);
}

static void test_chat_is_written_by_the_files_template(void **state)
{
	static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
	struct gguf_file file = GGUF_FILE_INIT;
	struct mimeo_text *text;
	char message[256], *output;
	size_t n;

	put_tokenizer(&file, "gpt2", "");
	put_text(&file, "tokenizer.chat_template",
		"{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}");
	text = open_text(&file, *state);
	if (mimeo_text_chat_render(text, chat, strlen(chat), &output, &n, message, sizeof(message)))
		fail_msg("%s", message);
	assert_string_equal(output, "<|begin|>hi<|end|>");
	free(output);
	mimeo_text_close(text);
}

static void test_file_without_a_tokenizer_has_no_text_files(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct mimeo_model_files *files;
	struct model_error error = {""};

	put_tokenizer(&file, "gpt2", "tokenizer.ggml.model");
	assert_int_equal(load(&file, *state, &files, &error), 0);
	assert_int_equal(files->tokenizer, -1);
	assert_int_equal(files->config, -1);
	text_files_free(files);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		scratch_test(test_texts_get_the_ids_of_the_reference),
		scratch_test(test_ids_give_back_their_text),
		scratch_test(test_user_defined_token_in_literal_text_is_text),
		scratch_test(test_added_tokens_keep_their_ids_where_two_tokens_are_the_same),
		scratch_test(test_added_tokens_that_merges_make_stay_in_the_vocabulary),
		scratch_test(test_pieces_are_made_of_normal_tokens_only),
		scratch_test(test_tokens_of_fields_and_known_ends_are_special_without_a_type),
		cmocka_unit_test(test_last_token_of_a_text_counts),
		cmocka_unit_test(test_thue_morse_texts_have_different_hashes),
		cmocka_unit_test(test_merges_of_thue_morse_tokens_are_found),
		scratch_test(test_begin_and_end_tokens_are_added_as_the_file_says),
		scratch_test(test_space_prefix_is_left_out_where_the_file_says_so),
		scratch_test(test_chat_is_written_by_the_files_template),
		scratch_test(test_file_without_a_tokenizer_has_no_text_files),
	};

	return cmocka_run_group_tests_name("gguf_tokenizer", tests, read_data, free_data);
}
