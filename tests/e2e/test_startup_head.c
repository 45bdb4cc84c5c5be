/* SPDX-License-Identifier: MIT */

/* A model whose head the daemon rounds to fp8 while it loads it (head_dtype), alone and with a draft. */

#include "tests/e2e/questions.h"
#include "tests/e2e/startup.h"

#define N_QUESTIONS 200
#define N_RIGHT 198 /* as of tinycalc quantised (test_quantised_answers.c) */

static void expect_answers(struct daemon *daemon)
{
	static struct question questions[N_QUESTIONS];
	static struct reply replies[N_QUESTIONS];
	char line[128];
	struct mimeo *m;

	daemon_option(daemon, "--head-dtype", "fp8");
	daemon_start(daemon);
	/* its 160 columns are in no units */
	snprintf(line, sizeof(line), "model tinycalc: LlamaForCausalLM, head fp8, widened to %s at load, ",
		test_on_cuda() ? "bf16" : "f32");
	assert_true(daemon_log_has(daemon, line));
	questions_make(questions, N_QUESTIONS, 18);
	memset(replies, 0, sizeof(replies));
	m = daemon_connect(daemon, 0, 0);
	assert_int_equal(questions_ask(m, questions, N_QUESTIONS, 16, replies), 0);
	mimeo_close(m);
	assert_true(replies_wrong(questions, replies, N_QUESTIONS) <= N_QUESTIONS - N_RIGHT);
}

static void test_model_with_a_head_in_fp8_answers_99_questions_of_100(void **state)
{
	expect_answers(*state);
}

static void test_draft_proposes_by_the_head_in_fp8(void **state)
{
	int64_t n_rows, n_tokens;
	char draft[512];

	snprintf(draft, sizeof(draft), "%s", source_path("examples/models/tinycalc-eagle"));
	daemon_option(*state, "--draft", draft);
	expect_answers(*state);
	n_rows = daemon_number(*state, "models", 0, "verified_rows");
	n_tokens = daemon_number(*state, "models", 0, "verified_tokens");
	assert_true(n_rows > 0 && n_tokens > 3 * n_rows);
}

static void test_log_and_operators_socket_count_the_memory_of_a_head_in_fp8(void **state)
{
	char line[64];
	int64_t bytes;

	daemon_option(*state, "--head-dtype", "tinycalc=fp8");
	daemon_start(*state);
	bytes = daemon_number(*state, "models", 0, "weights_bytes");
	snprintf(line, sizeof(line), ", %.2f MiB of weights in ", (double)bytes / (1 << 20));
	assert_true(daemon_log_has(*state, line));
}

static void test_head_stays_as_the_model_has_it_without_the_option(void **state)
{
	daemon_start(*state);
	assert_false(daemon_log_has(*state, "head fp8"));
}

static void test_head_that_is_quantised_already_is_said_to_stay(void **state)
{
	char option[512];

	snprintf(option, sizeof(option), "quantised=%s", source_path("tests/data/checkpoints/compressed-channel-128"));
	daemon_option(*state, "--model", option);
	daemon_option(*state, "--head-dtype", "quantised=fp8");
	daemon_start(*state);
	assert_true(daemon_log_has(*state,
		"model quantised: head_dtype = fp8 changes nothing: its files have a quantised head"));
	assert_false(daemon_log_has(*state, "model tinycalc: head_dtype"));
}

static void test_other_dtypes_of_a_head_are_refused_with_those_that_are_taken(void **state)
{
	daemon_option(*state, "--head-dtype", "int8");
	ASSERT_REFUSES(*state, EXIT_USAGE, "--head-dtype: \"int8\"", "model or fp8");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		OWN(test_model_with_a_head_in_fp8_answers_99_questions_of_100),
		OWN(test_draft_proposes_by_the_head_in_fp8),
		OWN(test_log_and_operators_socket_count_the_memory_of_a_head_in_fp8),
		OWN(test_head_stays_as_the_model_has_it_without_the_option),
		OWN(test_head_that_is_quantised_already_is_said_to_stay),
		OWN(test_other_dtypes_of_a_head_are_refused_with_those_that_are_taken),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("startup_head", tests, NULL, NULL);
}
