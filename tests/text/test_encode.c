/* SPDX-License-Identifier: MIT */

/* Encoding and decoding: bytes that are no UTF-8, special tokens that a user wrote, long texts,
 * limits. */

#include <stdlib.h>
#include <string.h>

#include "sdk/text/text_internal.h"
#include "tests/random.h"
#include "tests/text/fixture.h"

/* Encode and decode again; the caller's to free. */
static char *round_trip(
	const struct mimeo_text *text, const char *input, size_t length, size_t *ret_length)
{
	int32_t *ids;
	size_t n;
	char *utf8;

	assert_int_equal(mimeo_text_encode(text, input, length, 0, &ids, &n), 0);
	assert_int_equal(mimeo_text_decode(text, ids, n, 0, &utf8, ret_length), 0);
	free(ids);
	return utf8;
}

static void test_invalid_bytes_become_replacements_as_in_python(void **state)
{
	/* what bytes.decode("utf-8", "replace") gives */
	static const struct {
		const char *bytes, *expected;
	} cases[] = {
		{"a\xff"
		 "b",
			"a\xef\xbf\xbd"
			"b"},
		{"\xe2\x82", "\xef\xbf\xbd"},
		{"\xe2\x82"
		 "a",
			"\xef\xbf\xbd"
			"a"},
		{"\xf0\x9f\x98\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
		{"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xe0\x9f\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
	};
	struct mimeo_text *text = fixture_open_bytes();

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		size_t length;
		char *got = round_trip(text, cases[i].bytes, strlen(cases[i].bytes), &length);

		assert_string_equal(got, cases[i].expected);
		free(got);
	}
	mimeo_text_close(text);
}

static void test_bytes_come_back_for_any_valid_text(void **state)
{
	json_t *table = fixture_load();
	struct mimeo_text *text = fixture_open(table, fixture_find(table, "BPE over bytes"));
	uint64_t random = 7;
	char input[4 * 400];

	for (int round = 0; round < 200; round++) {
		size_t n = 0, length;

		for (int i = 0; i < 400; i++) {
			uint32_t c =
				(uint32_t)(random_u64(&random) % (round % 2 ? 0x110000 : 0x80));

			if (c < 0xd800 || c > 0xdfff)
				n += utf8_encode(input + n, c);
		}
		char *got = round_trip(text, input, n, &length);
		assert_int_equal(length, n);
		assert_memory_equal(got, input, n);
		free(got);
	}
	mimeo_text_close(text);
	json_decref(table);
}

static void assert_encodes(const struct tokenizer *tokenizer, const char *input,
	const uint8_t *foreign, uint32_t flags, const int32_t *expected, size_t n_expected)
{
	int32_t *ids;
	size_t n;

	assert_int_equal(
		tokenizer_encode(tokenizer, input, strlen(input), foreign, flags, &ids, &n), 0);
	assert_int_equal(n, n_expected);
	assert_memory_equal(ids, expected, n * sizeof(*ids));
	free(ids);
}

static void test_special_tokens_of_a_user_stay_text(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const struct tokenizer *tokenizer = text->tokenizer;
	const char input[] = "<a>x<a><b>";
	const int32_t tokens[] = {256, 'x', 256, 257},
		      literal[] = {'<', 'a', '>', 'x', '<', 'a', '>', '<', 'b', '>'};
	const int32_t mixed[] = {256, 'x', '<', 'a', '>', 257};
	uint8_t foreign[sizeof(input) - 1] = {0};

	assert_encodes(tokenizer, input, NULL, 0, tokens, 4);
	assert_encodes(tokenizer, input, foreign, 0, tokens, 4);
	assert_encodes(tokenizer, input, NULL, MIMEO_TEXT_LITERAL, literal, 10);
	/* one foreign byte in the second <a> */
	foreign[5] = 1;
	assert_encodes(tokenizer, input, foreign, 0, mixed, 6);
	memset(foreign, 1, sizeof(foreign));
	assert_encodes(tokenizer, input, foreign, 0, literal, 10);
	mimeo_text_close(text);
}

/* <|User|> is not special in some files; "ab" is a token of the model, too, and b a normalized one.
 */
static void test_added_tokens_that_no_text_gives_stay_text(void **state)
{
	static const char json[] =
		"{\"added_tokens\":[{\"content\":\"<u>\",\"special\":false,\"normalized\":false},"
		"{\"content\":\"ab\",\"special\":false,\"normalized\":false},"
		"{\"content\":\"bb\",\"special\":false,\"normalized\":true}],"
		"\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"<\":0,\"u\":1,\">\":2,"
		"\"a\":3,\"b\":4,\"ab\":5}}}";
	const char input[] = "<u>abbb";
	const int32_t tokens[] = {6, 5, 7}, literal[] = {0, 1, 2, 5, 7};
	uint8_t foreign[sizeof(input) - 1];
	char message[256] = "";
	struct mimeo_text *text;

	if (fixture_open_json(&text, json, message, sizeof(message)) < 0)
		fail_msg("%s", message);
	memset(foreign, 1, sizeof(foreign));
	assert_encodes(text->tokenizer, input, NULL, 0, tokens, 3);
	assert_encodes(text->tokenizer, input, NULL, MIMEO_TEXT_LITERAL, literal, 5);
	assert_encodes(text->tokenizer, input, foreign, 0, literal, 5);
	mimeo_text_close(text);
}

static void test_foreign_bytes_are_known_behind_the_normalizer(void **state)
{
	static const char json[] =
		"{\"added_tokens\":[{\"content\":\"<t>\",\"special\":true,\"normalized\":true}],"
		"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{"
		"\"type\":\"Replace\","
		"\"pattern\":{\"String\":\"z\"},\"content\":\"tt\"}]},"
		"\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"<\":0,\"t\":1,\">\":2,"
		"\"\xc3\xa9\":3}}}";
	/* e and U+0301 become one character, so that what follows moves */
	const char input[] = "e\xcc\x81z<t><t>";
	const int32_t expected[] = {3, 1, 1, 0, 1, 2, 4};
	uint8_t foreign[sizeof(input) - 1] = {0};
	char message[256] = "";
	struct mimeo_text *text;

	if (fixture_open_json(&text, json, message, sizeof(message)) < 0)
		fail_msg("%s", message);
	memset(foreign, 1, strlen("e\xcc\x81z<t>"));
	assert_encodes(text->tokenizer, input, foreign, 0, expected, ARRAY_SIZE(expected));
	mimeo_text_close(text);
}

static void test_foreign_bytes_follow_repaired_ones(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const char input[] = "\xff<a>\xff<a>";
	const int32_t expected[] = {0xef, 0xbf, 0xbd, '<', 'a', '>', 0xef, 0xbf, 0xbd, 256};
	const uint8_t foreign[] = {1, 1, 1, 1, 0, 0, 0, 0};

	assert_encodes(text->tokenizer, input, foreign, 0, expected, ARRAY_SIZE(expected));
	mimeo_text_close(text);
}

/* A megabyte without a space takes quadratic time in some implementations: this test would not end.
 */
static void test_a_megabyte_without_a_space(void **state)
{
	json_t *table = fixture_load();
	static const char *const claims[] = {"BPE over bytes", "BPE with byte fallback", "Unigram",
		"WordPiece", "BPE with a continuing prefix and a suffix",
		"Split by an expression of GPT-4's kind"};
	static const char *const units[] = {"a", "testing", "-", "\xe4\xb8\x80", " ", "\n"};
	const size_t size = 1000000;
	char *input = malloc(size);

	assert_non_null(input);
	for (size_t c = 0; c < ARRAY_SIZE(claims); c++) {
		struct mimeo_text *text = fixture_open(table, fixture_find(table, claims[c]));

		for (size_t u = 0; u < ARRAY_SIZE(units); u++) {
			size_t unit = strlen(units[u]), length = size / unit * unit, n;
			int32_t *ids;

			for (size_t i = 0; i < length; i += unit)
				memcpy(input + i, units[u], unit);
			assert_int_equal(mimeo_text_encode(text, input, length, 0, &ids, &n), 0);
			free(ids);
		}
		mimeo_text_close(text);
	}
	free(input);
	json_decref(table);
}

static void test_marks_in_any_number_are_ordered(void **state)
{
	json_t *table = fixture_load();
	struct mimeo_text *text = fixture_open(table, fixture_find(table, "normalizer NFD"));
	const size_t n_marks = 200000;
	char *input = malloc(4 * n_marks + 1);
	int32_t *ids, *sorted;
	size_t n, n_sorted;

	assert_non_null(input);
	/* U+0301 has class 230, U+0323 has 220: all of these come first */
	input[0] = 'e';
	for (size_t i = 0; i < n_marks; i++)
		memcpy(input + 1 + 4 * i, "\xcc\x81\xcc\xa3", 4);
	assert_int_equal(mimeo_text_encode(text, input, 4 * n_marks + 1, 0, &ids, &n), 0);
	for (size_t i = 0; i < n_marks; i++) {
		memcpy(input + 1 + 2 * i, "\xcc\xa3", 2);
		memcpy(input + 1 + 2 * (n_marks + i), "\xcc\x81", 2);
	}
	assert_int_equal(mimeo_text_encode(text, input, 4 * n_marks + 1, 0, &sorted, &n_sorted), 0);
	assert_int_equal(n, n_sorted);
	assert_memory_equal(ids, sorted, n * sizeof(*ids));
	free(ids);
	free(sorted);
	free(input);
	mimeo_text_close(text);
	json_decref(table);
}

/* 300000 spaces become more than 1 GiB. */
static void test_text_that_a_normalizer_makes_too_long_is_refused(void **state)
{
	const size_t size = 300000;
	char json[8192], content[4097], message[256] = "", *input = malloc(size);
	struct mimeo_text *text;
	int32_t *ids;
	size_t n;

	assert_non_null(input);
	memset(input, ' ', size);
	memset(content, 'x', sizeof(content) - 1);
	content[sizeof(content) - 1] = '\0';
	snprintf(json, sizeof(json),
		"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
		"\"},\"content\":\"%s\"},"
		"\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\" \":0,\"x\":1}}}",
		content);
	if (fixture_open_json(&text, json, message, sizeof(message)) < 0)
		fail_msg("%s", message);
	assert_int_equal(mimeo_text_encode(text, input, size, 0, &ids, &n), MIMEO_E_TOO_LONG);
	free(input);
	mimeo_text_close(text);
}

static void test_empty_text_has_no_ids_but_a_result(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	int32_t *ids = NULL;
	char *utf8 = NULL;
	size_t n = 1;

	assert_int_equal(mimeo_text_encode(text, "", 0, 0, &ids, &n), 0);
	assert_int_equal(n, 0);
	assert_non_null(ids);
	assert_int_equal(mimeo_text_decode(text, ids, 0, 0, &utf8, &n), 0);
	assert_int_equal(n, 0);
	assert_string_equal(utf8, "");
	free(ids);
	free(utf8);
	mimeo_text_close(text);
}

static void test_limits_and_flags(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	int32_t *ids;
	char *utf8;
	size_t n;

	/* the length is looked at before the text */
	assert_int_equal(mimeo_text_encode(text, "", (size_t)MIMEO_TEXT_MAX + 1, 0, &ids, &n),
		MIMEO_E_TOO_LONG);
	assert_int_equal(
		mimeo_text_encode(text, "", 0, MIMEO_TEXT_SKIP_SPECIAL, &ids, &n), MIMEO_E_INVALID);
	assert_int_equal(
		mimeo_text_decode(text, NULL, 0, MIMEO_TEXT_SPECIAL, &utf8, &n), MIMEO_E_INVALID);
	mimeo_text_close(text);
}

static void test_ids_of_tokens(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();

	assert_int_equal(mimeo_text_id(text, "A"), 'A');
	assert_int_equal(mimeo_text_id(text, "<b>"), 257);
	assert_int_equal(mimeo_text_id(text, "AA"), -1);
	assert_int_equal(mimeo_text_id(text, ""), -1);
	assert_int_equal(mimeo_text_vocab_size(text), 258);
	mimeo_text_close(text);
}

static void test_unknown_character_without_an_unknown_token(void **state)
{
	static const char *const models[] = {
		"{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0},\"unk_token\":\"?\"}",
		"{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}",
		"{\"type\":\"WordPiece\",\"vocab\":{\"a\":0,\"##a\":1},\"unk_token\":\"?\","
		"\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":10}",
		"{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"aa\":1},\"unk_token\":\"?\"}",
	};

	for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
		char json[512], message[256] = "";
		struct mimeo_text *text;
		int32_t *ids;
		size_t n;

		snprintf(json, sizeof(json), "{\"model\":%s}", models[i]);
		if (fixture_open_json(&text, json, message, sizeof(message)) < 0)
			fail_msg("%s", message);
		assert_int_equal(mimeo_text_encode(text, "aa", 2, 0, &ids, &n), 0);
		free(ids);
		assert_int_equal(mimeo_text_encode(text, "ab", 2, 0, &ids, &n), MIMEO_E_INVALID);
		mimeo_text_close(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_invalid_bytes_become_replacements_as_in_python),
		cmocka_unit_test(test_bytes_come_back_for_any_valid_text),
		cmocka_unit_test(test_special_tokens_of_a_user_stay_text),
		cmocka_unit_test(test_added_tokens_that_no_text_gives_stay_text),
		cmocka_unit_test(test_foreign_bytes_are_known_behind_the_normalizer),
		cmocka_unit_test(test_foreign_bytes_follow_repaired_ones),
		cmocka_unit_test(test_a_megabyte_without_a_space),
		cmocka_unit_test(test_marks_in_any_number_are_ordered),
		cmocka_unit_test(test_text_that_a_normalizer_makes_too_long_is_refused),
		cmocka_unit_test(test_empty_text_has_no_ids_but_a_result),
		cmocka_unit_test(test_limits_and_flags),
		cmocka_unit_test(test_ids_of_tokens),
		cmocka_unit_test(test_unknown_character_without_an_unknown_token),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
