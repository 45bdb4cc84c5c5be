/* SPDX-License-Identifier: MIT */

/*
 * The tokenizer of a GGUF file, as libmimeo-text reads what is made of it: ids of tokenizers.json
 * (tests/data/make_gguf_tokenizers.py).
 */
#include "tests/model/gguf_file.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <mimeo/text.h>

#include "daemon/model/field.h"
#include "daemon/model/gguf_hash.h"
#include "daemon/model/gguf_tokenizer.h"
#include "daemon/model/gguf_vocabulary.h"
#include "daemon/model/text_files.h"

static json_t *data;

static int read_data(void **state)
{
	char path[512];

	source_path("tests/data/gguf/tokenizers.json", path);
	data = json_load_file(path, 0, NULL);
	return data ? 0 : -1;
}

static int free_data(void **state)
{
	json_decref(data);
	return 0;
}

/* ---- files ---- */

static void put_strings(struct gguf_file *file, const char *key, const json_t *list)
{
	struct gguf_bytes *to = put_array(file, key, GGUF_STRING, json_array_size(list));

	for (size_t i = 0; i < json_array_size(list); i++)
		put_string(to, json_string_value(json_array_get(list, i)));
}

static void put_numbers(struct gguf_file *file, const char *key, enum gguf_value type, const json_t *list)
{
	struct gguf_bytes *to = put_array(file, key, type, json_array_size(list));

	for (size_t i = 0; i < json_array_size(list); i++) {
		double value = json_number_value(json_array_get(list, i));

		if (type == GGUF_F32)
			put_bytes(to, &(float){(float)value}, 4);
		else
			put_uint(to, (uint64_t)(int64_t)value, 4);
	}
}

/* A file's tokenizer, but for one field and its pre-tokenizer's name. */
static void put_tokenizer(struct gguf_file *file, const char *model, const char *without)
{
	const json_t *v = json_object_get(json_object_get(data, "vocabularies"), model);

	if (strcmp(without, "tokenizer.ggml.model"))
		put_text(file, "tokenizer.ggml.model", model);
	if (strcmp(without, "tokenizer.ggml.tokens"))
		put_strings(file, "tokenizer.ggml.tokens", json_object_get(v, "tokens"));
	if (strcmp(without, "tokenizer.ggml.token_type"))
		put_numbers(file, "tokenizer.ggml.token_type", GGUF_I32, json_object_get(v, "types"));
	if (json_object_get(v, "scores") && strcmp(without, "tokenizer.ggml.scores"))
		put_numbers(file, "tokenizer.ggml.scores", GGUF_F32, json_object_get(v, "scores"));
	if (json_object_get(v, "merges") && strcmp(without, "tokenizer.ggml.merges"))
		put_strings(file, "tokenizer.ggml.merges", json_object_get(v, "merges"));
	put_u32(file, "tokenizer.ggml.bos_token_id",
		(uint32_t)json_integer_value(json_object_get(v, "bos")));
	put_u32(file, "tokenizer.ggml.eos_token_id",
		(uint32_t)json_integer_value(json_object_get(v, "eos")));
	if (!strcmp(model, "llama"))
		put_u32(file, "tokenizer.ggml.unknown_token_id", 0);
}

struct token {
	const char *text;
	enum gguf_token_type type;
};

/* A tokenizer of these tokens, without merges and with scores of 0; no types if the first one is 0. */
static void put_tokens(
	struct gguf_file *file, const char *model, const struct token *tokens, size_t n)
{
	struct gguf_bytes *to;

	put_text(file, "tokenizer.ggml.model", model);
	to = put_array(file, "tokenizer.ggml.tokens", GGUF_STRING, n);
	for (size_t i = 0; i < n; i++)
		put_string(to, tokens[i].text);
	if (tokens[0].type)
		to = put_array(file, "tokenizer.ggml.token_type", GGUF_I32, n);
	for (size_t i = 0; i < n && tokens[0].type; i++)
		put_uint(to, tokens[i].type, 4);
	to = put_array(file, "tokenizer.ggml.scores", GGUF_F32, n);
	for (size_t i = 0; i < n; i++)
		put_uint(to, 0, 4);
}

static int load(struct gguf_file *file, const struct scratch *scratch, struct mimeo_model_files **ret,
	struct model_error *error)
{
	struct gguf_bytes bytes = gguf_file_finish(file);
	char path[256];

	scratch_write(scratch, "m.gguf", bytes.data, bytes.n);
	free(bytes.data);
	scratch_path(scratch, "m.gguf", path);
	return text_files_load(path, ret, error);
}

static struct mimeo_text *open_text(struct gguf_file *file, const struct scratch *scratch)
{
	struct model_error error = {""};
	struct mimeo_model_files *files;
	struct mimeo_text *text;
	char message[256];

	if (load(file, scratch, &files, &error))
		fail_msg("%s", error.text);
	if (mimeo_text_open_files(&text, files, message, sizeof(message)))
		fail_msg("%s", message);
	text_files_free(files);
	return text;
}

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

static const struct token marks[] = {{"<", GGUF_TOKEN_NORMAL}, {"t", GGUF_TOKEN_NORMAL},
	{">", GGUF_TOKEN_NORMAL}, {"<t>", GGUF_TOKEN_USER_DEFINED}, {"<end>", GGUF_TOKEN_CONTROL},
	{"t>", GGUF_TOKEN_USER_DEFINED}, {"[PAD6]", GGUF_TOKEN_UNUSED}, {"[PAD7]", GGUF_TOKEN_UNUSED}};

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

	return cmocka_run_group_tests_name("gguf_tokenizer", tests, read_data, free_data);
}
