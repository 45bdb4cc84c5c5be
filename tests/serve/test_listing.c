/* SPDX-License-Identifier: MIT */
/* What mimeoctl prints of what a daemon answers: which columns there are, with drafts and without. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ctl/listing.h"

static void configure_without_drafts(struct harness *harness)
{
	fake_engine_without_drafts(harness->engine);
}

static void configure_before_verifications(struct harness *harness)
{
	fake_engine_before_verifications(harness->engine);
}

static void configure_as_resolved(struct harness *harness)
{
	fake_engine_as_configured(harness->engine);
}

/* The caller's to free. */
static char *printed_of(
	struct harness *harness, const char *op, const char *model, enum table_form form)
{
	struct answer *answer = operator_ask(harness, op, NULL);
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	assert_int_equal(
		listing_print(listing_find(op), answer, &(struct listing_filter){.model = model}, file, form), 0);
	fclose(file);
	answer_free(answer);
	/* a copy: compilers take the stream's own for a pointer to this frame */
	char *copy = strdup(text);

	free(text);
	return copy;
}

static char *printed(struct harness *harness, const char *op, enum table_form form)
{
	return printed_of(harness, op, NULL, form);
}

static void assert_fits(const char *text, size_t width)
{
	for (size_t length; *text; text += length + (text[length] == '\n')) {
		length = strcspn(text, "\n");
		if (length > width)
			fail_msg("%zu columns: %.*s", length, (int)length, text);
	}
}

static void test_models_on_a_terminal_have_their_drafts_in_a_table_below(void **state)
{
	char *text = printed(*state, "models", TABLE_AS_TEXT);
	const char *drafts = strstr(text, "\n\nNAME ");

	assert_non_null(drafts);
	assert_string_equal(drafts + 2,
		"NAME      DRAFT  K  PER VERIFY  ACCEPTANCE        TIME\n"
		"tinycalc  Eagle  3        2.75  0.95 0.75 0.25  250 us\n");
	assert_null(strstr(text, "DRAFT TOKENS"));
	free(text);
}

static void test_tables_on_a_terminal_have_80_columns_at_most(void **state)
{
	static const char *const ops[] = {"sessions", "requests", "pages", "limits", "models", "graphs"};
	struct msg_hello hello = client_hello();
	struct client client;

	memset(hello.name, 'n', sizeof(hello.name) - 1);
	assert_int_equal(client_attach(*state, &client, &hello), 0);
	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		char *text = printed(*state, ops[i], TABLE_AS_TEXT);

		assert_fits(text, 80);
		free(text);
	}
	client_close(&client);
}

/* As many models as there can be, with names and numbers as long as they can be; a path as long as one can be. */
static void test_tables_of_the_largest_values_have_80_columns_at_most(void **state)
{
	static const char *const ops[] = {"status", "requests", "pages", "limits", "models", "graphs"};

	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		char *text = printed(*state, ops[i], TABLE_AS_TEXT);

		assert_fits(text, 80);
		free(text);
	}
}

static void test_text_on_a_terminal_has_80_columns_at_most(void **state)
{
	static const char line[] = "tinycalc: graph mode PIECEWISE, configured FULL_AND_PIECEWISE: attention "
		"backend mla_planned takes one token a request in a graph, and decoding needs more\nsecond";
	static const struct {
		enum table_form form;
		const char *expected;
	} prints[] = {
		{TABLE_AS_TEXT, "tinycalc: graph mode PIECEWISE, configured FULL_AND_PIECEWISE: attention "
			"backend\n    mla_planned takes one token a request in a graph, and decoding needs "
			"more\nsecond\n"},
		{TABLE_AS_WIDE_TEXT, "tinycalc: graph mode PIECEWISE, configured FULL_AND_PIECEWISE: attention "
			"backend mla_planned takes one token a request in a graph, and decoding needs more\n"
			"second\n"},
	};

	for (int i = 0; i < 2; i++) {
		char *text = NULL;
		size_t size;
		FILE *file = open_memstream(&text, &size);

		assert_non_null(file);
		assert_int_equal(listing_print_text(line, file, prints[i].form), 0);
		fclose(file);
		assert_string_equal(text, prints[i].expected);
		free(text);
	}
}

static void test_graphs_name_the_configured_mode_if_it_was_lowered(void **state)
{
	struct answer *answer = operator_ask(*state, "graphs", NULL);

	assert_string_equal(answer->text,
		"tinycalc: graph mode FULL_DECODE_ONLY, configured FULL: lowered for the test");
	answer_free(answer);
}

static void test_graphs_name_a_mode_once_that_is_as_configured(void **state)
{
	struct answer *answer = operator_ask(*state, "graphs", NULL);

	assert_string_equal(answer->text, "tinycalc: graph mode FULL_AND_PIECEWISE, as configured");
	answer_free(answer);
}

static void test_no_sessions_are_said_to_be_none(void **state)
{
	static const char *const expected[] = {
		[TABLE_AS_TEXT] = "no sessions\n",
		[TABLE_AS_WIDE_TEXT] = "no sessions\n",
		[TABLE_AS_JSON] = "[]\n",
	};

	for (unsigned form = TABLE_AS_TEXT; form <= TABLE_AS_JSON; form++) {
		char *text = printed(*state, "sessions", (enum table_form)form);

		assert_string_equal(text, expected[form]);
		free(text);
	}
}

static void test_requests_that_are_usual_have_no_column_for_it(void **state)
{
	char *text = printed(*state, "requests", TABLE_AS_TEXT);
	char *wide = printed(*state, "requests", TABLE_AS_WIDE_TEXT);

	/* one has a class and a deadline; a user without a name has a number */
	assert_non_null(strstr(text, "CLASS"));
	assert_non_null(strstr(text, "DEADLINE"));
	assert_non_null(strstr(wide, "4000000000"));
	assert_null(strstr(text, "MAX TOKENS"));
	assert_non_null(strstr(wide, "MAX TOKENS"));
	free(wide);
	free(text);
}

static void test_one_request_is_shown_by_its_id_with_all_it_has(void **state)
{
	struct answer *answer = operator_ask(*state, "requests", NULL);
	const struct listing *listing = listing_find("requests");
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	assert_int_equal(listing_print_one(listing, answer, 8, file, TABLE_AS_TEXT), -ENOENT);
	assert_int_equal(listing_print_one(listing, answer, 9, file, TABLE_AS_TEXT), 0);
	fclose(file);
	assert_memory_equal(text, "ID          9\nOP          step\n", 31);
	assert_non_null(strstr(text, "WAIT        100 ms\n"));
	answer_free(answer);
	free(text);
}

static void test_draft_is_shown_before_its_first_verification(void **state)
{
	char *text = printed(*state, "models", TABLE_AS_TEXT);
	const char *drafts = strstr(text, "\n\nNAME ");

	assert_non_null(drafts);
	assert_string_equal(drafts + 2,
		"NAME      DRAFT  K  PER VERIFY  ACCEPTANCE  TIME\n"
		"tinycalc  Eagle  3           -  -              -\n");
	free(text);
}

static void test_one_model_is_a_record_with_its_path_and_memory(void **state)
{
	struct answer *answer = operator_ask(*state, "models", NULL);
	char text[8192] = "";
	FILE *file = fmemopen(text, sizeof(text), "w");

	assert_non_null(file);
	assert_int_equal(listing_print_model(answer, "tinycalc", file, TABLE_AS_TEXT), 0);
	assert_int_equal(listing_print_model(answer, "tiny", file, TABLE_AS_TEXT), -ENOENT);
	fclose(file);
	answer_free(answer);
	assert_non_null(strstr(text, "path                     /models/tinycalc\n"));
	assert_non_null(strstr(text, "layers                   4\n"));
	assert_non_null(strstr(text, "KV cache                 1.00 MiB\n"));
	assert_non_null(strstr(text, "slots                    48\n"));
}

static void test_models_without_drafts_have_no_table_for_them(void **state)
{
	char *text = printed(*state, "models", TABLE_AS_TEXT);

	assert_non_null(strstr(text, "TOKENS")); /* generated ones */
	assert_null(strstr(text, "DRAFT"));
	assert_null(strstr(text, "\n\n"));
	free(text);
}

static void test_wide_models_have_all_columns_in_one_table(void **state)
{
	static const char *const titles[] = {"KV DTYPE", " fp8 ", "GRAPH MEMORY", "DRAFT ", "DRAFT TOKENS",
		"PER VERIFICATION", "ACCEPTANCE", "DRAFT TIME", "LlamaForCausalLMEagle", "2.75",
		"0.95 0.75 0.25", "250 us"};
	char *text = printed(*state, "models", TABLE_AS_WIDE_TEXT);

	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		assert_non_null(strstr(text, titles[i]));
	assert_null(strstr(text, "\n\n"));
	free(text);
}

static void test_graphs_of_one_model_are_no_others(void **state)
{
	char *all = printed(*state, "graphs", TABLE_AS_JSON);
	char *its = printed_of(*state, "graphs", "tinycalc", TABLE_AS_JSON);
	char *none = printed_of(*state, "graphs", "tiny", TABLE_AS_JSON);

	assert_string_equal(its, all);
	assert_string_equal(none, "[]\n");
	free(none);
	free(its);
	free(all);
}

static void test_model_without_a_draft_has_null_for_its_name_and_acceptance(void **state)
{
	char *text = printed(*state, "models", TABLE_AS_JSON);

	assert_non_null(strstr(text, "\"draft\": null,"));
	assert_non_null(strstr(text, "\"draft_tokens\": 0,"));
	assert_non_null(strstr(text, "\"acceptance\": null,"));
	free(text);
}

static void test_graphs_name_their_owner_where_some_are_a_drafts(void **state)
{
	char *text = printed(*state, "graphs", TABLE_AS_TEXT);

	assert_non_null(strstr(text, "OWNER"));
	assert_non_null(strstr(text, "target "));
	assert_non_null(strstr(text, "draft prefill "));
	assert_non_null(strstr(text, "draft decode "));
	free(text);
	text = printed(*state, "graphs", TABLE_AS_JSON);
	assert_non_null(strstr(text, "\"owner\": \"target\""));
	assert_non_null(strstr(text, "\"owner\": \"draft decode\""));
	assert_non_null(strstr(text, "\"shared_replays\": 0"));
	assert_non_null(strstr(text, "\"shared_replays\": null"));
	free(text);
}

static void test_graphs_without_drafts_have_no_owner_on_a_terminal(void **state)
{
	char *text = printed(*state, "graphs", TABLE_AS_TEXT);

	assert_non_null(strstr(text, "FULL 3x1"));
	assert_null(strstr(text, "OWNER"));
	assert_null(strstr(text, "target"));
	free(text);
}

static void test_metrics_as_json_have_both_labels(void **state)
{
	char *text = printed(*state, "metrics", TABLE_AS_JSON);

	assert_non_null(strstr(text,
		"\"label\": \"model\",\n    \"label_value\": \"tinycalc\",\n"
		"    \"label_2\": \"position\",\n    \"label_2_value\": \"1\",\n    \"value\": 200\n"));
	assert_non_null(strstr(text, "\"label_2\": null,\n    \"label_2_value\": null,"));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test(test_models_on_a_terminal_have_their_drafts_in_a_table_below),
		harness_test(test_tables_on_a_terminal_have_80_columns_at_most),
		harness_test_with(test_tables_of_the_largest_values_have_80_columns_at_most, harness_configure_large),
		harness_test(test_text_on_a_terminal_has_80_columns_at_most),
		harness_test(test_graphs_name_the_configured_mode_if_it_was_lowered),
		harness_test_with(test_graphs_name_a_mode_once_that_is_as_configured, configure_as_resolved),
		harness_test(test_no_sessions_are_said_to_be_none),
		harness_test(test_requests_that_are_usual_have_no_column_for_it),
		harness_test(test_one_request_is_shown_by_its_id_with_all_it_has),
		harness_test_with(test_draft_is_shown_before_its_first_verification,
			configure_before_verifications),
		harness_test(test_one_model_is_a_record_with_its_path_and_memory),
		harness_test_with(test_models_without_drafts_have_no_table_for_them,
			configure_without_drafts),
		harness_test(test_wide_models_have_all_columns_in_one_table),
		harness_test(test_graphs_of_one_model_are_no_others),
		harness_test_with(test_model_without_a_draft_has_null_for_its_name_and_acceptance,
			configure_without_drafts),
		harness_test(test_graphs_name_their_owner_where_some_are_a_drafts),
		harness_test_with(test_graphs_without_drafts_have_no_owner_on_a_terminal,
			configure_without_drafts),
		harness_test(test_metrics_as_json_have_both_labels),
	};

	return cmocka_run_group_tests_name("listing", tests, NULL, NULL);
}
