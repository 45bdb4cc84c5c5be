/* SPDX-License-Identifier: MIT */

/* What a template may take, and what it is refused for. */

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "sdk/text/chat_context.h"
#include "tests/text/chat.h"

static void test_steps_have_a_limit(void **state)
{
	assert_chat_fails(
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		MIMEO_E_TOO_LONG, "line 1: the template takes more than 67108864 steps");
}

static void test_text_that_grows_at_its_front_ends_at_a_limit(void **state)
{
	assert_chat_fails("{% set ns = namespace(s='') %}{% for i in range(100000) %}{% set ns.s = "
			  "'xxxxxxxx' + ns.s %}{% endfor %}",
		MIMEO_E_TOO_LONG, "line 1: the template takes more than");
}

static void test_text_that_grows_at_its_end_is_cheap(void **state)
{
	struct chat chat = chat_make("{% set ns = namespace(s='') %}{% for i in range(100000) %}{% "
				     "set ns.s = ns.s + 'xxxxxxxx' %}{% endfor %}{{ ns.s }}",
		"{}", "{}");

	assert_int_equal(chat.status, 0);
	assert_int_equal(chat.length, 800000);
	chat_free(&chat);
}

static void test_work_over_whole_strings_is_charged(void **state)
{
	static const char *const uses[] = {"x is upper", "x.startswith(y)", "x.endswith((z, y))",
		"x.removeprefix(y)", "x | int", "x | float"};
	char source[512];

	for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
		/* find() takes most of the steps in little time. */
		snprintf(source, sizeof(source),
			"{%% set x = 'A' * 1000000 %%}{%% set y = 'A' * 999999 %%}{%% set z = 'B' "
			"+ y %%}"
			"{%% for i in range(1000) %%}{%% if x.find('B') %%}{%% endif %%}{%% endfor "
			"%%}"
			"{%% for i in range(120) %%}{%% if %s %%}{%% endif %%}{%% endfor %%}",
			uses[i]);
		assert_chat_fails(source, MIMEO_E_TOO_LONG, "line 1: the template takes more than");
	}
}

/* 20000 variables, and one that is looked up among them 100000 times. */
static void test_variables_that_are_walked_are_charged(void **state)
{
	char *source;
	size_t size;
	FILE *file = open_memstream(&source, &size);

	assert_non_null(file);
	fputs("{% set last = 1 %}", file);
	for (int i = 0; i < 20000; i++)
		fprintf(file, "{%% set v%d = 1 %%}", i);
	fputs("{% for i in range(100000) %}{% if last %}{% endif %}{% endfor %}", file);
	fclose(file);
	assert_chat_fails(source, MIMEO_E_TOO_LONG, "line 1: the template takes more than");
	free(source);
}

static void test_recursion_has_a_limit(void **state)
{
	assert_chat_fails("{% macro f() %}{{ f() }}{% endmacro %}\n{{ f() }}", MIMEO_E_TOO_LONG,
		"line 1: more than 800 nested constructs");
	assert_chat_fails("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		MIMEO_E_TOO_LONG, "line 1: more than 800 nested constructs");
}

static void test_nested_values_have_a_limit(void **state)
{
	static const char *const uses[] = {
		"ns.x", "ns.x | tojson", "ns.x == ns.y", "ns.x < ns.y", "ns.m | list", "{ns.t: 1}"};
	char source[512];

	for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
		snprintf(source, sizeof(source),
			"{%% set ns = namespace(x=[], y=[], m=[1], t=()) %%}{%% for i in "
			"range(2000) %%}"
			"{%% set ns.x = [ns.x] %%}{%% set ns.y = [ns.y] %%}{%% set ns.t = (ns.t,) "
			"%%}"
			"{%% set ns.m = ns.m | map('string') %%}{%% endfor %%}{{ %s }}",
			uses[i]);
		assert_chat_fails(
			source, MIMEO_E_TOO_LONG, "line 1: more than 800 nested constructs");
	}
	assert_chat_fails("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", MIMEO_E_TOO_LONG,
		"line 1: more than 800 nested constructs");
}

/* `n` times `open`, then `middle`, then `n` times `close`, within a tag if `is_expression`. */
static void check_nested(
	const char *open, const char *middle, const char *close, bool is_expression)
{
	const size_t n = 2000;
	char *source = calloc(1, (strlen(open) + strlen(close)) * n + strlen(middle) + 16);
	struct chat chat;

	strcat(source, is_expression ? "{{ " : "");
	for (size_t i = 0; i < n; i++)
		strcat(source, open);
	strcat(source, middle);
	for (size_t i = 0; i < n; i++)
		strcat(source, close);
	strcat(source, is_expression ? " }}" : "");
	chat = chat_make(source, "{}", "{}");
	if (chat.status != MIMEO_E_TOO_LONG && !strstr(chat.message, "open brackets"))
		fail_msg("%.20s...: %s", source, chat.message);
	chat_free(&chat);
	free(source);
}

static void test_a_source_with_deep_nesting_is_refused(void **state)
{
	check_nested("{% if 1 %}", "", "{% endif %}", false);
	check_nested("{% if 1 %}{% elif 1 %}", "", "{% endif %}", false);
	check_nested("{% for x in [1] %}", "", "{% endfor %}", false);
	check_nested("{% set x %}", "", "{% endset %}", false);
	check_nested("{% filter upper %}", "", "{% endfilter %}", false);
	check_nested("{% macro f() %}", "", "{% endmacro %}", false);
	check_nested("(", "1", ")", true);
	check_nested("[", "", "]", true);
	check_nested("-", "1", "", true);
	check_nested("1 if 0 else ", "1", "", true);
	check_nested("1 + ", "1", "", true);
	check_nested("", "1", " | string", true);
	check_nested("", "x", ".x", true);
	check_nested("", "x", "()", true);
}

/* 140000 conditions in a row, each with a filter that does not exist. */
static void test_conditions_in_a_row_take_linear_time(void **state)
{
	struct chat_template *chat_template;
	char message[256], *source;
	size_t size;
	FILE *file = open_memstream(&source, &size);
	clock_t start = clock();

	assert_non_null(file);
	fputs("{{ 1 ", file);
	for (int i = 0; i < 140000; i++)
		fputs("if 1|f ", file);
	fputs("}}", file);
	fclose(file);
	assert_int_equal(
		chat_template_new(&chat_template, source, size, message, sizeof(message)), 0);
	assert_true(clock() - start < 5 * CLOCKS_PER_SEC);
	chat_template_free(chat_template);
	free(source);
}

static void test_a_text_has_a_limit(void **state)
{
	assert_chat_fails("{{ ('x' * 100000) * 1000 }}", MIMEO_E_TOO_LONG,
		"line 1: a text exceeds 67108864 bytes");
	assert_chat_fails("{% set x = 'x' * 10000 %}{% for i in range(10000) %}{{ x }}{% endfor %}",
		MIMEO_E_TOO_LONG, "line 1: a text exceeds 67108864 bytes");
	assert_chat_fails("{{ '%099999d' % 1 }}{{ '%0100001d' % 1 }}", MIMEO_E_UNSUPPORTED,
		"line 1: a format with a number above");
}

static void test_memory_has_a_limit(void **state)
{
	struct chat_context context;
	char message[128];
	volatile size_t n = 0;

	chat_context_init(&context, message, sizeof(message));
	context.memory_left = 1u << 20;
	if (!setjmp(context.unwind)) {
		for (;; n++)
			chat_alloc(&context, 1000);
	}
	assert_int_equal(context.status, MIMEO_E_TOO_LONG);
	assert_string_equal(message, "line 1: the template takes more than 1024 MiB of memory");
	assert_true(n >= 1000 && n <= 1049);
	chat_context_deinit(&context);
}

static void test_ranges_and_integers_have_limits(void **state)
{
	assert_chat_fails(
		"{{ range(100001) }}", MIMEO_E_INVALID, "line 1: range: more than 100000 items");
	assert_chat_fails("{{ range(0, 9223372036854775807, 1) }}", MIMEO_E_INVALID,
		"line 1: range: more than");
	assert_chat_fails(
		"{{ 2 ** 63 }}", MIMEO_E_UNSUPPORTED, "line 1: an integer exceeds 64 bits");
	assert_chat_fails("{{ 9223372036854775807 + 1 }}", MIMEO_E_UNSUPPORTED,
		"line 1: an integer exceeds 64 bits");
	assert_chat_fails("{{ -(-9223372036854775807 - 1) }}", MIMEO_E_UNSUPPORTED,
		"line 1: an integer exceeds 64 bits");
	assert_chat_fails("{{ (-9223372036854775807 - 1) // -1 }}", MIMEO_E_UNSUPPORTED,
		"line 1: an integer exceeds 64 bits");
	assert_chat_fails("{{ 9223372036854775808 }}", MIMEO_E_UNSUPPORTED,
		"line 1: an integer exceeds 64 bits");
}

static void test_a_long_source_is_refused(void **state)
{
	struct chat_template *chat_template;
	char message[128];
	char *source = calloc(1, CHAT_SOURCE_MAX + 1);

	memset(source, 'x', CHAT_SOURCE_MAX + 1);
	assert_int_equal(chat_template_new(&chat_template, source, CHAT_SOURCE_MAX + 1, message,
				 sizeof(message)),
		MIMEO_E_UNSUPPORTED);
	assert_int_equal(chat_template_new(
				 &chat_template, source, CHAT_SOURCE_MAX, message, sizeof(message)),
		0);
	chat_template_free(chat_template);
	free(source);
}

/* ---- messages ---- */

static void test_what_is_not_supported_is_named_with_its_line(void **state)
{
	assert_chat_fails("a\n\n{{ 'x' | urlize }}", MIMEO_E_UNSUPPORTED,
		"line 3: filter \"urlize\" is not supported");
	assert_chat_fails("{% if true %}\n{{ 'x' | urlize }}{% endif %}", MIMEO_E_UNSUPPORTED,
		"line 2: filter \"urlize\" is not supported");
	assert_chat_fails("\n{{ 1 is prime }}", MIMEO_E_UNSUPPORTED,
		"line 2: test \"prime\" is not supported");
	assert_chat_fails("\n\n{% include 'x' %}", MIMEO_E_UNSUPPORTED,
		"line 3: tag \"include\" is not supported");
	assert_chat_fails("{%- block x %}{% endblock %}", MIMEO_E_UNSUPPORTED,
		"line 1: tag \"block\" is not supported");
	assert_chat_fails("{{\n'x'.encode() }}", MIMEO_E_UNSUPPORTED,
		"line 2: encode() of a 'str' is not supported");
	assert_chat_fails("{{ cycler('a') }}", MIMEO_E_UNSUPPORTED,
		"line 1: cycler() of a 'function' is not supported");
	assert_chat_fails("{{ 'a'\n%}", MIMEO_E_UNSUPPORTED, "line 2: unexpected \"}\"");
	assert_chat_fails("{% if x %}\n", MIMEO_E_UNSUPPORTED,
		"line 1: the template ends where endif is expected");
	assert_chat_fails("{{ 'a\\N{DIGIT ONE}' }}", MIMEO_E_UNSUPPORTED,
		"line 1: escape \"\\N\" is not supported");
}

static void test_an_error_of_the_template_is_named_with_its_line(void **state)
{
	assert_chat_fails("{% macro f(x) %}\n{{ x + 1 }}{% endmacro %}\n\n{{ f('a') }}",
		MIMEO_E_INVALID, "line 2: unsupported operand types for +: 'str' and 'int'");
	assert_chat_fails(
		"\n{{ messages[0].content }}", MIMEO_E_INVALID, "line 2: 'messages' is undefined");
	assert_chat_fails(
		"{{ {}.x.y }}", MIMEO_E_INVALID, "line 1: dict object has no attribute 'x'");
	assert_chat_fails("\n{{ raise_exception('Only user and assistant roles!') }}",
		MIMEO_E_INVALID, "Only user and assistant roles!");
}

static void test_a_message_is_cut_between_characters(void **state)
{
	struct chat_context context;
	char message[8];

	for (volatile size_t size = 1; size <= sizeof(message); size++) {
		chat_context_init(&context, message, size);
		if (!setjmp(context.unwind))
			chat_raise(&context, "aé中🙂", 10);
		assert_string_equal(message, size < 2   ? ""
					     : size < 4 ? "a"
					     : size < 7 ? "aé"
							: "aé中");
		chat_context_deinit(&context);
	}
}

static void test_a_message_holds_no_control_characters(void **state)
{
	assert_chat_fails(
		"{{ raise_exception('a\x1b]0;x\x07\xc2\x9b') }}", MIMEO_E_INVALID, "a?]0;x???");
}

/* ---- time, threads, locale ---- */

static void test_strftime_now_gives_the_local_time(void **state)
{
	char before[64], after[64];
	time_t now = time(NULL);
	struct chat chat;

	strftime(before, sizeof(before), "%Y-%m-%d %H:%M |%%|", localtime(&now));
	chat = chat_make("{{ strftime_now('%Y-%m-%d %H:%M %z%Z|%%|') }}", "{}", "{}");
	now = time(NULL);
	strftime(after, sizeof(after), "%Y-%m-%d %H:%M |%%|", localtime(&now));
	assert_int_equal(chat.status, 0);
	assert_true(!strcmp(chat.text, before) || !strcmp(chat.text, after));
	chat_free(&chat);
}

static struct chat_template *shared;

static void *render_often(void *unused)
{
	json_t *trusted = json_object();
	json_t *users = json_loads("{\"u\": \"User\", \"d\": {\"key\": 1}}", 0, NULL);

	for (int i = 0; i < 200; i++) {
		char message[64], *text;
		uint8_t *foreign;
		size_t length;

		if (chat_template_render(shared, trusted, users, &text, &foreign, &length, message,
			    sizeof(message)) ||
			strcmp(text, "Grüße User! 1 True abc [{'key': 1}]"))
			abort();
		free(text);
		free(foreign);
	}
	json_decref(trusted);
	json_decref(users);
	return unused;
}

static void test_threads_can_share_a_template(void **state)
{
	static const char source[] = "{% macro f(a, b='c') %}{{ a + b }}{% endmacro %}{{ 'Grüße ' "
				     "+ u ~ '!' }} {{ d['key'] }} "
				     "{{ 'Gr' in 'Grüße'[:3] }} {{ f('ab') }} {{ [d] }}";
	pthread_t threads[4];
	char message[64];

	assert_int_equal(
		chat_template_new(&shared, source, strlen(source), message, sizeof(message)), 0);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, render_often, NULL), 0);
	for (size_t i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	chat_template_free(shared);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_steps_have_a_limit),
		cmocka_unit_test(test_text_that_grows_at_its_front_ends_at_a_limit),
		cmocka_unit_test(test_text_that_grows_at_its_end_is_cheap),
		cmocka_unit_test(test_work_over_whole_strings_is_charged),
		cmocka_unit_test(test_variables_that_are_walked_are_charged),
		cmocka_unit_test(test_recursion_has_a_limit),
		cmocka_unit_test(test_nested_values_have_a_limit),
		cmocka_unit_test(test_a_source_with_deep_nesting_is_refused),
		cmocka_unit_test(test_conditions_in_a_row_take_linear_time),
		cmocka_unit_test(test_a_text_has_a_limit),
		cmocka_unit_test(test_memory_has_a_limit),
		cmocka_unit_test(test_ranges_and_integers_have_limits),
		cmocka_unit_test(test_a_long_source_is_refused),
		cmocka_unit_test(test_what_is_not_supported_is_named_with_its_line),
		cmocka_unit_test(test_an_error_of_the_template_is_named_with_its_line),
		cmocka_unit_test(test_a_message_is_cut_between_characters),
		cmocka_unit_test(test_a_message_holds_no_control_characters),
		cmocka_unit_test(test_strftime_now_gives_the_local_time),
		cmocka_unit_test(test_threads_can_share_a_template),
	};

	return cmocka_run_group_tests_name("chat_limits", tests, NULL, NULL);
}
