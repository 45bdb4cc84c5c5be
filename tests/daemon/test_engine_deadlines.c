/* SPDX-License-Identifier: MIT */
/* Deadlines of requests, on an engine that computes nothing and a clock that the test moves (dry.h). */
#include "tests/daemon/dry.h"

#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/finish.h"
#include "tests/random.h"

#define MS UINT64_C(1000000)
#define STEP_NS (10 * MS)

static struct dry dry;
static struct rig_client client;
static struct rig_result results[RIG_ENTRIES];

static void open_engine(const struct rig_options *options)
{
	memset(results, 0, sizeof(results));
	dry_open(&dry, options);
	dry_attach(&dry, &client, RIG_ENTRIES, 1, 1);
}

static void close_engine(void)
{
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static struct rig_request request_of(uint32_t index, uint32_t n_prompt, uint32_t end_ms, uint32_t first_token_ms)
{
	int32_t prompt[512];
	struct msg_generate msg = rig_greedy(n_prompt, 400);
	struct rig_request request;

	rig_nonsense(prompt, n_prompt, index);
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.deadline_ms = end_ms;
	msg.first_token_ms = first_token_ms;
	request = rig_generate(&client, index, prompt, n_prompt, &msg);
	request.sqe.submitted_ns = dry_now_ns;
	return request;
}

static void step(void)
{
	dry_now_ns += STEP_NS;
	dry_steps(&dry, 1);
	rig_poll(&client, results);
}

static void assert_ended_by(uint32_t index, unsigned field, int32_t ms)
{
	assert_true(results[index].done);
	assert_int_equal(results[index].status, MIMEO_E_DEADLINE);
	assert_int_equal(results[index].finish, MIMEO_FINISH_ERROR);
	assert_int_equal(results[index].detail, RING_DETAIL_DEADLINE);
	assert_int_equal(results[index].values[0], field);
	assert_int_equal(results[index].values[1], ms);
}

/* ---- times of tokens, from the same stamps ---- */

static void test_times_to_the_first_token_and_between_the_others_are_summed(void **state)
{
	const struct engine_port *port;
	struct engine_model_facts facts;
	uint64_t n;

	open_engine(&(struct rig_options){.max_requests = 8});
	port = client.port;
	rig_submit(&client, request_of(0, 20, 0, 0));
	dry_now_ns += 70 * MS; /* it is read late */
	for (uint32_t i = 0; i < 30; i++)
		step();
	n = atomic_load(&port->n_tokens);
	assert_int_equal(port->n_firsts, 1);
	assert_true(n > 10);
	assert_in_range(port->first_ns, 70 * MS + STEP_NS, 70 * MS + 4 * STEP_NS);
	/* each look at the clock takes a nanosecond */
	assert_in_range(port->between_ns, (n - 1) * STEP_NS, (n - 1) * STEP_NS + MS);
	facts = rig_facts(&dry.rig);
	assert_int_equal(facts.n_firsts, 1);
	assert_int_equal(facts.first_ns, port->first_ns);
	assert_int_equal(facts.between_ns, port->between_ns);
	assert_true(facts.n_rows >= n);
	close_engine();
}

static void test_distributions_have_each_request_and_each_token_once(void **state)
{
	struct histogram *of;
	uint64_t n;

	open_engine(&(struct rig_options){.max_requests = 8});
	of = dry.rig.engine->runners.all[0]->distributions;
	rig_submit(&client, request_of(0, 8, 200, 0));
	dry_now_ns += 70 * MS;
	while (!dry.rig.engine->stats.n_failed)
		step();
	n = atomic_load(&client.port->n_tokens);
	assert_true(n > 2);
	assert_int_equal(histogram_n(&of[ENGINE_FIRST_TOKEN]), 1);
	assert_int_equal(histogram_n(&of[ENGINE_TOKEN]), n - 1);
	assert_int_equal(of[ENGINE_TOKEN].sum, client.port->between_ns);
	assert_int_equal(histogram_n(&of[ENGINE_QUEUE]), 1);
	assert_in_range(of[ENGINE_QUEUE].sum, 70 * MS, 70 * MS + 2 * STEP_NS);
	assert_int_equal(histogram_n(&of[ENGINE_REQUEST]), 1);
	assert_in_range(of[ENGINE_REQUEST].sum, 200 * MS, 200 * MS + 2 * STEP_NS);
	assert_int_equal(dry.rig.engine->stats.n_failed_with[-MIMEO_E_DEADLINE], 1);
	assert_int_equal(histogram_n(&of[ENGINE_ROWS]), dry.rig.engine->stats.n_steps);
	assert_int_equal(of[ENGINE_ROWS].sum, dry.rig.engine->stats.n_rows);
	assert_int_equal(of[ENGINE_STEP_SESSIONS].sum, dry.rig.engine->stats.n_steps);
	close_engine();
}

/* ---- when ---- */

/* More requests than slots and pages, so that they wait, run and are preempted, with both kinds of deadlines. */
static void test_no_request_is_returned_a_step_after_its_deadline(void **state)
{
	uint64_t random = 7, ends[RIG_ENTRIES], firsts[RIG_ENTRIES];
	uint32_t n_ended = 0, n_first = 0;

	open_engine(&(struct rig_options){.max_requests = 8, .kv_pages = 60});
	for (uint32_t i = 0; i < 40; i++) {
		uint32_t end = (uint32_t)random_below(&random, 3000), first = (uint32_t)random_below(&random, 1000);

		end = end % 5 ? 1 + end : 0;
		first = first % 3 ? 1 + first : 0;
		ends[i] = end ? dry_now_ns + end * MS : UINT64_MAX;
		firsts[i] = first ? dry_now_ns + first * MS : UINT64_MAX;
		rig_submit(&client, request_of(i, 20 + i, end, first));
	}
	for (uint32_t n = 0; n < 310; n++) {
		step();
		for (uint32_t i = 0; i < 40; i++) {
			/* The clock moves at each look at it. */
			const uint64_t now = dry_now_ns - MS;
			const bool late = now > ends[i] || (now > firsts[i] && !results[i].n_events);

			assert_true(results[i].done || !late);
		}
	}
	for (uint32_t i = 0; i < 40; i++) {
		const bool first = results[i].values[0] == MSG_FIRST_TOKEN_MS;

		if (results[i].status != MIMEO_E_DEADLINE)
			continue;
		n_ended++;
		n_first += first;
		assert_true(!first || !results[i].n_generated);
	}
	assert_true(n_first > 3 && n_ended > n_first + 3);
	assert_true(dry.rig.runner->n_preempted > 0);
	close_engine();
}

static void test_first_token_that_came_in_time_ends_its_deadline(void **state)
{
	open_engine(&(struct rig_options){0});
	rig_submit(&client, request_of(0, 20, 0, 25));
	for (uint32_t i = 0; i < 20; i++)
		step();
	assert_false(results[0].done);
	assert_true(results[0].n_generated > 10);
	assert_int_equal(dry.engine->accounting.n_deadlines, 0);
	close_engine();
}

/* A prompt of eight steps, and one that waits for its slot. */
static void test_request_without_a_token_ends_by_its_first_deadline(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 1, .max_seq_len = 1024});
	rig_submit(&client, request_of(0, 500, 0, 45));
	rig_submit(&client, request_of(1, 5, 500, 25));
	for (uint32_t i = 0; i < 3; i++)
		step();
	assert_ended_by(1, MSG_FIRST_TOKEN_MS, 25);
	assert_int_equal(results[1].n_generated, 0);
	assert_false(results[0].done);
	step();
	step();
	assert_ended_by(0, MSG_FIRST_TOKEN_MS, 45);
	assert_int_equal(results[0].n_generated, 0);
	assert_true(results[0].n_prompt > 0);
	close_engine();
}

static void test_earlier_deadline_is_the_one_that_is_named(void **state)
{
	open_engine(&(struct rig_options){.max_requests = 1});
	rig_submit(&client, request_of(0, 5, 0, 0));
	rig_submit(&client, request_of(1, 5, 15, 16));
	rig_submit(&client, request_of(2, 5, 16, 15));
	rig_submit(&client, request_of(3, 5, 15, 0));
	for (uint32_t i = 0; i < 2; i++)
		step();
	assert_ended_by(1, MSG_DEADLINE_MS, 15);
	assert_ended_by(2, MSG_FIRST_TOKEN_MS, 15);
	assert_ended_by(3, MSG_DEADLINE_MS, 15);
	close_engine();
}

/* ---- from when ---- */

static void submit_stamped(uint32_t index, uint32_t end_ms, uint64_t stamp_ns)
{
	struct rig_request request = request_of(index, 5, end_ms, 0);

	request.sqe.submitted_ns = stamp_ns;
	rig_submit(&client, request);
}

static void test_deadline_counts_from_the_stamp_of_the_entry(void **state)
{
	open_engine(&(struct rig_options){0});
	dry_now_ns += 1000 * MS;
	submit_stamped(0, 65, dry_now_ns - 50 * MS);
	submit_stamped(1, 50, dry_now_ns - 60 * MS);
	dry_turns(&dry);
	rig_poll(&client, results);
	assert_ended_by(1, MSG_DEADLINE_MS, 50);
	step();
	assert_false(results[0].done);
	step();
	assert_ended_by(0, MSG_DEADLINE_MS, 65);
	close_engine();
}

/* In the future, or so old that it is of another clock: the daemon's own time counts. */
static void test_impossible_stamp_counts_as_none(void **state)
{
	open_engine(&(struct rig_options){0});
	dry_now_ns += 2 * DEADLINE_STAMP_MAX_NS;
	submit_stamped(0, 15, 0);
	submit_stamped(1, 15, dry_now_ns + 3000 * MS);
	submit_stamped(2, 15, dry_now_ns - DEADLINE_STAMP_MAX_NS - 1);
	submit_stamped(3, 15, 1);
	submit_stamped(4, 15, UINT64_MAX);
	step();
	for (uint32_t i = 0; i < 5; i++)
		assert_false(results[i].done);
	step();
	step();
	for (uint32_t i = 0; i < 5; i++)
		assert_ended_by(i, MSG_DEADLINE_MS, 15);
	close_engine();
}

uint64_t __real_deadline_next(const struct deadlines *deadlines);
uint64_t __wrap_deadline_next(const struct deadlines *deadlines);
static uint64_t n_looks; /* at deadlines, but for those that deadline.c itself compares */
uint64_t __wrap_deadline_next(const struct deadlines *deadlines)
{
	n_looks++;
	return __real_deadline_next(deadlines);
}

static void test_deadline_that_passes_costs_nothing_for_others_that_do_not(void **state)
{
	enum { MANY = 4096 };
	static struct rig_result theirs[MANY];
	const uint64_t begin = dry_now_ns;
	struct rig_client other;
	uint32_t n_done = 0;

	memset(theirs, 0, sizeof(theirs));
	open_engine(&(struct rig_options){.max_requests = 1});
	dry_attach(&dry, &other, MANY, 2, 1);
	for (uint32_t i = 0; i < MANY - 1; i++) {
		struct msg_generate msg = rig_greedy(1, 400);
		struct rig_request request;

		/* In an order that mixes early and late ones. */
		msg.deadline_ms = 1000 + i * 2741 % MANY;
		msg.flags = MIMEO_GENERATE_IGNORE_EOS;
		request = rig_generate(&other, i, (int32_t[]){1}, 1, &msg);
		request.sqe.submitted_ns = begin;
		rig_submit(&other, request);
		engine_turn(dry.engine); /* before its place in the arena is another's */
	}
	dry_turns(&dry);
	while (n_done < MANY / 4) {
		const uint32_t n_before = n_done;

		dry_now_ns += 10 * MS;
		n_looks = 0;
		finish_overdue(&dry.engine->accounting);
		completion_publish(&dry.engine->accounting);
		rig_poll(&other, theirs);
		n_done = 0;
		for (uint32_t i = 0; i < MANY - 1; i++) {
			const bool due = begin + (1000 + i * 2741 % MANY) * MS <= dry_now_ns;

			assert_int_equal(theirs[i].done, due);
			n_done += theirs[i].done;
		}
		assert_true(n_looks <= 2 * (n_done - n_before) + 4);
	}
	dry_detach(&dry, &other);
	close_engine();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_times_to_the_first_token_and_between_the_others_are_summed),
		cmocka_unit_test(test_distributions_have_each_request_and_each_token_once),
		cmocka_unit_test(test_no_request_is_returned_a_step_after_its_deadline),
		cmocka_unit_test(test_first_token_that_came_in_time_ends_its_deadline),
		cmocka_unit_test(test_request_without_a_token_ends_by_its_first_deadline),
		cmocka_unit_test(test_earlier_deadline_is_the_one_that_is_named),
		cmocka_unit_test(test_deadline_counts_from_the_stamp_of_the_entry),
		cmocka_unit_test(test_impossible_stamp_counts_as_none),
		cmocka_unit_test(test_deadline_that_passes_costs_nothing_for_others_that_do_not),
	};

	return cmocka_run_group_tests_name("engine deadlines", tests, NULL, NULL);
}
