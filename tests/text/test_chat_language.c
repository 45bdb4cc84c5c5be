/* SPDX-License-Identifier: MIT */

/*
 * Each claim of chat_cases.json is a test: what Jinja makes of its templates, Mimeo makes, too.
 * make_chat_cases.py writes that file.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mimeo/types.h>

#include "sdk/text/chat_template.h"

static json_t *cases;

/* A status, and the text or the message; the caller's. */
static int render(const char *source, char **ret_text)
{
	const json_t *variables = json_object_get(cases, "variables");
	json_t *trusted = json_object();
	struct chat_template *chat_template;
	char message[512];
	uint8_t *foreign;
	size_t length;
	int status =
		chat_template_new(&chat_template, source, strlen(source), message, sizeof(message));

	if (!status) {
		status = chat_template_render(chat_template, trusted, variables, ret_text, &foreign,
			&length, message, sizeof(message));
		chat_template_free(chat_template);
	}
	if (status)
		*ret_text = strdup(message);
	else
		free(foreign);
	json_decref(trusted);
	return status;
}

static void check_case(const json_t *entry)
{
	const char *source = json_string_value(json_object_get(entry, "template"));
	const char *expected = json_string_value(json_object_get(entry, "text"));
	const char *raised = json_string_value(json_object_get(entry, "raises"));
	char *text;
	int status = render(source, &text);

	if (expected ? status || strcmp(text, expected) : !status)
		fail_msg("%s\nexpected: %s\ngot:      %s (status %d)", source,
			expected ? expected : "an error", text, status);
	if (raised)
		assert_string_equal(text, raised);
	else if (!expected)
		assert_true(strlen(text) > strlen("line 1: "));
	free(text);
}

static void test_claim(void **state)
{
	const json_t *entry;
	size_t i;

	json_array_foreach(json_object_get(json_object_get(cases, "claims"), *state), i, entry)
		check_case(entry);
	assert_true(i > 0);
}

int main(void)
{
	struct CMUnitTest tests[256];
	char path[4096];
	const char *claim;
	json_t *entries;
	size_t n = 0;
	int failed;

	snprintf(path, sizeof(path), "%s/tests/text/chat_cases.json", getenv("MIMEO_SOURCE"));
	cases = json_load_file(path, 0, NULL);
	json_object_foreach(json_object_get(cases, "claims"), claim, entries)
	{
		if (n < sizeof(tests) / sizeof(tests[0]))
			tests[n++] = (struct CMUnitTest){
				claim, test_claim, NULL, NULL, (void *)(uintptr_t)claim};
	}
	if (!n)
		return 1;
	failed = _cmocka_run_group_tests("chat_language", tests, n, NULL, NULL);
	json_decref(cases);
	return failed;
}
