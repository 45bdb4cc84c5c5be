/* SPDX-License-Identifier: MIT */
/* What the engine counts of its lane and of its own time, against what was asked of it. */
#include "tests/daemon/rig.h"

#include "ipc/clock.h"

#define N_TOKENS 20u

static const struct rig_options full = {.mode = GRAPH_FULL_AND_PIECEWISE};

static uint64_t value(_Atomic uint64_t *counter)
{
	return atomic_load(counter);
}

/* One generation, from the first submission to the last token; how long it took. */
static uint64_t generate(struct rig *rig, struct rig_client *client)
{
	uint64_t start;
	struct rig_request request;
	struct rig_result result;

	rig_open(rig, &full);
	rig_attach(rig, client, 16);
	start = clock_ns();
	request = rig_endless(client, 0, 0, N_TOKENS);
	result = rig_do(client, &request);
	assert_int_equal(result.n_generated, N_TOKENS);
	return clock_ns() - start;
}

static void end(struct rig *rig, struct rig_client *client)
{
	rig_detach(client);
	rig_close(rig);
}

static void test_each_step_that_generates_on_has_one_gap_ahead(void **state)
{
	struct rig_client client;
	struct rig rig;

	(void)state;
	generate(&rig, &client);
	/* the prompt's step has nothing ahead of it */
	assert_int_equal(value(&rig.engine->stats.n_steps), N_TOKENS);
	assert_int_equal(value(&rig.engine->stats.n_gaps), N_TOKENS - 1);
	assert_true(value(&rig.engine->stats.n_long_gaps) <= N_TOKENS - 1);
	assert_true(value(&rig.engine->stats.long_gap_ns) <= value(&rig.engine->stats.gap_ns));
	end(&rig, &client);
}

static void test_steps_and_gaps_fill_the_time_that_they_took_and_no_more(void **state)
{
	struct rig_client client;
	struct rig rig;
	uint64_t took;

	(void)state;
	took = generate(&rig, &client);
	assert_true(value(&rig.engine->stats.lane_ns) > 0);
	assert_true(value(&rig.engine->stats.work_ns) > 0);
	assert_true(value(&rig.engine->stats.lane_ns) + value(&rig.engine->stats.gap_ns) < took);
	assert_true(value(&rig.engine->stats.work_ns) < took);
	end(&rig, &client);
}

/* The lane waits for the client there, and not for the engine. */
static void test_clients_own_loop_has_no_gaps(void **state)
{
	struct rig_client client;
	struct rig rig;

	(void)state;
	rig_open(&rig, &full);
	rig_attach(&rig, &client, 16);
	rig_ok(&client, 0, RING_OP_OPEN, 1, 0);
	for (uint32_t i = 0; i < 5; i++) {
		struct rig_request request = rig_step_text(&client, 0, 1, "7", i == 0);

		assert_int_equal(rig_do(&client, &request).status, STATUS_OK);
	}
	assert_int_equal(value(&rig.engine->stats.n_steps), 5);
	assert_int_equal(value(&rig.engine->stats.n_gaps), 0);
	assert_true(value(&rig.engine->stats.lane_ns) > 0);
	rig_ok(&client, 0, RING_OP_CLOSE, 1, 0);
	end(&rig, &client);
}

/* Two steps that nobody asked to be told of end while the engine sleeps over them: from then on it
 * asks, or it would sleep over every second step and leave the lane idle until it woke. */
static void sleep_over_two_steps(struct rig *rig, struct rig_client *client)
{
	struct rig_result results[16] = {0};
	struct rig_request request = rig_endless(client, 0, 0, 2);

	assert_false(rig->engine->sleepy);
	rig_gate_close(rig);
	rig_submit(client, &request);
	rig_wait_steps(rig, 2);
	while (!atomic_load(&rig->engine->sleeping))
		sched_yield();
	rig_gate_open(rig);
	rig_wait(client, results, 0);
	assert_int_equal(results[0].n_generated, 2);
	/* written before the last completion was published */
	assert_true(rig->engine->sleepy);
}

static void test_engine_that_slept_over_two_steps_is_woken_between_the_next(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct rig_options options = full;
		struct rig_client client;
		struct rig rig;

		options.spin_us = 20; /* well below a step */
		rig_open(&rig, &options);
		rig_attach(&rig, &client, 16);
		sleep_over_two_steps(&rig, &client);
		end(&rig, &client);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_step_that_generates_on_has_one_gap_ahead),
		cmocka_unit_test(test_steps_and_gaps_fill_the_time_that_they_took_and_no_more),
		cmocka_unit_test(test_clients_own_loop_has_no_gaps),
		cmocka_unit_test(test_engine_that_slept_over_two_steps_is_woken_between_the_next),
	};

	return cmocka_run_group_tests_name("engine_lane", tests, NULL, NULL);
}
