/* SPDX-License-Identifier: MIT */
/* What a daemon makes of a draft before it serves: refused, warned of, switched off. */
#include <stdio.h>

#include "tests/e2e/startup.h"

static const char *draft_folder(const char *below)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s", source_path(below));
	return path;
}

static void test_draft_that_is_not_there_is_refused_by_folder(void **state)
{
	daemon_option(*state, "--draft", "/nonexistent/draft");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: draft: /nonexistent/draft");
	assert_false(daemon_log_has(*state, "of weights in"));
}

static void test_draft_of_another_target_is_refused_with_the_field(void **state)
{
	daemon_option(*state, "--draft", draft_folder("tests/data/drafts/eagle"));
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: draft: ", "config.json: hidden_size",
		"is not 160, the target's");
	assert_false(daemon_log_has(*state, "of weights in"));
}

static void test_model_that_is_no_draft_is_refused_as_one(void **state)
{
	daemon_option(*state, "--draft", draft_folder("examples/models/tinycalc"));
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: draft: ", "LlamaForCausalLM");
	assert_false(daemon_log_has(*state, "of weights in"));
}

static void test_draft_beside_attention_that_needs_lengths_on_the_host_is_refused(void **state)
{
	daemon_option(*state, "--draft", draft_folder("examples/models/tinycalc-eagle"));
	daemon_option(*state, "--attention", "naive");
	if (test_on_cuda()) /* which has no such backend at all */
		ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: attention backend naive cannot serve this model");
	else
		ASSERT_REFUSES(*state, EXIT_ERROR,
			"model tinycalc: draft: attention naive needs the lengths of sequences on the host");
	assert_false(daemon_log_has(*state, "of weights in"));
}

static void test_mtp_is_the_models_own_head_where_it_has_one(void **state)
{
	daemon_option(*state, "--draft", "mtp");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: draft: ",
		"architectures \"LlamaForCausalLM\" is not a draft model");
	assert_false(daemon_log_has(*state, "of weights in"));
}

static void test_drafts_that_no_step_has_room_for_are_refused(void **state)
{
	daemon_option(*state, "--draft", draft_folder("examples/models/tinycalc-eagle"));
	daemon_option(*state, "--draft-tokens", "8");
	daemon_option(*state, "--max-batch-tokens", "8");
	daemon_option(*state, "--max-requests", "8");
	ASSERT_REFUSES(*state, EXIT_USAGE,
		"model tinycalc: draft_tokens 8 exceed max_batch_tokens 8 (--max-batch-tokens): a row "
		"that verifies takes 1 + draft_tokens = 9 of a step");
}

static void test_fewer_rows_that_speculate_than_requests_are_warned_of(void **state)
{
	daemon_option(*state, "--draft", draft_folder("examples/models/tinycalc-eagle"));
	daemon_option(*state, "--max-batch-tokens", "13");
	daemon_option(*state, "--max-requests", "3");
	daemon_start(*state);
	assert_true(daemon_log_has(*state, "model tinycalc: draft: a step holds 2 rows of 5 tokens, "
		"fewer than --max-requests 3"));
}

static void test_rows_for_all_requests_are_not_warned_of(void **state)
{
	daemon_option(*state, "--draft", draft_folder("examples/models/tinycalc-eagle"));
	daemon_option(*state, "--max-batch-tokens", "15");
	daemon_option(*state, "--max-requests", "3");
	daemon_start(*state);
	assert_false(daemon_log_has(*state, "draft: a step holds"));
}

static void test_draft_that_the_command_line_switches_off_is_not_looked_at(void **state)
{
	struct daemon *daemon = *state;

	daemon_option(daemon, "--draft", "/nonexistent");
	daemon_option(daemon, "--draft", "tinycalc=none");
	daemon_start(daemon);
	assert_false(daemon_log_has(daemon, "draft"));
}

static void test_memory_that_a_draft_takes_is_named(void **state)
{
	daemon_option(*state, "--draft", draft_folder("examples/models/tinycalc-eagle"));
	daemon_option(*state, "--memory", "1M");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: its weights need ",
		" of them for the draft model, see --draft none");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		OWN(test_draft_that_is_not_there_is_refused_by_folder),
		OWN(test_draft_of_another_target_is_refused_with_the_field),
		OWN(test_model_that_is_no_draft_is_refused_as_one),
		OWN(test_draft_beside_attention_that_needs_lengths_on_the_host_is_refused),
		OWN(test_mtp_is_the_models_own_head_where_it_has_one),
		OWN(test_drafts_that_no_step_has_room_for_are_refused),
		OWN(test_draft_that_the_command_line_switches_off_is_not_looked_at),
		OWN(test_memory_that_a_draft_takes_is_named),
		OWN(test_fewer_rows_that_speculate_than_requests_are_warned_of),
		OWN(test_rows_for_all_requests_are_not_warned_of),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("startup_draft", tests, NULL, NULL);
}
