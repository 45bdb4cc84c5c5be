/* SPDX-License-Identifier: MIT */

/* The two public calls, with a tokenizer that records what it is given. */

#include <mimeo/text.h>

#include "sdk/text/text_internal.h"
#include "tests/text/chat.h"

static char *encoded;
static uint8_t encoded_foreign[64];
static uint32_t encoded_flags;
static int encode_status;

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
	const uint8_t *foreign, uint32_t flags, int32_t **ret_ids, size_t *ret_n)
{
	encoded = strndup(text, length);
	assert_true(length < sizeof(encoded_foreign));
	memcpy(encoded_foreign, foreign, length);
	encoded_flags = flags;
	if (encode_status)
		return encode_status;
	*ret_ids = calloc(1, sizeof(int32_t));
	*ret_n = 1;
	return 0;
}

static const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"<s>\"}]}";

static struct mimeo_text open_text(const char *chat_template)
{
	struct mimeo_text text = {0};
	char message[64];

	assert_int_equal(chat_set_new(&text.chat, NULL, 0, chat_template, strlen(chat_template),
				 message, sizeof(message)),
		0);
	return text;
}

static void test_a_chat_is_encoded_with_the_marks_of_its_bytes(void **state)
{
	struct mimeo_text text = open_text("<s>{{ messages[0].content }}");
	static const uint8_t marks[] = {0, 0, 0, 1, 1, 1};
	char message[64];
	int32_t *ids;
	size_t n;

	assert_int_equal(mimeo_text_chat(&text, request, strlen(request), &ids, &n, message,
				 sizeof(message)),
		0);
	assert_int_equal(n, 1);
	assert_string_equal(encoded, "<s><s>");
	assert_memory_equal(encoded_foreign, marks, sizeof(marks));
	assert_int_equal(encoded_flags, 0);
	free(ids);
	free(encoded);
	chat_set_free(text.chat);
}

static void test_an_error_of_the_tokenizer_is_told(void **state)
{
	struct mimeo_text text = open_text("x");
	char message[64] = "";
	int32_t *ids;
	size_t n;

	encode_status = MIMEO_E_TOO_LONG;
	assert_int_equal(mimeo_text_chat(&text, request, strlen(request), &ids, &n, message,
				 sizeof(message)),
		MIMEO_E_TOO_LONG);
	assert_string_equal(message, "the rendered chat cannot be encoded");
	encode_status = 0;
	free(encoded);
	chat_set_free(text.chat);
}

static void test_a_chat_is_rendered_to_text(void **state)
{
	struct mimeo_text text = open_text("a{{ messages[0].role }}");
	char message[64], *utf8;
	size_t length;

	assert_int_equal(mimeo_text_chat_render(&text, request, strlen(request), &utf8, &length,
				 message, sizeof(message)),
		0);
	assert_string_equal(utf8, "auser");
	assert_int_equal(length, 5);
	free(utf8);
	chat_set_free(text.chat);
}

static void test_a_text_without_a_chat_template_and_a_long_request_are_refused(void **state)
{
	struct mimeo_text text = {0};
	char message[64], *utf8;
	size_t length;

	assert_int_equal(chat_set_new(&text.chat, NULL, 0, NULL, 0, message, sizeof(message)), 0);
	assert_int_equal(mimeo_text_chat_render(&text, request, strlen(request), &utf8, &length,
				 message, sizeof(message)),
		MIMEO_E_UNSUPPORTED);
	assert_string_equal(message, "the model has no chat template");
	assert_int_equal(mimeo_text_chat_render(&text, request, MIMEO_TEXT_MAX + 1, &utf8, &length,
				 message, sizeof(message)),
		MIMEO_E_TOO_LONG);
	chat_set_free(text.chat);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_chat_is_encoded_with_the_marks_of_its_bytes),
		cmocka_unit_test(test_an_error_of_the_tokenizer_is_told),
		cmocka_unit_test(test_a_chat_is_rendered_to_text),
		cmocka_unit_test(
			test_a_text_without_a_chat_template_and_a_long_request_are_refused),
	};

	return cmocka_run_group_tests_name("chat_call", tests, NULL, NULL);
}
