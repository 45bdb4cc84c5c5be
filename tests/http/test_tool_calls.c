/* SPDX-License-Identifier: MIT */
/* Tool calls in the text of an answer, which comes in parts of any length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/http/tool_calls.h"

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

static json_t *tools;

static int setup(void **state)
{
	tools = json_pack("[{s:s, s:{s:s}}, {s:s, s:{s:s}}]", "type", "function", "function", "name", "add", "type",
		"function", "function", "name", "get_weather");
	return tools ? 0 : -1;
}

static int teardown(void **state)
{
	json_decref(tools);
	return 0;
}

/* What is left as text, and each call as "NAME ARGUMENTS;", of an answer that comes in parts of `step` bytes. */
static void parse(const char *answer, size_t step, char text[static 512], char calls[static 512])
{
	struct tool_calls parser = {.tools = tools};
	struct bytes out = {0};
	size_t length = strlen(answer), i;
	json_t *list, *call;

	for (size_t at = 0; at < length; at += step)
		assert_int_equal(
			tool_calls_push(&parser, answer + at, length - at < step ? length - at : step, &out), 0);
	assert_int_equal(tool_calls_end(&parser, &out, &list), 0);
	snprintf(text, 512, "%s", out.data ? out.data : "");
	calls[0] = '\0';
	json_array_foreach (list, i, call) {
		const json_t *function = json_object_get(call, "function");

		assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
		assert_memory_equal(json_string_value(json_object_get(call, "id")), "call_", 5);
		snprintf(calls + strlen(calls), 512 - strlen(calls), "%s %s;",
			json_string_value(json_object_get(function, "name")),
			json_string_value(json_object_get(function, "arguments")));
	}
	json_decref(list);
	bytes_deinit(&out);
	tool_calls_deinit(&parser);
}

static void expect(const char *answer, const char *text, const char *calls)
{
	char got_text[512], got_calls[512];

	for (size_t step = 1; step <= strlen(answer) + 1; step++) {
		parse(answer, step, got_text, got_calls);
		if (strcmp(got_text, text) != 0 || strcmp(got_calls, calls) != 0)
			fail_msg("'%s' in parts of %zu: text '%s', calls '%s'", answer, step, got_text, got_calls);
	}
}

static void test_calls_of_hermes_and_qwen_are_found(void **state)
{
	expect("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", "add {\"a\":1};");
	expect("I will.\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\n"
	       "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"B</tool_call>\"}}</tool_call>\n",
		"I will.\n", "add {};get_weather {\"city\":\"B</tool_call>\"};");
	expect("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 19.99}}", "", "add {\"a\":19.99};");
	/* The end mark may have been the model's end token. */
	expect("<tool_call>{\"name\": \"add\", \"arguments\": {}}", "", "add {};");
}

static void test_calls_of_mistral_are_found(void **state)
{
	expect("[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"add\", \"arguments\": {}}]",
		"", "add {\"a\":1};add {};");
	expect("[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {}}]", "", "add {};");
	expect("[TOOL_CALLS]add{\"a\": [1]}", "", "add {\"a\":[1]};");
	expect("[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]get_weather[ARGS]{}", "", "add {\"a\":1};get_weather {};");
}

static void test_calls_of_llama_are_found(void **state)
{
	expect("{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "", "add {\"a\":1};");
	expect("\n\n{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"get_weather\", \"parameters\": {}}\n", "",
		"add {};get_weather {};");
	expect("<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "", "add {\"a\":1};");
}

static void test_what_is_no_whole_call_stays_text(void **state)
{
	static const char *const answers[] = {
		"", "plain", " \n", "{", "{\"a\": 1}", "<", "<tool", "a <tool_call", "[TOOL", "[TOOL_CALLS]", "<tool_call>",
		"<tool_call>{\"name\": \"add\", \"arguments\": {\"a\"", "<tool_call>nonsense</tool_call>",
		"<tool_call>{\"name\": \"add\"}</tool_call>", "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>",
		"<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call> and more",
		"[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}", "[TOOL_CALLS]{}", "[TOOL_CALLS][1]",
		"{\"name\": \"add\", \"parameters\": {}} and more", "{\"name\": 1, \"parameters\": {}}",
		"text {\"name\": \"add\", \"parameters\": {}}", "<|python_tag|>print(1)",
	};

	for (size_t i = 0; i < ARRAY_SIZE(answers); i++)
		expect(answers[i], answers[i], "");
}

static void test_tool_that_the_request_does_not_have_is_not_called(void **state)
{
	expect("<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>",
		"<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>", "");
	/* Nor others beside it. */
	expect("[TOOL_CALLS]add{}[TOOL_CALLS]rm{}", "[TOOL_CALLS]add{}[TOOL_CALLS]rm{}", "");
}

static void test_text_ahead_of_a_marker_is_not_held_back(void **state)
{
	struct tool_calls parser = {.tools = tools};
	struct bytes out = {0};

	assert_int_equal(tool_calls_push(&parser, "Let me see <to", 14, &out), 0);
	assert_string_equal(out.data, "Let me see ");
	assert_int_equal(tool_calls_push(&parser, "morrow", 6, &out), 0);
	assert_string_equal(out.data, "Let me see <tomorrow");
	bytes_deinit(&out);
	tool_calls_deinit(&parser);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls_of_hermes_and_qwen_are_found),
		cmocka_unit_test(test_calls_of_mistral_are_found),
		cmocka_unit_test(test_calls_of_llama_are_found),
		cmocka_unit_test(test_what_is_no_whole_call_stays_text),
		cmocka_unit_test(test_tool_that_the_request_does_not_have_is_not_called),
		cmocka_unit_test(test_text_ahead_of_a_marker_is_not_held_back),
	};

	return cmocka_run_group_tests_name("tool_calls", tests, setup, teardown);
}
