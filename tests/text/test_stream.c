/* SPDX-License-Identifier: MIT */

/* Streams: stop strings, what is held back, and what came before. The tokens are bytes. */

#include <stdlib.h>
#include <string.h>

#include "sdk/text/utf8.h"
#include "tests/text/fixture.h"

struct outcome {
	char text[4096];
	size_t length;
	int stopped;  /* index of the stop string */
	size_t n_ids; /* pushed when it was found */
};

/* Push `input` byte by byte. */
static struct outcome stream(
	const struct mimeo_text *text, const char *input, const char *const *stop, uint32_t n_stop)
{
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;
	struct mimeo_text_stream *s;
	struct outcome outcome = {.stopped = -1};
	const char *utf8;
	size_t n;
	int rc = 0;

	config.stop = stop;
	config.n_stop = n_stop;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), 0);
	for (const char *at = input; *at && rc == 0; at++) {
		int32_t id = (unsigned char)*at;

		rc = mimeo_text_stream_push(s, &id, 1, &utf8, &n);
		assert_true(rc == 0 || rc == 1);
		assert_int_equal(utf8_valid(utf8, n), n);
		memcpy(outcome.text + outcome.length, utf8, n);
		outcome.length += n;
		outcome.n_ids++;
	}
	assert_int_equal(mimeo_text_stream_end(s, &utf8, &n), 0);
	memcpy(outcome.text + outcome.length, utf8, n);
	outcome.length += n;
	outcome.text[outcome.length] = '\0';
	outcome.stopped = mimeo_text_stream_stopped(s);
	assert_int_equal(rc == 1, outcome.stopped >= 0);
	mimeo_text_stream_free(s);
	return outcome;
}

static void test_stop_string_ends_the_text(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const char *const stop[] = {"STOP"};
	struct outcome outcome = stream(text, "a STSTOP and more", stop, 1);

	assert_string_equal(outcome.text, "a ST");
	assert_int_equal(outcome.stopped, 0);
	assert_int_equal(outcome.n_ids, strlen("a STSTOP"));
	mimeo_text_close(text);
}

static void test_beginning_of_a_stop_string_is_text_in_the_end(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const char *const stop[] = {"STOP"};
	struct outcome outcome = stream(text, "a STO", stop, 1);

	assert_string_equal(outcome.text, "a STO");
	assert_int_equal(outcome.stopped, -1);
	mimeo_text_close(text);
}

static struct mimeo_text_stream *stream_until(const struct mimeo_text *text, const char *stop)
{
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;
	struct mimeo_text_stream *s;

	config.stop = &stop;
	config.n_stop = 1;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), 0);
	return s;
}

static void test_beginning_of_a_stop_string_is_held_back(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const int32_t ids[] = {'x', 'a', 'b', 'a'};
	struct mimeo_text_stream *s = stream_until(text, "abab");
	const char *utf8;
	size_t n;

	assert_int_equal(mimeo_text_stream_push(s, ids, 4, &utf8, &n), 0);
	assert_string_equal(utf8, "x");
	/* "abac": only the last a may begin a stop string, and c does not go on with it */
	assert_int_equal(mimeo_text_stream_push(s, (int32_t[]){'c'}, 1, &utf8, &n), 0);
	assert_string_equal(utf8, "abac");
	mimeo_text_stream_free(s);
	mimeo_text_close(text);
}

static void test_longest_of_stop_strings_that_end_together(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const char *const stop[] = {"c", "abc", "bc"};
	struct outcome outcome = stream(text, "xabcx", stop, 3);

	assert_string_equal(outcome.text, "x");
	assert_int_equal(outcome.stopped, 1);
	mimeo_text_close(text);
}

static void test_first_complete_stop_string_counts(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const char *const stop[] = {"xabcd", "b"};
	struct outcome outcome = stream(text, "xabcd", stop, 2);

	assert_string_equal(outcome.text, "xa");
	assert_int_equal(outcome.stopped, 1);
	mimeo_text_close(text);
}

static void test_stop_string_of_characters_of_several_bytes(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const char *const stop[] = {"é!"};
	/* è has the first byte of é */
	struct outcome outcome = stream(text, "è é è!é!x", stop, 1);

	assert_string_equal(outcome.text, "è é è!");
	assert_int_equal(outcome.stopped, 0);
	mimeo_text_close(text);
}

static void test_ids_behind_a_stop_string_are_ignored(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	const int32_t ids[] = {'a', 'b', 'c', 'd'};
	struct mimeo_text_stream *s = stream_until(text, "b");
	const char *utf8;
	size_t n;

	assert_int_equal(mimeo_text_stream_push(s, ids, 4, &utf8, &n), 1);
	assert_string_equal(utf8, "a");
	assert_int_equal(mimeo_text_stream_push(s, ids, 4, &utf8, &n), 1);
	assert_string_equal(utf8, "");
	assert_int_equal(mimeo_text_stream_end(s, &utf8, &n), 0);
	assert_string_equal(utf8, "");
	mimeo_text_stream_free(s);
	mimeo_text_close(text);
}

static void test_part_of_a_character_becomes_a_replacement_at_the_end(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	struct outcome outcome = stream(text, "a\xf0\x9f\x98", NULL, 0);

	assert_string_equal(outcome.text, "a\xef\xbf\xbd");
	mimeo_text_close(text);
}

static void test_push_behind_the_end_is_refused(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	struct mimeo_text_stream *s;
	const char *utf8;
	size_t n;

	assert_int_equal(mimeo_text_stream_new(&s, text, NULL), 0);
	assert_int_equal(mimeo_text_stream_end(s, &utf8, &n), 0);
	assert_int_equal(
		mimeo_text_stream_push(s, (int32_t[]){'a'}, 1, &utf8, &n), MIMEO_E_INVALID);
	mimeo_text_stream_free(s);
	mimeo_text_close(text);
}

static void test_special_tokens_are_left_out_on_request(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;
	const int32_t ids[] = {'a', 256, 'b', 257, 9999, -1};
	struct mimeo_text_stream *s;
	const char *utf8;
	size_t n;

	config.flags = MIMEO_TEXT_SKIP_SPECIAL;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), 0);
	assert_int_equal(mimeo_text_stream_push(s, ids, 6, &utf8, &n), 0);
	assert_string_equal(utf8, "ab");
	mimeo_text_stream_free(s);
	assert_int_equal(mimeo_text_stream_new(&s, text, NULL), 0);
	assert_int_equal(mimeo_text_stream_push(s, ids, 6, &utf8, &n), 0);
	assert_string_equal(utf8, "a<a>b<b>");
	mimeo_text_stream_free(s);
	mimeo_text_close(text);
}

static void test_ids_before_decide_about_a_leading_space(void **state)
{
	json_t *table = fixture_load();
	struct mimeo_text *text =
		fixture_open(table, fixture_find(table, "BPE with byte fallback"));
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;
	struct mimeo_text_stream *s;
	int32_t *ids;
	const char *utf8;
	size_t n_ids, n;

	assert_int_equal(mimeo_text_encode(text, "test", 4, 0, &ids, &n_ids), 0);
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), 0);
	assert_int_equal(mimeo_text_stream_push(s, ids, n_ids, &utf8, &n), 0);
	assert_string_equal(utf8, "test");
	mimeo_text_stream_free(s);
	config.before = ids;
	config.n_before = n_ids;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), 0);
	assert_int_equal(mimeo_text_stream_push(s, ids, n_ids, &utf8, &n), 0);
	assert_string_equal(utf8, " test");
	mimeo_text_stream_free(s);
	free(ids);
	mimeo_text_close(text);
	json_decref(table);
}

/* The text that `id` gives behind `before`. */
static void check_behind(const struct mimeo_text *text, const int32_t *before, size_t n_before,
	int32_t id, const char *expected)
{
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;
	struct mimeo_text_stream *s;
	const char *utf8;
	size_t n;

	config.before = before;
	config.n_before = n_before;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), 0);
	assert_int_equal(mimeo_text_stream_push(s, &id, 1, &utf8, &n), 0);
	assert_string_equal(utf8, expected);
	mimeo_text_stream_free(s);
}

static void test_bytes_before_are_not_part_of_the_text(void **state)
{
	json_t *table = fixture_load();
	struct mimeo_text *text =
		fixture_open(table, fixture_find(table, "BPE with byte fallback"));
	const int32_t test = mimeo_text_id(text, "\xe2\x96\x81test"),
		      before[] = {test, mimeo_text_id(text, "<0x0A>")};

	check_behind(text, before, 2, test, " test");
	check_behind(text, before + 1, 1, test, " test");
	mimeo_text_close(text);
	json_decref(table);
}

static void test_half_a_character_before_is_not_part_of_the_text(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();

	check_behind(text, (const int32_t[]){'a', 0xc3}, 2, 'b', "b");
	mimeo_text_close(text);
}

static void test_end_of_a_word_before_is_a_space_in_the_text(void **state)
{
	char message[256] = "";
	struct mimeo_text *text;

	if (fixture_open_json(&text,
		    "{\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"},"
		    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a</w>\":0,\"b\":1},\"merges\":[]}}",
		    message, sizeof(message)) < 0)
		fail_msg("%s", message);
	check_behind(text, (const int32_t[]){0}, 1, 1, " b");
	mimeo_text_close(text);
}

static void test_wrong_configurations_are_refused(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	struct mimeo_text_stream_config config = MIMEO_TEXT_STREAM_CONFIG_INIT;
	char many[MIMEO_TEXT_STOP_BYTES + 2];
	const char *stop[MIMEO_TEXT_STOP_MAX + 1];
	struct mimeo_text_stream *s;

	memset(many, 'a', sizeof(many));
	many[sizeof(many) - 1] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(stop); i++)
		stop[i] = "a";
	config.stop = stop;
	config.n_stop = MIMEO_TEXT_STOP_MAX + 1;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), MIMEO_E_INVALID);
	config.n_stop = 2;
	for (int i = 0; i < 3; i++) {
		stop[1] = i == 0 ? "" : i == 1 ? many : "\xff";
		assert_int_equal(mimeo_text_stream_new(&s, text, &config), MIMEO_E_INVALID);
	}
	many[MIMEO_TEXT_STOP_BYTES] = '\0';
	stop[1] = many;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), 0);
	mimeo_text_stream_free(s);
	config.flags = MIMEO_TEXT_SPECIAL;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), MIMEO_E_INVALID);
	config.flags = 0;
	config.size = 4;
	assert_int_equal(mimeo_text_stream_new(&s, text, &config), MIMEO_E_INVALID);
	mimeo_text_close(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stop_string_ends_the_text),
		cmocka_unit_test(test_beginning_of_a_stop_string_is_text_in_the_end),
		cmocka_unit_test(test_beginning_of_a_stop_string_is_held_back),
		cmocka_unit_test(test_longest_of_stop_strings_that_end_together),
		cmocka_unit_test(test_first_complete_stop_string_counts),
		cmocka_unit_test(test_stop_string_of_characters_of_several_bytes),
		cmocka_unit_test(test_ids_behind_a_stop_string_are_ignored),
		cmocka_unit_test(test_part_of_a_character_becomes_a_replacement_at_the_end),
		cmocka_unit_test(test_push_behind_the_end_is_refused),
		cmocka_unit_test(test_special_tokens_are_left_out_on_request),
		cmocka_unit_test(test_ids_before_decide_about_a_leading_space),
		cmocka_unit_test(test_bytes_before_are_not_part_of_the_text),
		cmocka_unit_test(test_half_a_character_before_is_not_part_of_the_text),
		cmocka_unit_test(test_end_of_a_word_before_is_a_space_in_the_text),
		cmocka_unit_test(test_wrong_configurations_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
