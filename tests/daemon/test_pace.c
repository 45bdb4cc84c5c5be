/* SPDX-License-Identifier: MIT */
/* How many prompt tokens a step may have, by the times of earlier steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/engine/lane/pace.h"

#define MS 1000000

static void test_without_a_target_prompts_have_the_whole_step(void **state)
{
	struct pace pace = {0};

	pace_follow(&pace, 100 * MS, 512, 4);
	assert_int_equal(pace_tokens(&pace, 0, 512), 512);
}

static void test_before_a_time_is_known_a_step_has_few_prompt_tokens(void **state)
{
	const struct pace pace = {0};

	assert_int_equal(pace_tokens(&pace, 50 * MS, 8192), PACE_FIRST);
	assert_int_equal(pace_tokens(&pace, 50 * MS, 64), 64);
}

static void test_tokens_are_what_fits_the_target_beside_the_base(void **state)
{
	struct pace pace = {0};

	pace_follow(&pace, 10 * MS, 0, 4);
	pace_follow(&pace, 30 * MS, 200, 4); /* 0.1 ms a token */
	assert_in_range(pace_tokens(&pace, 50 * MS, 8192), 399, 401);
	assert_int_equal(pace_tokens(&pace, 50 * MS, 300), 300);
}

static void test_prompts_alone_tell_the_time_per_token_too(void **state)
{
	struct pace pace = {0};

	pace_follow(&pace, 20 * MS, 200, 0);
	assert_in_range(pace_tokens(&pace, 50 * MS, 8192), 499, 501);
}

static void test_a_step_always_has_a_few_prompt_tokens(void **state)
{
	struct pace pace = {0};

	pace_follow(&pace, 80 * MS, 0, 4);
	pace_follow(&pace, 100 * MS, 20, 4);
	assert_int_equal(pace_tokens(&pace, 50 * MS, 8192), PACE_LEAST);
	assert_int_equal(pace_tokens(&pace, 50 * MS, 8), 8);
}

static void test_times_follow_what_changes(void **state)
{
	struct pace pace = {0};

	pace_follow(&pace, 20 * MS, 200, 0);
	for (int i = 0; i < 30; i++)
		pace_follow(&pace, 200 * MS, 200, 0);
	assert_in_range(pace_tokens(&pace, 50 * MS, 8192), 49, 51);
}

static void test_small_chunks_say_nothing_about_the_time_per_token(void **state)
{
	struct pace pace = {0};

	pace_follow(&pace, 20 * MS, 200, 0);
	pace_follow(&pace, 20 * MS, PACE_LEAST - 1, 0);
	assert_in_range(pace_tokens(&pace, 50 * MS, 8192), 499, 501);
}

/* The tokens of the last of 100 steps of base_ns and 20 us a prompt token, every second one 3 % slower. */
static uint32_t tokens_after(struct pace *pace, uint64_t base_ns, uint64_t target_ns)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < 100; i++) {
		n = pace_tokens(pace, target_ns, 8192);
		pace_follow(pace, (base_ns + n * 20000) * (100 + 3 * (i % 2)) / 100, n, 4);
	}
	return n;
}

static void test_decodes_that_become_faster_beside_prompts_leave_more_time_to_these(void **state)
{
	struct pace pace = {0};

	pace_follow(&pace, 15 * MS, 0, 4);
	assert_in_range(tokens_after(&pace, 8 * MS, 12 * MS), 170, 210);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decodes_that_become_faster_beside_prompts_leave_more_time_to_these),
		cmocka_unit_test(test_without_a_target_prompts_have_the_whole_step),
		cmocka_unit_test(test_before_a_time_is_known_a_step_has_few_prompt_tokens),
		cmocka_unit_test(test_tokens_are_what_fits_the_target_beside_the_base),
		cmocka_unit_test(test_prompts_alone_tell_the_time_per_token_too),
		cmocka_unit_test(test_a_step_always_has_a_few_prompt_tokens),
		cmocka_unit_test(test_times_follow_what_changes),
		cmocka_unit_test(test_small_chunks_say_nothing_about_the_time_per_token),
	};

	return cmocka_run_group_tests_name("pace", tests, NULL, NULL);
}
