/* SPDX-License-Identifier: MIT */
/* Where settings come from, which place wins, and that all that is wrong is reported. */
#include "tests/loop/config_lines.h"

#include <errno.h>
#include <string.h>

/* The error has these sentences and no others, in this order. */
static void assert_sentences(const char *const *parts, size_t n)
{
	const char *line = error.text;

	for (size_t i = 0; i < n; i++, line += strcspn(line, "\n"), line += *line == '\n') {
		const char *at = strstr(line, parts[i]);

		if (!at || at >= line + strcspn(line, "\n"))
			fail_msg("\"%.*s\" lacks \"%s\"", (int)strcspn(line, "\n"), line, parts[i]);
	}
	assert_string_equal(line, "");
	assert_int_equal(error.n, n);
}

#define ASSERT_SENTENCES(...)                                                                      \
	assert_sentences((const char *const[]){__VA_ARGS__},                                       \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static void test_config_every_error_is_reported(void **state)
{
	char text[1024];
	struct config config;

	snprintf(text, sizeof(text), "[mimeod]\nloop = x\nbogus = 1\nwhat\n[other]\nignored = 1\n%0300d\n"
				     "[mimeod]\nmax_sessions = 0\n[model m]\nattention = naive\n", 1);
	assert_int_equal(parse_file(text, "--max-arena-bytes 1 --nonsense stray", &config), -EINVAL);
	ASSERT_SENTENCES(":2: loop: \"x\" is not", ":3: bogus: unknown key", ":4: neither",
		":5: unknown section [other]", ":7: a line of more than", ":9: max_sessions: \"0\" is not",
		"--max-arena-bytes: \"1\" is not", "--nonsense: unknown option", "stray: not an option",
		":10: [model m]: model \"m\" has no directory");
}

/* What a refused line leaves undone is no second error. */
static void test_config_refused_model_is_one_error(void **state)
{
	struct config config;

	assert_int_equal(parse("--model m", &config), -EINVAL);
	ASSERT_SENTENCES("--model: \"m\" is not NAME=DIR");
	assert_int_equal(parse("--model m=", &config), -EINVAL);
	ASSERT_SENTENCES("--model: \"\" is not a directory");
	assert_int_equal(parse_file("[model a b]\ndir = d\n", "", &config), -EINVAL);
	ASSERT_SENTENCES(":1: [model a b]: \"a b\" is not a model name");
}

static void test_config_comments_follow_values(void **state)
{
	struct config config;

	assert_int_equal(parse_file("[mimeod] # all\nmax_requests = 7\t# seven\n  max_sessions = 8 ; eight\n"
				    "[model m] ; one\ndir = /a#b;c #d\n#dir = e\n",
				 "", &config), 0);
	assert_int_equal(config.max_requests, 7);
	assert_int_equal(config.max_sessions, 8);
	assert_string_equal(config.models[0].dir, "/a#b;c");
	config_deinit(&config);
}

static void test_config_long_comments_are_no_long_lines(void **state)
{
	char text[1024];
	struct config config;

	snprintf(text, sizeof(text), "[mimeod]\nmax_requests = 7 # %0500d\n", 1);
	assert_int_equal(parse_file(text, "--model m=d", &config), 0);
	assert_int_equal(config.max_requests, 7);
	config_deinit(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config_every_error_is_reported),
		cmocka_unit_test(test_config_refused_model_is_one_error),
		cmocka_unit_test(test_config_comments_follow_values),
		cmocka_unit_test(test_config_long_comments_are_no_long_lines),
	};

	return cmocka_run_group_tests_name("config_places", tests, NULL, NULL);
}
