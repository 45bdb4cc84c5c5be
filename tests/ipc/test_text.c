/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "ipc/text.h"
#include "tests/ipc/test.h"

static void assert_refused(const char *text)
{
	assert_int_equal(text_step(text, strlen(text)), 0);
	assert_false(text_is_clean(text, strlen(text)));
}

static void test_text_steps_over_characters_of_each_length(void **state)
{
	assert_int_equal(text_step(" ", 1), 1);
	assert_int_equal(text_step("~x", 2), 1);
	assert_int_equal(text_step("\xc2\xa0", 2), 2);         /* the first after the controls */
	assert_int_equal(text_step("\xdf\xbf", 2), 2);
	assert_int_equal(text_step("\xe0\xa0\x80", 3), 3);
	assert_int_equal(text_step("\xed\x9f\xbf", 3), 3);     /* the last before the surrogates */
	assert_int_equal(text_step("\xee\x80\x80", 3), 3);
	assert_int_equal(text_step("\xf0\x90\x80\x80", 4), 4);
	assert_int_equal(text_step("\xf4\x8f\xbf\xbf", 4), 4); /* U+10FFFF */
	assert_true(text_is_clean("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", 15));
	assert_true(text_is_clean("", 0));
}

static void test_text_of_control_characters_is_refused(void **state)
{
	static const char *const texts[] = {
		"\x01", "\n", "\x1b", "\x1f", "\x7f", "\xc2\x80", "\xc2\x9b", "\xc2\x9f"};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		assert_refused(texts[i]);
	assert_int_equal(text_step("", 1), 0);
	assert_false(text_is_clean("a\0b", 3));
}

static void test_text_that_is_malformed_is_refused(void **state)
{
	static const char *const texts[] = {
		"\x80", "\xbf",                     /* a continuation alone */
		"\xc0\xaf", "\xc1\xbf",             /* overlong */
		"\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
		"\xed\xa0\x80", "\xed\xbf\xbf",     /* surrogates */
		"\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80", "\xff",
		"\xc3", "\xe2\x82", "\xf0\x9f\x98", /* cut off */
		"\xc3(", "\xe2(\xa1", "\xe2\x82(", "\xf0\x9f\x98("};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		assert_refused(texts[i]);
}

static void test_text_that_breaks_lines_or_turns_around_is_refused(void **state)
{
	static const char *const texts[] = {
		"\xe2\x80\xa8", "\xe2\x80\xa9",             /* line, paragraph */
		"\xe2\x80\xaa", "\xe2\x80\xae",             /* embeddings, overrides */
		"\xe2\x81\xa6", "\xe2\x81\xa9",             /* isolates */
		"\xd8\x9c", "\xe2\x80\x8e", "\xe2\x80\x8f"}; /* marks */

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		assert_refused(texts[i]);
	/* Their neighbours are ordinary characters. */
	assert_true(text_is_clean("\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa", 12));
}

static void test_text_is_read_no_further_than_it_goes(void **state)
{
	assert_int_equal(text_step("\xc3\xbc", 1), 0);
	assert_int_equal(text_step("\xe2\x82\xac", 2), 0);
	assert_false(text_is_clean("ok \xe2\x82\xac", 5));
	assert_true(text_is_clean("ok \x1b", 3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_steps_over_characters_of_each_length),
		cmocka_unit_test(test_text_of_control_characters_is_refused),
		cmocka_unit_test(test_text_that_is_malformed_is_refused),
		cmocka_unit_test(test_text_that_breaks_lines_or_turns_around_is_refused),
		cmocka_unit_test(test_text_is_read_no_further_than_it_goes),
	};

	return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
