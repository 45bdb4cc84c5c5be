/* SPDX-License-Identifier: MIT */

/* Every entry of tokenizers.json: ids and text are those of Hugging Face's tokenizers, and a stream
 * gives the text that decoding at once gives. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/utf8.h"
#include "tests/text/fixture.h"

static json_t *table;

static void assert_ids(const int32_t *ids, size_t n, const json_t *expected, const char *input)
{
	for (size_t i = 0; i < n && i < json_array_size(expected); i++) {
		if (ids[i] != json_integer_value(json_array_get(expected, i)))
			fail_msg("\"%s\": id %zu is %d, expected %lld", input, i, ids[i],
				json_integer_value(json_array_get(expected, i)));
	}
	if (n != json_array_size(expected))
		fail_msg("\"%s\": %zu ids, expected %zu", input, n, json_array_size(expected));
}

/* What is left out of a case is as `other` is. */
static const json_t *case_member(const json_t *given, const char *key, const char *other)
{
	const json_t *member = json_object_get(given, key);

	return member ? member : json_object_get(given, other);
}

static void check_encode(
	const struct mimeo_text *text, const json_t *given, uint32_t flags, const json_t *expected)
{
	const json_t *input = json_object_get(given, "text");
	int32_t *ids;
	size_t n;

	assert_int_equal(mimeo_text_encode(text, json_string_value(input),
				 json_string_length(input), flags, &ids, &n),
		0);
	assert_ids(ids, n, expected, json_string_value(input));
	free(ids);
}

static size_t case_ids(const json_t *given, int32_t *ids, size_t capacity)
{
	const json_t *special = case_member(given, "special", "ids");
	size_t n = json_array_size(special);

	assert_true(n <= capacity);
	for (size_t i = 0; i < n; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(special, i));
	return n;
}

static void check_decode(
	const struct mimeo_text *text, const json_t *given, uint32_t flags, const json_t *expected)
{
	int32_t ids[512];
	size_t n = case_ids(given, ids, ARRAY_SIZE(ids)), length;
	char *utf8;

	assert_int_equal(mimeo_text_decode(text, ids, n, flags, &utf8, &length), 0);
	if (length != json_string_length(expected) ||
		memcmp(utf8, json_string_value(expected), length) != 0)
		fail_msg("decoded \"%s\", expected \"%s\"", utf8, json_string_value(expected));
	assert_int_equal(utf8[length], 0);
	free(utf8);
}

static void test_ids_and_text(void **state)
{
	const json_t *entry = *state, *cases = json_object_get(entry, "cases");
	struct mimeo_text *text = fixture_open(table, entry);

	for (size_t i = 0; i < json_array_size(cases); i++) {
		const json_t *given = json_array_get(cases, i);

		check_encode(text, given, 0, json_object_get(given, "ids"));
		check_encode(text, given, MIMEO_TEXT_SPECIAL, case_member(given, "special", "ids"));
		check_encode(text, given, MIMEO_TEXT_LITERAL, case_member(given, "literal", "ids"));
		check_decode(text, given, 0, json_object_get(given, "decoded"));
		check_decode(text, given, MIMEO_TEXT_SKIP_SPECIAL,
			case_member(given, "skipped", "decoded"));
	}
	mimeo_text_close(text);
}

/* ---- streams ---- */

static void collect(char *out, size_t size, size_t *length, const char *utf8, size_t n)
{
	/* never half a character */
	assert_int_equal(utf8_valid(utf8, n), n);
	assert_int_equal(utf8[n], 0);
	assert_true(*length + n <= size);
	memcpy(out + *length, utf8, n);
	*length += n;
}

/* Push the ids in parts of `step`, the first one of `first` ids. */
static void check_stream(const struct mimeo_text *text, const int32_t *ids, size_t n, size_t first,
	size_t step, const json_t *expected)
{
	struct mimeo_text_stream *stream;
	char out[8192];
	const char *utf8;
	size_t length = 0, n_utf8;

	assert_int_equal(mimeo_text_stream_new(&stream, text, NULL), 0);
	for (size_t at = 0, part = first; at < n; at += part, part = step) {
		if (part > n - at)
			part = n - at;
		assert_int_equal(mimeo_text_stream_push(stream, ids + at, part, &utf8, &n_utf8), 0);
		collect(out, sizeof(out), &length, utf8, n_utf8);
	}
	assert_int_equal(mimeo_text_stream_end(stream, &utf8, &n_utf8), 0);
	collect(out, sizeof(out), &length, utf8, n_utf8);
	if (length != json_string_length(expected) ||
		memcmp(out, json_string_value(expected), length) != 0)
		fail_msg("streamed \"%.*s\" in parts of %zu, expected \"%s\"", (int)length, out,
			step, json_string_value(expected));
	mimeo_text_stream_free(stream);
}

static void test_streams_as_decoded(void **state)
{
	const json_t *entry = *state, *cases = json_object_get(entry, "cases");
	struct mimeo_text *text = fixture_open(table, entry);
	int32_t ids[512];

	for (size_t i = 0; i < json_array_size(cases); i++) {
		const json_t *given = json_array_get(cases, i),
			     *expected = json_object_get(given, "decoded");
		size_t n = case_ids(given, ids, ARRAY_SIZE(ids));

		check_stream(text, ids, n, 1, 1, expected);
		/* every place to cut in two */
		for (size_t first = 2; first < n; first++)
			check_stream(text, ids, n, first, n, expected);
	}
	mimeo_text_close(text);
}

int main(void)
{
	table = fixture_load();
	const json_t *entries = json_object_get(table, "entries");
	size_t n = json_array_size(entries);
	struct CMUnitTest *tests = calloc(2 * n, sizeof(*tests));
	char(*names)[160] = calloc(2 * n, sizeof(*names));

	if (!tests || !names || n == 0)
		return 1;
	for (size_t i = 0; i < 2 * n; i++) {
		json_t *entry = json_array_get(entries, i / 2);

		snprintf(names[i], sizeof(names[i]), "%s: %s",
			json_string_value(json_object_get(entry, "claim")),
			i % 2 == 0 ? "ids and text are those of tokenizers"
				   : "a stream gives what decoding gives");
		tests[i] = (struct CMUnitTest){.name = names[i],
			.test_func = i % 2 == 0 ? test_ids_and_text : test_streams_as_decoded,
			.initial_state = entry};
	}
	int failed = _cmocka_run_group_tests("tokenizers", tests, 2 * n, NULL, NULL);
	free(names);
	free(tests);
	json_decref(table);
	return failed;
}
