/* SPDX-License-Identifier: MIT */
/* Which model has which draft, by command line and file. */
#include "tests/loop/config_lines.h"

#include <errno.h>
#include <string.h>

static void test_config_drafts_are_of_models(void **state)
{
	struct config config;

	assert_int_equal(parse_file("[mimeod]\ndraft_tokens = 3\n"
				    "[model a]\ndir = /a\ndraft = /file\n"
				    "[model b]\ndir = /b\ndraft = /d=b\ndraft_tokens = 8\n"
				    "[model c]\ndir = /c\n",
				 "--draft a=/line", &config), 0);
	assert_string_equal(config.models[0].draft, "/line");
	assert_int_equal(config.models[0].draft_tokens, 3);
	assert_string_equal(config.models[1].draft, "/d=b");
	assert_int_equal(config.models[1].draft_tokens, 8);
	assert_string_equal(config.models[2].draft, "");
	config_deinit(&config);
	assert_int_equal(parse("--model m=d", &config), 0);
	assert_string_equal(config.models[0].draft, "");
	assert_int_equal(config.models[0].draft_tokens, 4);
	config_deinit(&config);
}

/* In each place and for all or one; a folder of that name is ./none. */
static void test_config_draft_is_switched_off_by_none(void **state)
{
	static const struct {
		const char *file, *line, *draft;
	} table[] = {
		{"[model m]\ndir = d\ndraft = /d\ndraft_tokens = 3\n", "--draft m=none", ""},
		{"[model m]\ndir = d\ndraft = /d\ndraft_tokens = 3\n", "--draft none", ""},
		{"[mimeod]\ndraft = /d\ndraft_tokens = 3\n[model m]\ndir = d\n", "--draft none", ""},
		{"[mimeod]\ndraft = /d\n[model m]\ndir = d\ndraft = none\n", "", ""},
		{"[mimeod]\ndraft = none\n[model m]\ndir = d\n", "--draft m=/l", "/l"},
		{"[model m]\ndir = d\ndraft = none\n", "--draft ./none", "./none"},
		{"[model m]\ndir = d\ndraft = mtp\n", "", "mtp"},
	};
	struct config config;
	char shown[64];

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		assert_int_equal(parse_file(table[i].file, table[i].line, &config), 0);
		assert_string_equal(config.models[0].draft, table[i].draft);
		assert_string_equal(config_show(key_named("draft"), &config, &config.models[0], shown,
			sizeof(shown)), *table[i].draft ? table[i].draft : "none");
		config_deinit(&config);
	}
	assert_int_equal(parse("--model m=d --draft d --draft-tokens none", &config), -EINVAL);
	assert_non_null(strstr(error.text, "\"none\" is not an integer from 1 to 8 (--draft none: "
		"no draft model)"));
}

static void test_config_row_that_verifies_has_to_fit_a_step(void **state)
{
	struct config config;

	assert_int_equal(parse("--model m=d --draft d --max-requests 1 --max-batch-tokens 4", &config),
		-EINVAL);
	assert_string_equal(error.text, "model m: draft_tokens 4 exceed max_batch_tokens 4 (--max-batch-tokens): "
		"a row that verifies takes 1 + draft_tokens = 5 of a step, so lower draft_tokens or raise "
		"max_batch_tokens");
	assert_int_equal(parse("--model m=d --draft d --max-requests 1 --max-batch-tokens 5", &config),
		0);
	config_deinit(&config);
	assert_int_equal(parse("--model m=d --max-requests 1 --max-batch-tokens 4", &config), 0);
	config_deinit(&config);
}

static void test_config_tokens_of_no_draft_are_refused(void **state)
{
	static const struct {
		const char *file, *line, *says;
	} table[] = {
		{"", "--model m=d --draft-tokens 3", "--draft-tokens: no model has a draft"},
		{"", "--model m=d --draft-tokens m=3", "--draft-tokens: model \"m\" has no draft"},
		{"[mimeod]\ndraft_tokens = 3\n", "--model m=d",
			":2: draft_tokens: no model has a draft"},
		{"[model a]\ndir = a\ndraft_tokens = 3\n[model b]\ndir = b\ndraft = d\n", "",
			":3: draft_tokens: model \"a\" has no draft"},
		{"[model a]\ndir = a\n[model b]\ndir = b\ndraft = d\n", "--draft-tokens a=3",
			"--draft-tokens: model \"a\" has no draft"},
	};
	struct config config;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		assert_int_equal(parse_file(table[i].file, table[i].line, &config), -EINVAL);
		if (!strstr(error.text, table[i].says))
			fail_msg("\"%s\" does not say %s", error.text, table[i].says);
	}
	/* one model has one, which is enough for a value that is said for all */
	assert_int_equal(parse_file("[model a]\ndir = a\n[model b]\ndir = b\n",
				 "--draft b=d --draft-tokens 3", &config), 0);
	assert_int_equal(config.models[1].draft_tokens, 3);
	config_deinit(&config);
	assert_int_equal(parse_file("[model b]\ndir = b\ndraft_tokens = 3\n", "--draft d", &config), 0);
	config_deinit(&config);
}

static void test_config_draft_of_1024_bytes_is_refused(void **state)
{
	struct config config;
	char line[64 + CONFIG_FOLDER_MAX];
	int n = snprintf(line, sizeof(line), "--model m=d --draft ");

	memset(line + n, 'a', CONFIG_FOLDER_MAX);
	line[n + CONFIG_FOLDER_MAX] = '\0';
	assert_int_equal(parse(line, &config), -EINVAL);
	line[n + CONFIG_FOLDER_MAX - 1] = '\0';
	assert_int_equal(parse(line, &config), 0);
	assert_int_equal(strlen(config.models[0].draft), CONFIG_FOLDER_MAX - 1);
	config_deinit(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config_drafts_are_of_models),
		cmocka_unit_test(test_config_draft_is_switched_off_by_none),
		cmocka_unit_test(test_config_row_that_verifies_has_to_fit_a_step),
		cmocka_unit_test(test_config_tokens_of_no_draft_are_refused),
		cmocka_unit_test(test_config_draft_of_1024_bytes_is_refused),
	};

	return cmocka_run_group_tests_name("config of drafts", tests, without_environment, NULL);
}
