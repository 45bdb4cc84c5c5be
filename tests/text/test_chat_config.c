/* SPDX-License-Identifier: MIT */

/* A model's templates and special tokens, and what becomes of a request. */

#include <stdio.h>

#include "sdk/text/chat_config.h"
#include "tests/text/chat.h"

#define MESSAGES "{'messages': [{'role': 'user', 'content': 'Hi'}]"

static char *double_quotes(const char *text)
{
	char *copy = strdup(text);

	for (char *quote = copy; (quote = strchr(quote, '\''));)
		*quote = '"';
	return copy;
}

/* A model's set; JSON has ' for ". NULL: there is no such file. */
static struct chat_set *open_set(const char *config, const char *chat_template)
{
	char *json = config ? double_quotes(config) : NULL, message[256];
	struct chat_set *set;

	if (chat_set_new(&set, json, json ? strlen(json) : 0, chat_template,
		    chat_template ? strlen(chat_template) : 0, message, sizeof(message)))
		fail_msg("%s", message);
	free(json);
	return set;
}

/* The status, and the text or the message. */
static int render(const struct chat_set *set, const char *request, char result[256])
{
	char *json = double_quotes(request), *text;
	uint8_t *foreign;
	size_t length;
	int status =
		chat_set_render(set, json, strlen(json), &text, &foreign, &length, result, 256);

	free(json);
	if (status)
		return status;
	snprintf(result, 256, "%s", text);
	free(text);
	free(foreign);
	return 0;
}

static void check(
	const char *config, const char *chat_template, const char *request, const char *expected)
{
	struct chat_set *set = open_set(config, chat_template);
	char result[256];
	int status = render(set, request, result);

	assert_string_equal(result, expected);
	assert_int_equal(status, 0);
	chat_set_free(set);
}

static void check_fails(const char *config, const char *chat_template, const char *request,
	int status, const char *expected)
{
	struct chat_set *set = open_set(config, chat_template);
	char result[256];

	assert_int_equal(render(set, request, result), status);
	if (!strstr(result, expected))
		fail_msg("\"%s\" is not in \"%s\"", expected, result);
	chat_set_free(set);
}

/* ---- templates ---- */

static void test_a_template_of_its_own_file_wins_over_the_configuration(void **state)
{
	check("{'chat_template': 'config'}", NULL, MESSAGES "}", "config");
	check("{'chat_template': 'config'}", "file", MESSAGES "}", "file");
	check(NULL, "file", MESSAGES "}", "file");
}

#define NAMED                                                                                      \
	"{'chat_template': [{'name': 'default', 'template': 'D'}, {'name': 'tool_use', "           \
	"'template': 'T'}, "                                                                       \
	"{'name': 'rag', 'template': 'R'}]}"

static void test_of_several_templates_the_request_decides(void **state)
{
	check(NAMED, NULL, MESSAGES "}", "D");
	check(NAMED, NULL, MESSAGES ", 'tools': null}", "D");
	check(NAMED, NULL, MESSAGES ", 'tools': []}", "T");
	check(NAMED, NULL, MESSAGES ", 'tools': [{}], 'chat_template': 'rag'}", "R");
	check("{'chat_template': [{'name': 'default', 'template': 'D'}]}", NULL,
		MESSAGES ", 'tools': [{}]}", "D");
	check_fails(NAMED, NULL, MESSAGES ", 'chat_template': 'x'}", MIMEO_E_INVALID,
		"\"chat_template\" is not the name of one of the model's templates");
	check_fails("{'chat_template': [{'name': 'x', 'template': 'D'}]}", NULL, MESSAGES "}",
		MIMEO_E_INVALID, "the model has 1 chat templates and none is the default");
}

static void test_a_model_without_a_template_is_told(void **state)
{
	check_fails(
		"{}", NULL, MESSAGES "}", MIMEO_E_UNSUPPORTED, "the model has no chat template");
	check_fails("{'chat_template': null}", NULL, MESSAGES "}", MIMEO_E_UNSUPPORTED,
		"the model has no chat template");
}

static void test_a_template_that_is_not_understood_fails_when_it_is_rendered(void **state)
{
	check_fails(NULL, "\n{% include 'x' %}", MESSAGES "}", MIMEO_E_UNSUPPORTED,
		"the model's chat template is not supported: line 2: tag \"include\"");
	check_fails(NULL, "a\xff", MESSAGES "}", MIMEO_E_UNSUPPORTED, "not UTF-8");
}

static void test_a_broken_configuration_is_refused(void **state)
{
	static const char *const broken[] = {"[]", "{", "{'chat_template': 5}",
		"{'chat_template': [{'name': 'a'}]}",
		"{'chat_template': [{'name': 1, 'template': ''}]}", "{'chat_template': ['a']}"};
	struct chat_set *set;
	char message[256];

	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		char *json = double_quotes(broken[i]);

		assert_int_equal(
			chat_set_new(&set, json, strlen(json), NULL, 0, message, sizeof(message)),
			MIMEO_E_INVALID);
		assert_memory_equal(message, "tokenizer_config.json: ", 23);
		free(json);
	}
}

/* ---- special tokens ---- */

static void test_special_tokens_are_variables(void **state)
{
	check("{'bos_token': '<s>', 'eos_token': {'__type': 'AddedToken', 'content': '</s>', "
	      "'lstrip': false}, "
	      "'pad_token': null, 'add_bos_token': true, 'image_token': '<i>', "
	      "'extra_special_tokens': {'b_token': '<b>'}}",
		"{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}{{ b_token }}|{{ "
		"pad_token is defined }}{{ add_bos_token is defined }}",
		MESSAGES "}", "<s></s><i><b>|FalseFalse");
}

static void test_special_tokens_may_contain_nul(void **state)
{
	check("{'bos_token': 'a\\u0000b'}", "{{ bos_token | length }}", MESSAGES "}", "3");
}

static void test_members_of_the_request_win_over_special_tokens(void **state)
{
	check("{'bos_token': '<s>'}", "{{ bos_token }}", MESSAGES ", 'bos_token': 'x'}", "x");
}

/* ---- requests ---- */

static void test_what_a_request_lacks_has_the_defaults_of_transformers(void **state)
{
	check(NULL,
		"{{ add_generation_prompt }} {{ tools }} {{ documents }} {{ x is defined }} {{ "
		"chat_template is defined }}",
		MESSAGES "}", "True None None False False");
	check(NULL, "{{ add_generation_prompt }} {{ tools }} {{ documents }} {{ x }}",
		MESSAGES
		", 'add_generation_prompt': false, 'tools': [], 'documents': [{'a': 1}], 'x': 5}",
		"False [] [{'a': 1}] 5");
}

static void test_members_of_messages_that_are_null_are_none(void **state)
{
	check(NULL, "{{ messages }}",
		"{'messages': [{'role': 'a', 'content': null, 'tool_calls': null, 'x': {'y': "
		"null}}]}",
		"[{'role': 'a', 'content': None, 'tool_calls': None, 'x': {'y': None}}]");
}

static void test_reasoning_has_each_name_that_templates_read(void **state)
{
	check(NULL, "{{ messages[0] }}", "{'messages': [{'role': 'a', 'reasoning': 'r'}]}",
		"{'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r', 'thinking': 'r'}");
	check(NULL, "{{ messages[0] }}",
		"{'messages': [{'reasoning_content': 'r', 'role': 'a', 'thinking': 't'}]}",
		"{'reasoning_content': 'r', 'role': 'a', 'thinking': 't'}");
	check(NULL, "{{ messages[0] }}",
		"{'messages': [{'thinking': 't', 'reasoning_content': null}]}",
		"{'thinking': 't', 'reasoning_content': 't'}");
	check(NULL, "{{ messages[0] }}", "{'messages': [{'thinking': null, 'reasoning': 'r'}]}",
		"{'thinking': 'r', 'reasoning': 'r', 'reasoning_content': 'r'}");
	check(NULL, "{{ messages[0] }}", "{'messages': [{'reasoning': null}]}",
		"{'reasoning': None}");
}

static void test_a_request_without_sound_messages_is_refused(void **state)
{
	static const struct {
		const char *request, *message;
	} wrong[] = {
		{"", "the chat is not a JSON object with \"messages\": it is empty"},
		{" Hi", "the chat is not a JSON object with \"messages\": it does not begin with '{'"},
		{"[]", "the chat is not a JSON object with \"messages\": it does not begin with '{'"},
		{" {\"messages\"}", "the chat is not a JSON object with \"messages\": line 1, column 13: ':' expected near '}'"},
		{"{}", "\"messages\" is not an array of at least one message"},
		{"{'messages': []}", "\"messages\" is not an array of at least one message"},
		{"{'messages': {}}", "\"messages\" is not an array of at least one message"},
		{"{'messages': [{}, 'a']}", "message 1 is not an object"},
		{MESSAGES ", 'tools': {}}", "\"tools\" is not an array"},
		{MESSAGES ", 'tools': [{}, 1]}", "\"tools\": item 1 is not an object"},
		{MESSAGES ", 'documents': ['a']}", "\"documents\": item 0 is not an object"},
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		check_fails(NULL, "x", wrong[i].request, MIMEO_E_INVALID, wrong[i].message);
}

static void test_a_final_message_cannot_be_continued(void **state)
{
	check(NULL, "x", MESSAGES ", 'continue_final_message': false}", "x");
	check_fails(NULL, "x", MESSAGES ", 'continue_final_message': true}", MIMEO_E_UNSUPPORTED,
		"\"continue_final_message\" is not supported");
}

static void test_what_a_template_raises_is_the_message(void **state)
{
	check_fails(NULL, "{{ raise_exception('Roles must alternate') }}", MESSAGES "}",
		MIMEO_E_INVALID, "Roles must alternate");
}

static void test_a_text_may_contain_nul(void **state)
{
	struct chat_set *set = open_set(
		NULL, "{{ messages[0].content | tojson }}{{ messages[0].content | length }}");
	static const char request[] = "{\"messages\": [{\"content\": \"a\\u0000b\"}]}";
	char message[64], *text;
	uint8_t *foreign;
	size_t length;

	assert_int_equal(chat_set_render(set, request, strlen(request), &text, &foreign, &length,
				 message, sizeof(message)),
		0);
	assert_string_equal(text, "\"a\\u0000b\"3");
	free(text);
	free(foreign);
	chat_set_free(set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_template_of_its_own_file_wins_over_the_configuration),
		cmocka_unit_test(test_of_several_templates_the_request_decides),
		cmocka_unit_test(test_a_model_without_a_template_is_told),
		cmocka_unit_test(test_a_template_that_is_not_understood_fails_when_it_is_rendered),
		cmocka_unit_test(test_a_broken_configuration_is_refused),
		cmocka_unit_test(test_special_tokens_are_variables),
		cmocka_unit_test(test_special_tokens_may_contain_nul),
		cmocka_unit_test(test_members_of_the_request_win_over_special_tokens),
		cmocka_unit_test(test_what_a_request_lacks_has_the_defaults_of_transformers),
		cmocka_unit_test(test_members_of_messages_that_are_null_are_none),
		cmocka_unit_test(test_reasoning_has_each_name_that_templates_read),
		cmocka_unit_test(test_a_request_without_sound_messages_is_refused),
		cmocka_unit_test(test_a_final_message_cannot_be_continued),
		cmocka_unit_test(test_what_a_template_raises_is_the_message),
		cmocka_unit_test(test_a_text_may_contain_nul),
	};

	return cmocka_run_group_tests_name("chat_config", tests, NULL, NULL);
}
