/* SPDX-License-Identifier: MIT */
/* What the engine counts of its lane and of its own time, against what was asked of it. */
#include "tests/daemon/rig.h"

#define N_TOKENS 20u

static uint64_t value(_Atomic uint64_t *counter)
{
	return atomic_load(counter);
}

/* One generation, from the first submission to the last token; how long it took. */
static uint64_t generate(struct rig *rig)
{
	uint64_t start = clock_ns();

	assert_int_equal(
		rig_do(&rig->client, rig_endless(&rig->client, 0, 0, N_TOKENS)).n_generated,
		N_TOKENS);
	return clock_ns() - start;
}

static void test_each_step_that_generates_on_has_one_gap_ahead(void **state)
{
	struct rig *rig = *state;

	generate(rig);
	/* the prompt's step has nothing ahead of it */
	assert_int_equal(value(&rig->engine->stats.n_steps), N_TOKENS);
	assert_int_equal(value(&rig->engine->stats.n_gaps), N_TOKENS - 1);
	assert_true(value(&rig->engine->stats.n_long_gaps) <= N_TOKENS - 1);
	assert_true(value(&rig->engine->stats.long_gap_ns) <= value(&rig->engine->stats.gap_ns));
}

static void test_steps_and_gaps_fill_the_time_that_they_took_and_no_more(void **state)
{
	struct rig *rig = *state;
	uint64_t took;

	took = generate(rig);
	assert_true(value(&rig->engine->stats.lane_ns) > 0);
	assert_true(value(&rig->engine->stats.work_ns) > 0);
	assert_true(value(&rig->engine->stats.lane_ns) + value(&rig->engine->stats.gap_ns) < took);
	assert_true(value(&rig->engine->stats.work_ns) < took);
}

/* The lane waits for the client there, and not for the engine. */
static void test_clients_own_loop_has_no_gaps(void **state)
{
	struct rig *rig = *state;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	for (uint32_t i = 0; i < 5; i++)
		rig_must(&rig->client, rig_step_text(&rig->client, 0, 1, "7", i == 0));
	assert_int_equal(value(&rig->engine->stats.n_steps), 5);
	assert_int_equal(value(&rig->engine->stats.n_gaps), 0);
	assert_true(value(&rig->engine->stats.lane_ns) > 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* ---- how the engine waits for the lane ---- */

/* It spins for much less than a step takes. */
#define SLEEPING .mode = GRAPH_FULL_AND_PIECEWISE, .spin_us = 20

static void wait_until_asleep(struct rig *rig)
{
	RIG_AWAIT(atomic_load(&rig->engine->lane.idle.sleeping));
}

/* Launch the request into a lane that is held, and wait until the engine has gone to sleep. */
static void launch_held(struct rig *rig, struct rig_client *client,
	const struct rig_request *request, uint64_t n_steps)
{
	uint64_t before = value(&rig->engine->stats.n_steps);

	rig_gate_close(rig);
	rig_submit(client, *request);
	rig_wait_steps(rig, before + n_steps);
	wait_until_asleep(rig);
}

/* Or it would sleep over every second step, and leave the lane idle until it woke. */
static void test_engine_that_has_slept_is_woken_behind_each_step_of_unknown_length(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct rig_result results[16] = {0};
		struct rig_request request;
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){SLEEPING});
		wait_until_asleep(&rig);
		request = rig_endless(&rig.client, 0, 0, 2);
		launch_held(&rig, &rig.client, &request, 2);
		/* a prompt, and a graph that was never replayed */
		for (unsigned k = 0; k < 2; k++) {
			assert_int_equal(rig.engine->lane.inflight[k].expected_ns, 0);
			assert_true(rig.engine->lane.inflight[k].notify);
		}
		rig_gate_open(&rig);
		rig_wait(&rig.client, results, 0);
		assert_int_equal(results[0].n_generated, 2);
		rig_close(&rig);
	}
}

/* The client's own loop: a prompt, then a token a step. */
static void step_once(struct rig_client *client, bool first)
{
	rig_must(client, rig_step_text(client, 0, 1, "7", first));
}

/* Held far longer than it is expected to take, it is looked for again and again; the lane is asked
 * for nothing. */
static void test_replay_of_known_length_is_awaited_by_the_clock(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	step_once(&rig->client, true);
	step_once(&rig->client, false);
	request = rig_step_text(&rig->client, 0, 1, "7", false);
	launch_held(rig, &rig->client, &request, 1);
	const struct inflight *held = lane_oldest(&rig->engine->lane);
	uint64_t n_sleeps = value(&rig->engine->stats.n_sleeps);

	assert_true(held->expected_ns > 0);
	RIG_AWAIT(value(&rig->engine->stats.n_sleeps) >= n_sleeps + 3);
	wait_until_asleep(rig);
	assert_false(held->notify);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].status, MIMEO_OK);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

static void test_idle_engine_sleeps_without_end(void **state)
{
	struct rig *rig = *state;
	struct timespec while_idle = {.tv_nsec = 100000000};
	uint64_t n_sleeps;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	step_once(&rig->client, true);
	step_once(&rig->client, false);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	/* The bells of the last steps may still come, on a busy machine late; one that looks again by
	 * itself never sleeps through. */
	for (int i = 0; i < 20; i++) {
		wait_until_asleep(rig);
		n_sleeps = value(&rig->engine->stats.n_sleeps);
		nanosleep(&while_idle, NULL);
		if (value(&rig->engine->stats.n_sleeps) == n_sleeps)
			break;
	}
	assert_int_equal(value(&rig->engine->stats.n_sleeps), n_sleeps);
}

static void test_replays_that_were_held_up_hardly_count(void **state)
{
	struct graph_entry entry = {.lane_ns = 0};

	graph_entry_follow(&entry.lane_ns, 800);
	assert_int_equal(entry.lane_ns, 800);
	graph_entry_follow(&entry.lane_ns, 1600);
	assert_int_equal(entry.lane_ns, 900);
	graph_entry_follow(&entry.lane_ns, 700);
	assert_int_equal(entry.lane_ns, 700);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_FULL_TEST(test_each_step_that_generates_on_has_one_gap_ahead),
		RIG_FULL_TEST(test_steps_and_gaps_fill_the_time_that_they_took_and_no_more),
		RIG_FULL_TEST(test_clients_own_loop_has_no_gaps),
		cmocka_unit_test(
			test_engine_that_has_slept_is_woken_behind_each_step_of_unknown_length),
		RIG_TEST(test_replay_of_known_length_is_awaited_by_the_clock, SLEEPING),
		RIG_TEST(test_idle_engine_sleeps_without_end, SLEEPING),
		cmocka_unit_test(test_replays_that_were_held_up_hardly_count),
	};

	return cmocka_run_group_tests_name("engine_lane", tests, NULL, NULL);
}
