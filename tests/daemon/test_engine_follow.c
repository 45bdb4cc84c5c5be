/* SPDX-License-Identifier: MIT */
/*
 * Requests that wait for what is being computed for another one: for tokens of a prompt that begins
 * like their own (follow.h), and for a slot that was preempted for them (start.c). On an engine
 * that computes nothing (dry.h).
 */
#include "tests/daemon/dry.h"

#define COMMON 160u /* tokens, ten pages */
#define OWN 8u
#define OWN_LEADER 280u
#define STEP 16u /* tokens of a step */
/* Two launched steps end; a chunk; steps of five tokens. */
#define STEPS_OF_FIVE (2 + 1 + 5)

static struct dry dry;
static struct rig_client client, other, third;
static struct rig_result results[RIG_ENTRIES];

static int open_engine(void **state)
{
	memset(results, 0, sizeof(results));
	dry_open(&dry, &(struct rig_options){.max_requests = 4,
			       .max_batch_tokens = STEP,
			       .prefix_sharing = ENGINE_PREFIX_USER});
	dry_attach(&dry, &client, RIG_ENTRIES, 0, 1);
	dry_attach(&dry, &other, RIG_ENTRIES, 1, 1);
	dry_attach(&dry, &third, RIG_ENTRIES, 2, 1);
	return 0;
}

static int close_engine(void **state)
{
	dry_settle(&dry);
	dry_detach(&dry, &client);
	dry_detach(&dry, &other);
	dry_detach(&dry, &third);
	dry_close(&dry);
	return 0;
}

static uint32_t n_running(void)
{
	return dry.rig.runner->slots.n_running;
}

/* A prompt of n_common tokens, which all prompts have, and n_own others. */
static struct rig_request ask(
	struct rig_client *by, uint32_t index, uint32_t n_common, uint32_t n_own, uint32_t n_tokens)
{
	int32_t prompt[COMMON + OWN_LEADER];
	struct rig_request request;

	rig_nonsense(prompt, COMMON, 1);
	rig_nonsense(prompt + n_common, n_own, 2 + index);
	request = rig_ask(
		by, index, 0, prompt, n_common + n_own, n_tokens, MIMEO_GENERATE_IGNORE_EOS);
	rig_submit(by, request);
	return request;
}

/* The client's request `index`, of OWN tokens behind n_common, generated the right ones. */
static void check_answer(
	const struct rig_request *request, uint32_t index, uint32_t n_common, uint32_t n_tokens)
{
	int32_t prompt[COMMON + OWN];

	rig_nonsense(prompt, COMMON, 1);
	rig_nonsense(prompt + n_common, OWN, 2 + index);
	dry_follow(
		dry_hash(DRY_SEED, prompt, n_common + OWN), rig_tokens(&client, request), n_tokens);
}

static void test_followers_start_when_their_common_tokens_are_computed(void **state)
{
	static const uint32_t common[] = {COMMON, COMMON, COMMON / 2};
	struct rig_request requests[3];

	ask(&client, 0, COMMON, OWN_LEADER, 20);
	dry_steps(&dry, 2);
	for (uint32_t i = 1; i < 3; i++)
		requests[i] = ask(&client, i, common[i], OWN, 4);
	dry_turns(&dry);
	assert_int_equal(n_running(), 1);
	dry_steps(&dry, COMMON / STEP - 2);
	assert_int_equal(n_running(), 3);
	dry_settle(&dry);
	rig_poll(&client, results);
	for (uint32_t i = 1; i < 3; i++) {
		assert_int_equal(results[i].n_cached, common[i]);
		check_answer(&requests[i], i, common[i], 4);
	}
}

static void test_follower_of_a_cancelled_request_starts(void **state)
{
	struct rig_request leader, follower;

	leader = ask(&client, 0, COMMON, OWN_LEADER, 20);
	dry_steps(&dry, 2);
	follower = ask(&client, 1, COMMON, OWN, 4);
	dry_turns(&dry);
	assert_int_equal(n_running(), 1);
	rig_cancel(&client, 2, &leader);
	dry_turns(&dry);
	assert_int_equal(n_running(), 1);
	dry_settle(&dry);
	rig_poll(&client, results);
	assert_int_equal(results[0].status, MIMEO_E_CANCELLED);
	assert_in_range(results[1].n_cached, 1, COMMON - 1);
	check_answer(&follower, 1, COMMON, 4);
}

/* The client's requests have all slots. */
static void take_all_slots(void)
{
	for (uint32_t i = 0; i < 4; i++)
		ask(&client, i, 0, OWN, 200);
	dry_steps(&dry, 10);
	assert_int_equal(n_running(), 4);
	assert_int_equal(dry.rig.runner->n_preempted, 0);
}

static void test_slot_reserved_for_a_cancelled_request_is_used_again(void **state)
{
	struct rig_request request;

	take_all_slots();
	request = ask(&other, 0, 0, OWN, 5);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->n_preempted, 1);
	rig_cancel(&other, 1, &request);
	dry_steps(&dry, 3);
	assert_int_equal(n_running(), 4);
}

/* With three users the other has its part of the slots, so the third user's turn comes first. */
static void test_slot_reserved_for_a_request_is_given_to_no_other(void **state)
{
	ask(&other, 0, 0, OWN, 200);
	dry_steps(&dry, 2);
	take_all_slots();
	ask(&other, 1, 0, OWN, 5);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->n_preempted, 1);
	ask(&third, 0, 0, OWN, 200);
	dry_steps(&dry, STEPS_OF_FIVE);
	rig_poll(&other, results);
	assert_true(results[1].done);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_followers_start_when_their_common_tokens_are_computed, open_engine,
			close_engine),
		cmocka_unit_test_setup_teardown(
			test_follower_of_a_cancelled_request_starts, open_engine, close_engine),
		cmocka_unit_test_setup_teardown(
			test_slot_reserved_for_a_cancelled_request_is_used_again, open_engine,
			close_engine),
		cmocka_unit_test_setup_teardown(
			test_slot_reserved_for_a_request_is_given_to_no_other, open_engine,
			close_engine),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
