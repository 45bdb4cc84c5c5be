/* SPDX-License-Identifier: MIT */
/* What a request waits for: prompts of others beside its tokens, steps ahead of its first. On an engine that computes
 * nothing and a clock that the test moves (dry.h). */
#include "tests/daemon/dry.h"

#define MS UINT64_C(1000000)

static struct dry dry;
static struct rig_client client;
static struct rig_result results[RIG_ENTRIES];
static struct rig_request requests[RIG_ENTRIES];
static uint32_t n_step_tokens; /* of the last launched step */
static uint64_t last_step;

static void count_row(struct dry *in, const struct sequence *sequence, const struct step_row *row)
{
	if (sequence->runner->launched != last_step)
		n_step_tokens = 0;
	last_step = sequence->runner->launched;
	n_step_tokens += row->n_tokens;
}

/* A step takes 2 ms, and 0.1 ms a token. */
static void open_wide_engine(uint32_t max_batch_tokens, uint32_t token_us)
{
	memset(results, 0, sizeof(results));
	dry_open(&dry, &(struct rig_options){.max_batch_tokens = max_batch_tokens, .token_us = token_us});
	dry.on_row = count_row;
	dry.step_ns = 2 * MS;
	dry.token_ns = MS / 10;
	dry_attach(&dry, &client, RIG_ENTRIES, 1, 1);
}

static void open_engine(uint32_t token_us)
{
	open_wide_engine(512, token_us);
}

static void close_engine(void)
{
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static void ask(uint32_t index, uint32_t n_prompt, uint32_t n_tokens)
{
	int32_t prompt[512];

	rig_nonsense(prompt, n_prompt, index);
	requests[index] = rig_ask(&client, index, 0, prompt, n_prompt, n_tokens, MIMEO_GENERATE_IGNORE_EOS);
	rig_submit(&client, requests[index]);
}

/* The longest step, in tokens, while `n` prompts of 400 tokens are computed beside a request past its prompt. */
static uint32_t longest_step(uint32_t n)
{
	uint32_t longest = 0;

	ask(0, 10, 300);
	dry_steps(&dry, 20);
	for (uint32_t i = 1; i <= n; i++)
		ask(i, 400, 4);
	for (uint32_t i = 0; i < 200; i++) {
		dry_steps(&dry, 1);
		/* The first steps with prompts tell what their tokens cost. */
		if (i > 6 && n_step_tokens > longest)
			longest = n_step_tokens;
	}
	rig_poll(&client, results);
	return longest;
}

static void test_prompts_delay_a_token_by_the_target_at_most(void **state)
{
	open_engine(20000);
	assert_in_range(longest_step(8), 150, 190);
	for (uint32_t i = 1; i <= 8; i++)
		assert_true(results[i].done);
	close_engine();
}

/* Prompts of n_tokens wait beside a request past its prompt, and a step of 600 tokens would take as long as the
 * target. Returns the tokens of the next step. */
static uint32_t step_of_600(uint32_t n_prompts, uint32_t n_tokens)
{
	open_wide_engine(2048, 62000);
	ask(0, 10, 300);
	dry_steps(&dry, 20);
	for (uint32_t i = 1; i <= n_prompts; i++)
		ask(i, n_tokens, 4);
	while (n_step_tokens == 1) {
		dry.engine->lane.schedules[0].pace = (struct pace){.base_ns = 2 * MS, .token_ns = MS / 10};
		dry_steps(&dry, 1);
	}
	close_engine();
	return n_step_tokens;
}

static void test_wide_step_that_the_target_cuts_has_a_size_of_wide_steps(void **state)
{
	assert_int_equal(step_of_600(14, 400), 512);
}

static void test_prompts_that_a_wide_step_can_end_are_not_cut_for_its_size(void **state)
{
	assert_int_equal(step_of_600(2, 280), 1 + 2 * 280);
}

static void test_without_a_target_prompts_fill_the_step(void **state)
{
	open_engine(0);
	assert_true(longest_step(12) > 400);
	close_engine();
}

static void test_tuning_sets_the_target_of_an_engine_that_runs(void **state)
{
	const struct engine_tuning tuning = {.token_us = 20000, .spin_us = 7};

	open_engine(0);
	assert_int_equal(engine_post_tuning(dry.engine, &tuning), 0);
	dry_turns(&dry);
	assert_in_range(longest_step(8), 150, 190);
	assert_int_equal(dry.engine->options.spin_us, 7);
	close_engine();
}

static void test_prompts_fill_a_step_that_has_no_request_past_its_prompt(void **state)
{
	open_engine(20000);
	for (uint32_t i = 0; i < 6; i++)
		ask(i, 400, 1);
	dry_steps(&dry, 1);
	assert_int_equal(n_step_tokens, 512);
	close_engine();
}

/* One step is in flight, and expected to take 10 ms. */
static void open_with_step(bool notify)
{
	struct lane *lane;

	open_engine(0);
	lane = &dry.engine->lane;
	ask(0, 10, 50);
	dry_turns(&dry);
	assert_int_equal(lane->n_inflight, 2);
	for (uint32_t i = 0; i < LANE_STEPS; i++) {
		lane->inflight[i].expected_ns = 10 * MS;
		lane->inflight[i].notify = notify;
	}
	dry_end_step(&dry);
	dry_turns(&dry);
}

static void test_request_that_arrives_during_a_step_is_in_the_next_one(void **state)
{
	open_with_step(false);
	ask(1, 10, 4);
	dry_turns(&dry);
	assert_int_equal(dry.engine->lane.n_inflight, 1);
	dry_now_ns += 9 * MS;
	dry_turns(&dry);
	assert_int_equal(dry.engine->lane.n_inflight, 2);
	assert_int_equal(n_step_tokens, 1 + 10);
	close_engine();
}

/* The engine would otherwise sleep until that step's end, and launch late. */
static void test_engine_that_the_lane_wakes_launches_ahead_at_once(void **state)
{
	open_with_step(true);
	assert_int_equal(dry.engine->lane.n_inflight, 2);
	close_engine();
}

/* Steps in flight are expected to take 10 ms. */
static void expect_steps(void)
{
	struct lane *lane = &dry.engine->lane;

	for (uint32_t i = 0; i < LANE_STEPS; i++) {
		lane->inflight[i].expected_ns = 10 * MS;
		lane->inflight[i].notify = false;
	}
}

/* Alone in flight is the step with which request 1 ends; request 0 goes on. */
static void open_with_ending_step(void)
{
	open_engine(0);
	ask(0, 10, 50);
	ask(1, 10, 3);
	dry_turns(&dry);
	expect_steps();
	dry_end_step(&dry);
	dry_turns(&dry);
	dry_now_ns += 9 * MS;
	dry_turns(&dry);
	assert_int_equal(dry.engine->lane.n_inflight, 2);
	expect_steps();
	dry_end_step(&dry);
	dry_turns(&dry);
	assert_int_equal(dry.engine->lane.n_inflight, 1);
	assert_int_equal(lane_oldest(&dry.engine->lane)->n_ending, 1);
}

static void test_step_behind_one_that_ends_a_request_is_launched_after_it(void **state)
{
	open_with_ending_step();
	dry_now_ns += 9 * MS;
	dry_turns(&dry);
	assert_int_equal(dry.engine->lane.n_inflight, 1);
	close_engine();
}

static void test_request_that_follows_one_that_ended_is_in_the_next_step(void **state)
{
	open_with_ending_step();
	dry_end_step(&dry);
	dry_turns(&dry);
	assert_int_equal(dry.engine->lane.n_inflight, 0);
	dry_now_ns += MS / 20;
	ask(2, 10, 4);
	dry_turns(&dry);
	assert_true(dry.engine->lane.n_inflight > 0);
	assert_int_equal(lane_oldest(&dry.engine->lane)->n_rows, 2);
	close_engine();
}

static void test_step_waits_for_a_request_in_place_of_an_ended_one_for_a_tenth_of_a_millisecond(void **state)
{
	open_with_ending_step();
	dry_end_step(&dry);
	dry_turns(&dry);
	dry_now_ns += 90000;
	dry_turns(&dry);
	assert_int_equal(dry.engine->lane.n_inflight, 0);
	dry_now_ns += 10000;
	dry_turns(&dry);
	assert_true(dry.engine->lane.n_inflight > 0);
	close_engine();
}

int __wrap_loop_run_for(struct loop *loop, uint64_t ns);
int __wrap_loop_run_for(struct loop *loop, uint64_t ns)
{
	dry_now_ns += ns;
	return 0;
}

/* As the engine's thread, which spins for 50 us. Returns how long it took until two steps were in flight. */
static uint64_t sleep_until_launch(void)
{
	struct lane *lane = &dry.engine->lane;
	const uint64_t since = lane->idle.lane_since_ns;

	dry.engine->options.spin_us = 50;
	while (lane->n_inflight < LANE_STEPS) {
		if (engine_turn(dry.engine))
			idle_reset(lane);
		else
			idle(lane);
	}
	return dry_now_ns - since;
}

/* 10 ms less 0.3 ms and an eighth. */
static void test_engine_wakes_to_launch_the_next_step(void **state)
{
	open_with_step(false);
	assert_in_range(sleep_until_launch(), 845 * MS / 100, 855 * MS / 100);
	close_engine();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prompts_delay_a_token_by_the_target_at_most),
		cmocka_unit_test(test_wide_step_that_the_target_cuts_has_a_size_of_wide_steps),
		cmocka_unit_test(test_prompts_that_a_wide_step_can_end_are_not_cut_for_its_size),
		cmocka_unit_test(test_without_a_target_prompts_fill_the_step),
		cmocka_unit_test(test_tuning_sets_the_target_of_an_engine_that_runs),
		cmocka_unit_test(test_prompts_fill_a_step_that_has_no_request_past_its_prompt),
		cmocka_unit_test(test_request_that_arrives_during_a_step_is_in_the_next_one),
		cmocka_unit_test(test_engine_that_the_lane_wakes_launches_ahead_at_once),
		cmocka_unit_test(test_step_behind_one_that_ends_a_request_is_launched_after_it),
		cmocka_unit_test(test_request_that_follows_one_that_ended_is_in_the_next_step),
		cmocka_unit_test(test_step_waits_for_a_request_in_place_of_an_ended_one_for_a_tenth_of_a_millisecond),
		cmocka_unit_test(test_engine_wakes_to_launch_the_next_step),
	};

	return cmocka_run_group_tests_name("engine pace", tests, NULL, NULL);
}
