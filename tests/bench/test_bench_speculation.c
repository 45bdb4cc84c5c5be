/* SPDX-License-Identifier: MIT */

/*
 * mimeo-bench speculation as a user runs it: the same load without a draft and with one, and figures
 * that go together. How large they are is the machine's affair, but for what was trained to hold.
 */

#include "tests/bench/run.h"

#define TRAINED "count 97 30\n"

static json_t *rows_of_trained(const char *arguments)
{
	return rows_of_model("--model " MODELS "tinycalc --draft " MODELS "tinycalc-eagle --text '" TRAINED
		"' speculation", arguments);
}

static void assert_product(
	const json_t *rows, size_t row, const char *value, double quotient, double divisor)
{
	assert_near(number(rows, row, value), quotient / divisor);
}

/* By turns without the draft and with it. */
static void assert_pair(const json_t *rows, size_t i, double processes, double drafts)
{
	for (size_t row = i; row < i + 2; row++) {
		assert_true(number(rows, row, "processes") == processes);
		assert_true(number(rows, row, "draft_tokens") == (row == i ? 0 : drafts));
		assert_true(number(rows, row, "tokens") == number(rows, i, "tokens"));
		assert_product(rows, row, "ratio", number(rows, row, "step_mean_s"),
			number(rows, row, "floor_s"));
		assert_product(rows, row, "against_none", number(rows, row, "tokens_per_s"),
			number(rows, i, "tokens_per_s"));
		assert_true(number(rows, row, "engine_s") > 0);
		assert_true(number(rows, row, "gap_mean_s") >= 0);
		assert_true(number(rows, row, "idle_percent") < 100);
		assert_true(number(rows, row, "engine_idle_percent") <= 100);
	}
	assert_product(rows, i + 1, "break_even", number(rows, i + 1, "step_mean_s"),
		number(rows, i, "step_mean_s"));
	assert_product(rows, i + 1, "tokens_per_verification", number(rows, i + 1, "verified_tokens"),
		number(rows, i + 1, "verified_rows"));
	assert_true(number(rows, i + 1, "draft_mean_s") < number(rows, i + 1, "step_mean_s"));
	assert_true(number(rows, i + 1, "floor_s") > number(rows, i, "floor_s"));
	assert_true(json_is_null(json_object_get(json_array_get(rows, i), "break_even")));
}

/* The last of its tokens may leave no capacity for a draft token, and the first is the prompt's. */
static void test_trained_draft_gives_several_tokens_a_verification(void **state)
{
	json_t *rows = rows_of_trained("--processes 1,2 --tokens 41");

	assert_int_equal(json_array_size(rows), 4);
	for (size_t i = 0; i < 4; i += 2) {
		assert_pair(rows, i, i ? 2 : 1, 4);
		assert_true(number(rows, i + 1, "tokens_per_verification") > 4);
		/* Whether the clients' requests share steps depends on when they come. */
		assert_true(number(rows, i + 1, "steps") < 41.0 / 2 * (i ? 2 : 1));
		assert_true(strncmp(text(rows, i + 1, "acceptance"), "1.00 ", 5) == 0);
		/* All but the prompt's token came of a verification. */
		assert_true(number(rows, i + 1, "verified_tokens") == 40.0 * (i ? 2 : 1));
	}
	json_decref(rows);
}

/* With its draft, and where both were made in is empty again. */
static void test_shape_has_a_draft_made_that_goes_with_the_run(void **state)
{
	char output[OUTPUT_MAX];

	run_in_folder("--device cpu --shape tiny speculation --processes 1 --tokens 20 "
		"--draft-tokens 2 2>&1", output);
	assert_non_null(strstr(output, "BREAK-EVEN"));
	assert_non_null(strstr(output, "weights are random"));
	assert_non_null(strstr(output, "\nstatus 0\nempty\n"));
}

static void test_draft_without_its_model_is_status_2(void **state)
{
	static const char *const nonsense[] = {"speculation --text x --prompt 5",
		"speculation --text ''", "speculation --draft-tokens 9", "decode --draft x",
		"speculation --socket /nonexistent/x.sock"};

	assert_run(2, "speculation --draft x", "--draft needs --model: a draft is made for one model");
	assert_run(2, "speculation --model x", "--model needs --draft");
	for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
		assert_run(2, nonsense[i], "see --help");
}

static void test_text_for_a_model_that_is_not_of_bytes_is_refused(void **state)
{
	char output[OUTPUT_MAX];

	shell(output, "d=$(mktemp -d); for family in llama eagle; do \"$MIMEO_BUILD\"/examples/make-checkpoint "
		"--vocab 300 --family $family $d/$family; done >/dev/null; \"$MIMEO_BUILD\"/%s --device cpu "
		"--model $d/llama --draft $d/eagle --text abc --processes 1 speculation 2>&1; "
		"echo \"status $?\"; rm -r $d", bench_program);
	assert_non_null(strstr(output, "--text: the model has a vocabulary of 300, not of 256 bytes"));
	assert_non_null(strstr(output, "\nstatus 1\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_trained_draft_gives_several_tokens_a_verification),
		cmocka_unit_test(test_shape_has_a_draft_made_that_goes_with_the_run),
		cmocka_unit_test(test_draft_without_its_model_is_status_2),
		cmocka_unit_test(test_text_for_a_model_that_is_not_of_bytes_is_refused),
	};

	return cmocka_run_group_tests_name("bench_speculation", tests, NULL, NULL);
}
