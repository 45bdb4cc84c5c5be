/* SPDX-License-Identifier: MIT */

/* What the library does not understand is refused by name: component, field, value. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/utf8.h"
#include "tests/text/fixture.h"

#define MODEL                                                                                      \
	"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\","     \
	"\"b\"]]}"

struct refusal {
	const char *json;
	int status;
	const char *words[3]; /* in the message */
};

static void check(const struct refusal *refusals, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char message[256] = "";
		struct mimeo_text *text = NULL;
		int rc = fixture_open_json(&text, refusals[i].json, message, sizeof(message));

		if (rc != refusals[i].status)
			fail_msg("%s: status %d, expected %d: %s", refusals[i].json, rc,
				refusals[i].status, message);
		for (size_t k = 0; k < ARRAY_SIZE(refusals[i].words) && refusals[i].words[k]; k++) {
			if (!strstr(message, refusals[i].words[k]))
				fail_msg("%s: \"%s\" is not in \"%s\"", refusals[i].json,
					refusals[i].words[k], message);
		}
		assert_null(text);
	}
}

static void test_unknown_components_are_named(void **state)
{
	static const struct refusal refusals[] = {
		{"{\"normalizer\":{\"type\":\"Shout\"}," MODEL "}", MIMEO_E_UNSUPPORTED,
			{"normalizer", "Shout"}},
		{"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{"
		 "\"type\":\"Shout\"}]}," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"normalizer.normalizers[1]", "Shout"}},
		{"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," MODEL "}", MIMEO_E_UNSUPPORTED,
			{"pre_tokenizer", "UnicodeScripts"}},
		{"{\"post_processor\":{\"type\":\"X\"}," MODEL "}", MIMEO_E_UNSUPPORTED,
			{"post_processor", "\"X\""}},
		{"{\"decoder\":{\"type\":\"Y\"}," MODEL "}", MIMEO_E_UNSUPPORTED,
			{"decoder", "\"Y\""}},
		{"{\"model\":{\"type\":\"Markov\"}}", MIMEO_E_UNSUPPORTED, {"model", "Markov"}},
		{"{\"version\":\"2.0\"," MODEL "}", MIMEO_E_UNSUPPORTED, {"version", "2.0"}},
		{"{\"sampler\":{}," MODEL "}", MIMEO_E_UNSUPPORTED, {"sampler"}},
	};

	check(refusals, ARRAY_SIZE(refusals));
}

static void test_unknown_fields_and_values_are_named(void **state)
{
	static const struct refusal refusals[] = {
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}",
			MIMEO_E_UNSUPPORTED, {"model", "dropout 0.1"}},
		{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
		 "\"behavior\":\"Doubled\"}," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"Split", "behavior", "Doubled"}},
		{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a)\\\\1\"},"
		 "\"behavior\":\"Isolated\"}," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"pre_tokenizer", "(a)\\1", "escape"}},
		{"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<=a+)b\"},"
		 "\"behavior\":\"Isolated\"}," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"regular expression", "lookbehind"}},
		{"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_"
		 "scheme\":\"last\"}," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"prepend_scheme", "last"}},
		{"{\"normalizer\":{\"type\":\"NFC\",\"strength\":2}," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"NFC", "strength 2"}},
		{"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{"
		 "\"id\":\"B\",\"type_id\":0}}],"
		 "\"pair\":[],\"special_tokens\":{}}," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"single[0].Sequence", "\"B\""}},
		{"{\"added_tokens\":[{\"content\":\"x\",\"color\":\"red\"}]," MODEL "}",
			MIMEO_E_UNSUPPORTED, {"added_tokens[0]", "color"}},
	};

	check(refusals, ARRAY_SIZE(refusals));
}

static void test_unused_options_of_later_versions_are_no_reason(void **state)
{
	char message[256] = "";
	struct mimeo_text *text;

	if (fixture_open_json(&text,
		    "{\"normalizer\":{\"type\":\"NFC\",\"strength\":null,\"loud\":false}," MODEL
		    "}",
		    message, sizeof(message)) < 0)
		fail_msg("%s", message);
	mimeo_text_close(text);
}

static void test_contradictions_and_wrong_types_are_invalid(void **state)
{
	static const struct refusal refusals[] = {
		{"", MIMEO_E_INVALID, {"JSON"}},
		{"[]", MIMEO_E_INVALID, {"object"}},
		{"{\"model\":", MIMEO_E_INVALID, {"line 1", "JSON"}},
		{"{}", MIMEO_E_INVALID, {"model is missing"}},
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
			MIMEO_E_INVALID, {"the id 0", "two tokens"}},
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
			MIMEO_E_INVALID, {"-1"}},
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}}",
			MIMEO_E_INVALID, {"4194304", "4194303"}},
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}",
			MIMEO_E_INVALID, {"not an integer"}},
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}",
			MIMEO_E_INVALID, {"merges[0]", "not in vocab"}},
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}",
			MIMEO_E_INVALID, {"merges[0]", "pair"}},
		{"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}",
			MIMEO_E_INVALID, {"unk_id 1"}},
		{"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}}", MIMEO_E_INVALID,
			{"vocab[0]"}},
		{"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"__\"}," MODEL "}",
			MIMEO_E_INVALID, {"replacement", "character"}},
		{"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_"
		 "scheme\":\"always\","
		 "\"add_prefix_space\":false}," MODEL "}",
			MIMEO_E_INVALID, {"add_prefix_space", "prepend_scheme"}},
		{"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!\"}," MODEL
		 "}",
			MIMEO_E_INVALID, {"precompiled_charsmap", "base64"}},
		{"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////"
		 "w==\"}," MODEL "}",
			MIMEO_E_INVALID, {"precompiled_charsmap", "size"}},
		{"{\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"x\",-5],\"cls\":["
		 "\"y\",1]}," MODEL "}",
			MIMEO_E_INVALID, {"post_processor", "sep"}},
		{"{\"decoder\":{\"type\":\"Strip\",\"content\":\"a\",\"start\":0,\"stop\":1025}"
		 "," MODEL "}",
			MIMEO_E_INVALID, {"decoder", "stop is 1025", "1024"}},
		{"{\"added_tokens\":{}," MODEL "}", MIMEO_E_INVALID, {"added_tokens", "list"}},
	};

	check(refusals, ARRAY_SIZE(refusals));
}

/* {"normalizer": Sequence of Sequence of ... */
static void test_nesting_is_bounded(void **state)
{
	static const char opening[] = "{\"type\":\"Sequence\",\"normalizers\":[", closing[] = "]}";
	char json[8192] = "{\"normalizer\":", message[256] = "";
	struct mimeo_text *text = NULL;

	for (int i = 0; i < 100; i++)
		strcat(json, opening);
	for (int i = 0; i < 100; i++)
		strcat(json, closing);
	strcat(json, "," MODEL "}");
	assert_int_equal(
		fixture_open_json(&text, json, message, sizeof(message)), MIMEO_E_UNSUPPORTED);
	assert_non_null(strstr(message, "nested"));
}

/* `count` elements of a list or an object in place of %s. */
static int open_many(
	const char *format, const char *element, size_t count, char *message, size_t size)
{
	size_t unit = strlen(element) + 24;
	char *list = malloc(count * unit + 1), *json;
	struct mimeo_text *text = NULL;
	size_t n = 0;

	assert_non_null(list);
	for (size_t i = 0; i < count; i++)
		n += (size_t)snprintf(list + n, unit, element, i > 0 ? "," : "", (unsigned)i);
	list[n] = '\0';
	assert_true(asprintf(&json, format, list) > 0);
	free(list);
	int rc = fixture_open_json(&text, json, message, size);
	free(json);
	mimeo_text_close(text);
	return rc;
}

static void test_lengths_and_counts_are_bounded(void **state)
{
	char message[256] = "";

	assert_int_equal(open_many("{\"added_tokens\":[%s]," MODEL "}", "%s{\"content\":\"<%u>\"}",
				 100001, message, sizeof(message)),
		MIMEO_E_INVALID);
	assert_non_null(strstr(message, "100001"));
	assert_int_equal(
		open_many("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s]}," MODEL "}",
			"%s{\"type\":\"NFC\"}", 33, message, sizeof(message)),
		MIMEO_E_INVALID);
	assert_int_equal(open_many("{\"added_tokens\":[{\"content\":\"%s\"}]," MODEL "}", "x%.0s",
				 513, message, sizeof(message)),
		MIMEO_E_INVALID);
	assert_non_null(strstr(message, "513"));
	assert_int_equal(open_many("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"%s\",0]]}}",
				 "x%.0s", 1025, message, sizeof(message)),
		MIMEO_E_INVALID);
	assert_int_equal(open_many("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":"
				   "\"%s\"},\"behavior\":\"Isolated\"}," MODEL "}",
				 "x%.0s", 16385, message, sizeof(message)),
		MIMEO_E_UNSUPPORTED);
	assert_int_equal(open_many("{\"version\":[%s]}", "%s1", 12000001, message, sizeof(message)),
		MIMEO_E_INVALID);
	assert_non_null(strstr(message, "values"));
}

static void test_message_may_be_absent_or_short(void **state)
{
	struct mimeo_text *text = NULL;
	char message[8];

	memset(message, 'x', sizeof(message));
	assert_int_equal(fixture_open_json(&text, "{}", NULL, 0), MIMEO_E_INVALID);
	assert_int_equal(fixture_open_json(&text, "{}", message, sizeof(message)), MIMEO_E_INVALID);
	assert_int_equal(strlen(message), sizeof(message) - 1);
}

static void *allocate_nothing(size_t size)
{
	return NULL;
}

static void test_no_memory_for_json_is_told(void **state)
{
	struct mimeo_text *text = NULL;
	char message[256];

	json_set_alloc_funcs(allocate_nothing, free);
	int rc = fixture_open_json(&text, "{" MODEL "}", message, sizeof(message));
	json_set_alloc_funcs(malloc, free);
	assert_int_equal(rc, MIMEO_E_NO_MEMORY);
	assert_non_null(strstr(message, "memory"));
}

static void test_strings_are_not_cut_at_nul(void **state)
{
	static const struct refusal refusals[] = {
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\\u0000\":0},\"merges\":[]}}",
			MIMEO_E_UNSUPPORTED, {"line 1", "U+0000"}},
		{"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a "
		 "a\\u0000\"]}}",
			MIMEO_E_INVALID, {"merges[0]"}},
	};

	check(refusals, ARRAY_SIZE(refusals));
}

static void test_messages_hold_no_half_characters(void **state)
{
	char message[80];
	struct mimeo_text *text = NULL;

	for (size_t size = 1; size <= sizeof(message); size++) {
		fixture_open_json(&text,
			"{\"model\":{\"type\":\"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x99\x82\"}}", message,
			size);
		assert_int_equal(utf8_valid(message, strlen(message)), strlen(message));
	}
}

static void test_messages_hold_no_control_characters(void **state)
{
	char message[256] = "";
	struct mimeo_text *text = NULL;

	fixture_open_json(
		&text, "{\"model\":{\"type\":\"a\\u009b31m\"}}", message, sizeof(message));
	assert_non_null(strstr(message, "a??31m"));

	fixture_open_json(
		&text, "{\"model\":{\"type\":\"a\\u001b[31m\\n\"}}", message, sizeof(message));
	for (const char *at = message; *at; at++)
		assert_true((unsigned char)*at >= ' ');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unknown_components_are_named),
		cmocka_unit_test(test_unknown_fields_and_values_are_named),
		cmocka_unit_test(test_unused_options_of_later_versions_are_no_reason),
		cmocka_unit_test(test_contradictions_and_wrong_types_are_invalid),
		cmocka_unit_test(test_nesting_is_bounded),
		cmocka_unit_test(test_lengths_and_counts_are_bounded),
		cmocka_unit_test(test_message_may_be_absent_or_short),
		cmocka_unit_test(test_no_memory_for_json_is_told),
		cmocka_unit_test(test_strings_are_not_cut_at_nul),
		cmocka_unit_test(test_messages_hold_no_half_characters),
		cmocka_unit_test(test_messages_hold_no_control_characters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
