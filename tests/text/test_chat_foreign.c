/* SPDX-License-Identifier: MIT */

/* Which bytes of a rendered chat are the user's. */

#include <stdio.h>

#include "tests/text/chat.h"

#define USERS                                                                                      \
	"{'u': 'User', 'n': 12, 'l': ['a', 1, null], 'd': {'k': 'v'}, 'messages': [{'role': "      \
	"'user', 'content': 'Hi'}]}"

/* The text with each run of the user's bytes in brackets. */
static void check(const char *source, const char *expected)
{
	struct chat chat = chat_make(source, "{'bos_token': '<s>', 'u': 'shadowed'}", USERS);
	char marked[1024];
	size_t n = 0;

	assert_int_equal(chat.status, 0);
	for (size_t i = 0; i <= chat.length; i++) {
		bool was = i && chat.foreign[i - 1], is = i < chat.length && chat.foreign[i];

		if (was && !is)
			marked[n++] = '>';
		if (is && !was)
			marked[n++] = '<';
		assert_true(n < sizeof(marked) - 3);
		marked[n++] = chat.text[i];
	}
	assert_string_equal(marked, expected);
	chat_free(&chat);
}

static void test_text_of_the_template_and_special_tokens_are_not_the_users(void **state)
{
	check("a{{ 'b' }}{{ bos_token }}{{ 1 }}", "ab<s>1");
}

static void test_values_of_the_chat_are_the_users_and_win_over_special_tokens(void **state)
{
	check("a{{ u }}b{{ d.k }}{{ l[0] }}", "a<User>b<va>");
}

static void test_concatenation_keeps_both_origins(void **state)
{
	check("{{ 'a' + u + 'b' ~ u ~ 'c' }}", "a<User>b<User>c");
	check("{% set ns = namespace(s='') %}{% for i in range(3) %}{% set ns.s = ns.s + 'x' + u "
	      "%}{% endfor %}{{ ns.s }}",
		"x<User>x<User>x<User>");
	check("{% set x = 'a' + u %}{% set y = x + '1' %}{% set z = x + u %}{{ y }}|{{ z }}|{{ x "
	      "}}",
		"a<User>1|a<UserUser>|a<User>");
}

static void test_parts_keep_their_origin(void **state)
{
	check("{{ ('ab' + u)[1:4] }}{{ ('ab' + u)[::-1] }}{{ ('ab' + u)[2] }}", "b<UsresU>ba<U>");
	check("{{ (' ' + u + ' ') | trim }}{{ ('a,' + u).split(',') | join('-') }}",
		"<User>a-<User>");
	check("{% for c in 'a' + u %}{{ c }}.{% endfor %}", "a.<U>.<s>.<e>.<r>.");
}

static void test_replacements_keep_their_origin(void **state)
{
	check("{{ u.replace('s', 'S') }}{{ u | replace('User', 'x' + u) }}{{ 'a-b'.replace('-', u) "
	      "}}",
		"<U>S<er>x<User>a<User>b");
}

static void test_case_keeps_the_origin(void **state)
{
	check("{{ ('a' + u) | upper }}{{ ('A' + u).lower() }}{{ ('x ' + u) | title if no else ('x' "
	      "+ u) | capitalize }}",
		"A<USER>a<user>X<user>");
}

static void test_formats_keep_the_origin(void **state)
{
	check("{{ '%s=%d' % (u, n) }} {{ '{}+{:>4}'.format(u, n) }} {{ '[%s]' | format(u) }}",
		"<User>=<12> <User>+<  12> [<User>]");
}

static void test_json_of_the_chat_is_the_users_with_its_punctuation(void **state)
{
	check("{{ d | tojson }} {{ {'a': u} | tojson }} {{ l | tojson }}",
		"<{\"k\": \"v\"}> {\"a\": <\"User\">} <[\"a\", 1, null]>");
	check("{{ d }} {{ [u, n] }}", "<{'k': 'v'}> [<'User'>, <12>]");
}

static void test_numbers_of_the_chat_are_the_users(void **state)
{
	check("{{ n }} {{ n + 1 }} {{ -n }} {{ n | string }} {{ '7' | int }} {{ u | length }} {{ "
	      "l[2] }}",
		"<12> <13> <-12> <12> 7 4 <None>");
	check("{{ (u ~ 1)[4:] | int }} {{ '1' + n | string }}", "1 1<12>");
}

static void test_escapes_of_safe_text_keep_the_origin(void **state)
{
	check("{{ '<' | safe + ('&' + u) }}", "<&amp;<User>");
}

static void test_captured_text_keeps_the_origin(void **state)
{
	check("{% macro f(x) %}a{{ x }}{% endmacro %}{{ f(u) | upper }}{% set s %}b{{ u }}{% "
	      "endset %}{{ s }}{% filter upper %}c{{ u }}{% endfilter %}",
		"A<USER>b<User>C<USER>");
}

static void test_a_role_that_is_a_word_is_the_templates(void **state)
{
	check("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}",
		"<|user|><Hi>");
}

static void check_foreign_role(const char *role)
{
	char users[128];
	struct chat chat;

	snprintf(users, sizeof(users), "{'messages': [{'role': '%s'}]}", role);
	chat = chat_make("{{ messages[0].role }}", "{}", users);
	assert_int_equal(chat.status, 0);
	assert_int_equal(chat.length, strlen(role));
	for (size_t i = 0; i < chat.length; i++)
		assert_int_equal(chat.foreign[i], 1);
	chat_free(&chat);
}

static void test_a_role_that_is_long_or_has_other_characters_is_the_users(void **state)
{
	check_foreign_role("a|><|b");
	check_foreign_role("a b");
	check_foreign_role("a_role_of_more_than_32_characters");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_of_the_template_and_special_tokens_are_not_the_users),
		cmocka_unit_test(test_values_of_the_chat_are_the_users_and_win_over_special_tokens),
		cmocka_unit_test(test_concatenation_keeps_both_origins),
		cmocka_unit_test(test_parts_keep_their_origin),
		cmocka_unit_test(test_replacements_keep_their_origin),
		cmocka_unit_test(test_case_keeps_the_origin),
		cmocka_unit_test(test_formats_keep_the_origin),
		cmocka_unit_test(test_json_of_the_chat_is_the_users_with_its_punctuation),
		cmocka_unit_test(test_numbers_of_the_chat_are_the_users),
		cmocka_unit_test(test_escapes_of_safe_text_keep_the_origin),
		cmocka_unit_test(test_captured_text_keeps_the_origin),
		cmocka_unit_test(test_a_role_that_is_a_word_is_the_templates),
		cmocka_unit_test(test_a_role_that_is_long_or_has_other_characters_is_the_users),
	};

	return cmocka_run_group_tests_name("chat_foreign", tests, NULL, NULL);
}
