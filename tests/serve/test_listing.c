/* SPDX-License-Identifier: MIT */
/* What mimeoctl prints of what a daemon answers: which columns there are, with drafts and without. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ctl/listing.h"

static int setup(void **state)
{
	struct harness *harness = harness_new();

	harness_start(harness);
	*state = harness;
	return 0;
}

static int setup_without_drafts(void **state)
{
	struct harness *harness = harness_new();

	fake_engine_without_drafts(harness->engine);
	harness_start(harness);
	*state = harness;
	return 0;
}

static int teardown(void **state)
{
	harness_free(*state);
	return 0;
}

/* The caller's to free. */
static char *printed(struct harness *harness, const char *op, enum table_form form)
{
	struct answer *answer = operator_ask(harness, op, NULL);
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	assert_int_equal(listing_print(listing_find(op), answer, file, form), 0);
	fclose(file);
	answer_free(answer);
	return text;
}

static const char *const draft_titles[] = {
	"DRAFT ", "DRAFT TOKENS", "PER VERIFICATION", "ACCEPTANCE", "DRAFT TIME"};
enum { N_TITLES = sizeof(draft_titles) / sizeof(draft_titles[0]) };

static void test_models_on_a_terminal_tell_of_the_draft_that_one_has(void **state)
{
	char *text = printed(*state, "models", TABLE_AS_TEXT);

	for (int i = 0; i < N_TITLES; i++)
		assert_non_null(strstr(text, draft_titles[i]));
	assert_non_null(strstr(text, "LlamaForCausalLMEagle"));
	assert_non_null(strstr(text, "2.75"));
	assert_non_null(strstr(text, "0.95 0.75 0.25"));
	assert_non_null(strstr(text, "250 us"));
	free(text);
}

static void test_models_without_drafts_have_no_columns_for_them_on_a_terminal(void **state)
{
	char *text = printed(*state, "models", TABLE_AS_TEXT);

	assert_non_null(strstr(text, "TOKENS")); /* generated ones */
	for (int i = 0; i < N_TITLES; i++)
		assert_null(strstr(text, draft_titles[i]));
	free(text);
	text = printed(*state, "models", TABLE_AS_WIDE_TEXT);
	for (int i = 0; i < N_TITLES; i++)
		assert_non_null(strstr(text, draft_titles[i]));
	free(text);
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
#define T_IN(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, teardown)
	const struct CMUnitTest tests[] = {
		T_IN(test_models_on_a_terminal_tell_of_the_draft_that_one_has, setup),
		T_IN(test_models_without_drafts_have_no_columns_for_them_on_a_terminal,
			setup_without_drafts),
		T_IN(test_model_without_a_draft_has_null_for_its_name_and_acceptance,
			setup_without_drafts),
		T_IN(test_graphs_name_their_owner_where_some_are_a_drafts, setup),
		T_IN(test_graphs_without_drafts_have_no_owner_on_a_terminal, setup_without_drafts),
		T_IN(test_metrics_as_json_have_both_labels, setup),
	};

	return cmocka_run_group_tests_name("listing", tests, NULL, NULL);
}
