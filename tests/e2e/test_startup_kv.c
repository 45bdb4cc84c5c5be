/* SPDX-License-Identifier: MIT */

/* A model whose keys and values are fp8 (kv_dtype), alone and with a draft. */

#include "tests/e2e/questions.h"
#include "tests/e2e/startup.h"

#define N_QUESTIONS 200
#define N_RIGHT 198

static void expect_answers(struct daemon *daemon)
{
	static struct question questions[N_QUESTIONS];
	static struct reply replies[N_QUESTIONS];
	struct mimeo *m;

	daemon_option(daemon, "--kv-dtype", "fp8");
	daemon_start(daemon);
	assert_true(daemon_log_has(daemon,
		"model tinycalc: keys and values in fp8: its files have no factors, so all are 1"));
	questions_make(questions, N_QUESTIONS, 19);
	memset(replies, 0, sizeof(replies));
	m = daemon_connect(daemon, 0, 0);
	assert_int_equal(questions_ask(m, questions, N_QUESTIONS, 16, replies), 0);
	mimeo_close(m);
	assert_true(replies_wrong(questions, replies, N_QUESTIONS) <= N_QUESTIONS - N_RIGHT);
}

static void test_model_over_fp8_answers_99_questions_of_100(void **state)
{
	expect_answers(*state);
}

static void test_draft_over_fp8_proposes_what_holds(void **state)
{
	int64_t n_rows, n_tokens;
	char draft[512];

	snprintf(draft, sizeof(draft), "%s", source_path("examples/models/tinycalc-eagle"));
	daemon_option(*state, "--draft", draft);
	expect_answers(*state);
	assert_true(daemon_log_has(*state, "model tinycalc: draft: keys and values in fp8: its files have no factors"));
	n_rows = daemon_number(*state, "models", 0, "verified_rows");
	n_tokens = daemon_number(*state, "models", 0, "verified_tokens");
	assert_true(n_rows > 0 && n_tokens > 3 * n_rows);
}

static void test_operators_socket_shows_the_memory_of_a_cache_in_fp8(void **state)
{
	char option[512];
	int64_t wide, narrow;

	snprintf(option, sizeof(option), "narrow=%s", source_path("examples/models/tinycalc"));
	daemon_option(*state, "--model", option);
	daemon_option(*state, "--kv-dtype", "narrow=fp8");
	daemon_start(*state);
	wide = daemon_number(*state, "models", 0, "kv_bytes");
	narrow = daemon_number(*state, "models", 1, "kv_bytes");
	assert_true(wide > 0 && wide == narrow * (test_on_cuda() ? 2 : 4)); /* of as many pages */
	assert_false(daemon_log_has(*state, "model tinycalc: keys and values in fp8"));
}

static void test_other_dtypes_of_keys_and_values_are_refused_with_those_that_are_taken(void **state)
{
	daemon_option(*state, "--kv-dtype", "int8");
	ASSERT_REFUSES(*state, EXIT_USAGE, "--kv-dtype: \"int8\"", "model or fp8");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		OWN(test_model_over_fp8_answers_99_questions_of_100),
		OWN(test_draft_over_fp8_proposes_what_holds),
		OWN(test_operators_socket_shows_the_memory_of_a_cache_in_fp8),
		OWN(test_other_dtypes_of_keys_and_values_are_refused_with_those_that_are_taken),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("startup_kv", tests, NULL, NULL);
}
