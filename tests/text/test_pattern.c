/* SPDX-License-Identifier: MIT */

/* Regular expressions: Oniguruma's meaning where PCRE2's differs, and limits. Expected matches are
 * those of Oniguruma 6.9. */

#include <stdlib.h>
#include <string.h>

#include "sdk/text/oniguruma.h"
#include "sdk/text/pattern.h"
#include "tests/text/fixture.h"

struct compiled {
	struct pattern pattern;
	char message[256];
	struct fault fault;
	struct spec_file file;
	struct spec spec;
	bool ok;
};

static void compile(struct compiled *c, const char *regex)
{
	*c = (struct compiled){0};
	c->fault = (struct fault){c->message, sizeof(c->message)};
	c->file = (struct spec_file){.fault = &c->fault};
	c->spec = (struct spec){.where = "test", .file = &c->file};
	c->ok = pattern_init_regex(&c->pattern, &c->spec, regex, strlen(regex));
}

/* Matches of a text, joined by |. */
static int matches(const char *regex, const char *text, char *out, size_t size)
{
	struct compiled c;
	struct matcher matcher;
	struct pattern_search search;
	size_t start, end, n = 0;
	int rc;

	compile(&c, regex);
	if (!c.ok)
		fail_msg("%s: %s", regex, c.message);
	matcher_init(&matcher, strlen(text));
	pattern_search_init(&search, &c.pattern, &matcher, text, strlen(text));
	while ((rc = pattern_search_next(&search, &start, &end)) > 0 &&
		n + (end - start) + 2 < size) {
		memcpy(out + n, text + start, end - start);
		n += end - start;
		out[n++] = '|';
	}
	out[n] = '\0';
	matcher_deinit(&matcher);
	pattern_deinit(&c.pattern);
	return rc;
}

static void test_syntax_has_oniguruma_s_meaning(void **state)
{
	static const char *const cases[][3] = {
		/* an interval is never possessive, and {n}? is optional */
		{"\\p{N}{1,3}+", "1234567 12", "1234567|12|"},
		{"a{2}?", "aaaaa", "aa|aa||"},
		{"a{2}+", "aaaaa", "aaaa|"},
		{"a{1,2}?", "aaa", "a|a|a|"},
		{"a{,2}", "aaaaa", "aa|aa|a|"},
		{"a**", "aaa", "aaa|"},
		{"x{a}", "x{a}", "x{a}|"},
		/* options last to the end of the group, across | */
		{"a(?i)b|c", "aB C c b aC", "aB|aC|"},
		{"(?m).+", "a\nb", "a\nb|"},
		{".+", "a\nb", "a|b|"},
		/* lines */
		{"^a", "a\na\n", "a|a|"},
		{"a$", "a\na\n", "a|a|"},
		/* escapes */
		{"\\v", "\v\n", "\v|"},
		{"\\h+", "ab g1", "ab|1|"},
		{"[\\h]+", "ab g1", "ab|1|"},
		{"\\O+", "a\nb", "a\nb|"},
		{"\\u0041\\x{42}\\x43", "ABC", "ABC|"},
		{"a\\Kb", "ab", "b|"},
		/* classes within classes */
		{"[a-z&&[^aeiou]]+", "hello world", "h|ll|w|rld|"},
		{"[[a-c]x]+", "abxyc", "abx|c|"},
		{"[^[a-c]x]+", "abxyc", "y|"},
		{"[a-z&&a-m&&[^b]]+", "abcxyz", "a|c|"},
		{"[^a-z&&[^0-9]]+", "ab12-", "12-|"},
		{"[[:^alpha:]]+", "ab1", "1|"},
		{"[]a]", "a]", "a|]|"},
		{"[a-c-e]+", "a-cde", "a-c|e|"},
		{"[+--]+", "+,-.", "+,-|"},
		{"[\\p{Lu}\\p{Lm}\\p{Lo}&&[^\\p{Han}]]+", "A一あb", "A|あ|"},
		/* properties */
		{"\\p{Letter}+", "ab1", "ab|"},
		{"\\p{^L}+", "1a", "1|"},
		{"\\P{^L}+", "1a", "a|"},
		{"\\p{Han}+", "ab一〇々ー", "一〇々|"},
		{"\\p{lu}+", "aB", "B|"},
		/* word characters */
		{"\\w+", "a\xc2\xb2 _e\xcc\x81 \xe2\x80\x8d", "a\xc2\xb2|_e\xcc\x81|"},
		{"[\\w]+", "a\xc2\xb2", "a|"},
		{"\\b.", "ab c", "a| |c|"},
		{"\\s+", "\xe1\xa0\x8e\xc2\x85\xe3\x80\x80", "\xc2\x85\xe3\x80\x80|"},
		{"(?i:'s|'ll)", "'s 'S 'Ll '\xc5\xbf", "'s|'S|'Ll|'\xc5\xbf|"},
		/* the first space of a run, or the place where the search goes on */
		{"\\s+$", "  x  \n  y  ", "  |  |"},
		{"\\s+x", "  x   x", "  x|   x|"},
		{"a+b", "aaab aab ab", "aaab|aab|ab|"},
		/* empty matches */
		{"(?=\\d)", "1a2", "||"},
		{"a*", "baac", "|aa||"},
	};
	char out[256];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(matches(cases[i][0], cases[i][1], out, sizeof(out)), 0);
		if (strcmp(out, cases[i][2]) != 0)
			fail_msg("%s in \"%s\" gives \"%s\", expected \"%s\"", cases[i][0],
				cases[i][1], out, cases[i][2]);
	}
}

static void test_what_has_no_counterpart_is_refused(void **state)
{
	static const char *const regexes[] = {"(a)\\1", "\\k<n>", "(?<n>a)\\g<n>", "(?~a)", "(?W)a",
		"(?x)a", "(*UTF)a", "(*LIMIT_MATCH=1)a", "\\y", "\\Qa\\E", "\\cA", "\\xe3",
		"[a-\\d]", "[z-a]", "a{3,1}", "(?i)ss", "(?i)[ß]", "(?i)ﬁ", "(", ")", "[a", "a\\",
		"*", "\\p{Klingon}", "\\p{L", "(?<=a*)b", "[[[[[[[[[[a]]]]]]]]]]", "\\C"};

	for (size_t i = 0; i < ARRAY_SIZE(regexes); i++) {
		struct compiled c;

		compile(&c, regexes[i]);
		if (c.ok)
			fail_msg("%s is accepted", regexes[i]);
		assert_int_equal(c.file.rc, MIMEO_E_UNSUPPORTED);
		assert_true(strlen(c.message) > 0);
		pattern_deinit(&c.pattern);
	}
}

/* A million characters each: PCRE2 looks for the other case of every one. */
static void test_ranges_that_ignore_case_are_bounded(void **state)
{
	static const char range[] = "\\x{20000}-\\x{10ffff}";
	char regex[ONIGURUMA_PATTERN_MAX] = "(?i)[";
	struct compiled c;

	for (int i = 0; i < 5; i++)
		strcat(regex, range);
	strcat(regex, "]");
	compile(&c, regex);
	assert_false(c.ok);
	assert_non_null(strstr(c.message, "ignores the case of too many characters"));
	pattern_deinit(&c.pattern);
	compile(&c, "(?i)[\\x{20000}-\\x{10ffff}a-z]");
	assert_true(c.ok);
	pattern_deinit(&c.pattern);
}

static int count_in_run(const char *regex, char unit, size_t n, const char *tail, size_t *ret_n)
{
	struct compiled c;
	struct matcher matcher;
	struct pattern_search search;
	size_t length = n + strlen(tail), start, end;
	char *text = malloc(length + 1);
	int rc;

	assert_non_null(text);
	memset(text, unit, n);
	memcpy(text + n, tail, strlen(tail) + 1);
	compile(&c, regex);
	if (!c.ok)
		fail_msg("%s: %s", regex, c.message);
	matcher_init(&matcher, length);
	pattern_search_init(&search, &c.pattern, &matcher, text, length);
	*ret_n = 0;
	while ((rc = pattern_search_next(&search, &start, &end)) > 0)
		(*ret_n)++;
	matcher_deinit(&matcher);
	pattern_deinit(&c.pattern);
	free(text);
	return rc;
}

static void test_expressions_with_too_many_steps_are_given_up(void **state)
{
	size_t n;

	assert_int_equal(count_in_run("(?:a+)+[bc]", 'a', 100, "", &n), MIMEO_E_TOO_LONG);
	assert_int_equal(count_in_run("(?:a|a)*[bc]", 'a', 100, "", &n), MIMEO_E_TOO_LONG);
	assert_int_equal(
		count_in_run("\\d{1,3}(?=(?:\\d{3})*\\b)", '1', 2000000, "", &n), MIMEO_E_TOO_LONG);
}

/* Without backtracking: this test would take ten minutes. */
static void test_expressions_that_look_too_far_ahead_are_given_up(void **state)
{
	size_t n;

	assert_int_equal(count_in_run(".(?=\\p{L}*+$)", 'a', 1000000, "", &n), MIMEO_E_TOO_LONG);
	assert_int_equal(count_in_run(".(?=\\p{L}*+$)", 'a', 20000, "", &n), 0);
	assert_int_equal(n, 20000);
}

/* These have steps in proportion to the text: they are counted, and would not be enough for
 * quadratic time. */
static void test_long_runs_take_linear_steps(void **state)
{
	size_t n;

	assert_int_equal(count_in_run("\\s+$", ' ', 2000000, "x", &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(count_in_run("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", ' ', 2000000, "x", &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(
		count_in_run(
			"[\\p{Lu}\\p{Lm}]*[\\p{Ll}\\p{Lm}]+|[\\p{Lu}\\p{Lm}]+[\\p{Ll}\\p{Lm}]*",
			'A', 2000000, "", &n),
		0);
	assert_int_equal(n, 1);
	assert_int_equal(count_in_run("(?:\\p{L}\\p{M}*)+", 'a', 1000000, "", &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(count_in_run("(?:(?=\\p{L})[^a])*b", 'b', 1000000, "", &n), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_syntax_has_oniguruma_s_meaning),
		cmocka_unit_test(test_what_has_no_counterpart_is_refused),
		cmocka_unit_test(test_ranges_that_ignore_case_are_bounded),
		cmocka_unit_test(test_expressions_with_too_many_steps_are_given_up),
		cmocka_unit_test(test_expressions_that_look_too_far_ahead_are_given_up),
		cmocka_unit_test(test_long_runs_take_linear_steps),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
