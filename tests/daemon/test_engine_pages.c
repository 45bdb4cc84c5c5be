/* SPDX-License-Identifier: MIT */
/* KV pages: who gets them, who waits, and that all come back. A page holds 16 tokens. */
#include "tests/daemon/rig.h"

/* Some tokens' worth of history in an open sequence; fixed: under a mask that cannot be had once more. */
static void fill(struct rig_client *client, uint32_t sequence, uint32_t n_tokens, bool fixed)
{
	int32_t tokens[512];
	struct msg_row row = {sequence, n_tokens};
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};

	if (fixed)
		msg.mask = (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = 512};
	for (uint32_t i = 0; i < n_tokens; i++)
		tokens[i] = (int32_t)('a' + i % 26);
	rig_ok(client, 0, RING_OP_OPEN, sequence, 0);
	rig_must(client, rig_step(client, 0, &msg, &row, tokens));
}

/* Has the pages of 240 tokens from its start to its end. */
static struct rig_request ask_wide(struct rig_client *client, uint32_t index)
{
	int32_t tokens[230];

	rig_nonsense(tokens, 230, index);
	return rig_ask(client, index, 0, tokens, 230, 10, MIMEO_GENERATE_IGNORE_EOS);
}

/* ---- waiting ---- */

static void test_generate_waits_for_pages_and_then_answers_right(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;

	rig_gate_close(rig);
	rig_submit(&rig->client, ask_wide(&rig->client, 0));
	request = rig_ask_text(&rig->client, 1, 0, "rev hello\n");
	rig_submit(&rig->client, request);
	rig_wait_waiting(rig, 1);
	assert_int_equal(rig_pages_free(rig, 0), 0);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[0].n_generated, 10);
	rig_assert_text(&rig->client, &request, &rig->results[1], "olleh");
	assert_int_equal(rig->runner->n_preempted, 0);
}

/* A huge one beside a long one, and small ones that fit: 32 of them pass it, and nothing more until it has
 * started, for which the long one is preempted. */
static void test_request_that_does_not_fit_is_passed_by_32_others(void **state)
{
	struct rig *rig = *state;
	struct rig_client *small = rig_other(rig, 64);
	struct rig_request first = rig_endless(&rig->client, 0, 0, 200);
	int32_t tokens[310], expected[200];
	struct rig_result results[64] = {0};
	uint32_t n_done = 0, n_before = 0;

	rig_must(&rig->client, first);
	memcpy(expected, rig_tokens(&rig->client, &first), sizeof(expected));
	rig_gate_close(rig);
	first = rig_endless(&rig->client, 0, 0, 200);
	rig_submit(&rig->client, first);
	rig_wait_steps(rig, 1);
	rig_nonsense(tokens, 310, 1);
	rig_submit(&rig->client, rig_ask(&rig->client, 1, 0, tokens, 310, 10, MIMEO_GENERATE_IGNORE_EOS));
	rig_wait_waiting(rig, 1);
	for (uint32_t i = 0; i < 48; i++)
		rig_submit(small, rig_endless(small, i, 0, 2));
	rig_gate_open(rig);
	while (n_done < 48) {
		rig_poll(small, results);
		n_done = 0;
		for (uint32_t i = 0; i < 48; i++)
			n_done += results[i].done;
		rig_poll(&rig->client, rig->results);
		if (!rig->results[1].n_events)
			n_before = n_done;
	}
	rig_wait(&rig->client, rig->results, 1);
	rig_wait(&rig->client, rig->results, 0);
	assert_in_range(n_before, 1, 32);
	assert_int_equal(rig->results[1].n_generated, 10);
	assert_int_equal(rig->results[0].n_generated, 200);
	/* On CUDA near ties may end otherwise when tokens are computed once more. */
	if (!test_on_cuda())
		assert_memory_equal(rig_tokens(&rig->client, &first), expected, sizeof(expected));
	assert_true(rig->runner->n_preempted >= 1);
}

/* The last request of the first session has its slot in turn, behind those of 39 others: they do not pass it.
 * It had both slots when it was alone, and gives one of them. */
static void test_turns_of_many_sessions_preempt_nothing(void **state)
{
	enum { N_CLIENTS = 40, N_EACH = 3 };
	static struct rig_client clients[N_CLIENTS];
	struct rig_result results[N_CLIENTS][8] = {0};
	struct rig *rig = *state;

	for (uint32_t c = 0; c < N_CLIENTS; c++)
		rig_attach(rig, &clients[c], 8);
	rig_gate_close(rig);
	for (uint32_t c = 0; c < N_CLIENTS; c++) {
		for (uint32_t i = 0; i < N_EACH; i++)
			rig_submit(&clients[c], rig_endless(&clients[c], i, 0, 3));
		rig_wait_waiting(rig, (c + 1) * N_EACH - 2);
	}
	rig_gate_open(rig);
	for (uint32_t c = 0; c < N_CLIENTS; c++) {
		for (uint32_t i = 0; i < N_EACH; i++)
			rig_wait(&clients[c], results[c], i);
	}
	assert_in_range(rig->runner->n_preempted, 0, 1);
	for (uint32_t c = 0; c < N_CLIENTS; c++)
		rig_detach(&clients[c]);
}

static void test_sessions_take_turns(void **state)
{
	struct rig *rig = *state;
	struct rig_result results[2][8] = {0};
	struct rig_client *clients = rig->others;
	uint32_t done[2] = {0};

	rig_other(rig, 8);
	rig_other(rig, 8);
	rig_gate_close(rig);
	for (uint32_t c = 0; c < 2; c++) {
		for (uint32_t i = 0; i < (c ? 3 : 7); i++)
			rig_submit(&clients[c], rig_endless(&clients[c], i, 0, 20));
		rig_wait_waiting(rig, c ? 9 : 6);
	}
	rig_gate_open(rig);
	while (done[0] + done[1] < 10) {
		for (uint32_t c = 0; c < 2; c++) {
			rig_poll(&clients[c], results[c]);
			done[c] = 0;
			for (uint32_t i = 0; i < 8; i++)
				done[c] += results[c][i].done;
		}
		/* The first had its second one at turn before there was another session's; and the
		 * second session was looked at last. */
		assert_true(done[1] + 2 >= (done[0] < 5 ? done[0] : 5));
	}
}

static void test_pages_of_fixed_sequences_are_waited_for_without_holding_up_others(void **state)
{
	struct rig *rig = *state;
	struct rig_client *holder = rig_other(rig, 8);
	struct rig_client *waiter = rig_other(rig, 8);
	struct rig_client *other = rig_other(rig, 8);
	struct rig_result results[8] = {0};
	struct rig_request request;

	fill(holder, 1, 160, true);
	rig_submit(waiter, ask_wide(waiter, 0));
	rig_wait_waiting(rig, 1);
	request = rig_ask_text(other, 0, 0, "9+8=");
	rig_submit(other, request);
	rig_wait(other, results, 0);
	rig_assert_text(other, &request, &results[0], "17");
	rig_poll(waiter, results + 1);
	assert_false(results[1].done);
	rig_ok(holder, 1, RING_OP_CLOSE, 1, 0);
	rig_wait(waiter, results + 1, 0);
	assert_int_equal(results[1].n_generated, 10);
}

static void test_wide_step_takes_slots_one_by_one_among_narrow_requests(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = rig_other(rig, 8);
	struct rig_client *other = rig_other(rig, 64);
	struct rig_result results[8] = {0}, theirs[64] = {0};
	struct msg_row rows[4];
	struct msg_step msg = {.n_rows = 4, .outputs = MIMEO_STEP_TOKENS};
	uint32_t n_done = 0;

	for (uint32_t i = 0; i < 4; i++) {
		rows[i] = (struct msg_row){i + 1, 1};
		rig_ok(client, 0, RING_OP_OPEN, i + 1, 0);
	}
	rig_gate_close(rig);
	for (uint32_t i = 0; i < 3; i++)
		rig_submit(other, rig_endless(other, i, 0, 10 + 7 * i));
	RIG_AWAIT(engine_stats(rig->engine)->n_running >= 3);
	rig_submit(client, rig_step(client, 0, &msg, rows, (int32_t[]){1, 1, 1, 1}));
	rig_wait_waiting(rig, 1);
	for (uint32_t i = 3; i < 60; i++)
		rig_submit(other, rig_endless(other, i, 0, 10));
	rig_wait_waiting(rig, 58);
	assert_int_equal(engine_stats(rig->engine)->n_slots_free, 0);
	rig_gate_open(rig);
	rig_wait(client, results, 0);
	assert_int_equal(results[0].status, 0);
	rig_poll(other, theirs);
	for (uint32_t i = 0; i < 60; i++)
		n_done += theirs[i].done;
	assert_true(n_done < 60);
	for (uint32_t i = 0; i < 60; i++)
		rig_wait(other, theirs, i);
}

/* ---- refusals ---- */

static void test_step_without_pages_is_refused_with_the_counts(void **state)
{
	struct rig *rig = *state;
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	const struct msg_row row = {2, 65};
	int32_t tokens[65];
	struct rig_result result;

	fill(&rig->client, 1, 64, true);
	rig_ok(&rig->client, 1, RING_OP_OPEN, 2, 0);
	rig_nonsense(tokens, 65, 1);
	result = rig_do(&rig->client, rig_step(&rig->client, 1, &msg, &row, tokens));
	assert_int_equal(result.status, MIMEO_E_NO_MEMORY);
	assert_int_equal(result.detail, RING_DETAIL_PAGES);
	assert_int_equal(result.values[0], 5);
	assert_int_equal(result.values[1], 4);
	assert_int_equal(result.finish, MIMEO_FINISH_NONE);
	rig_ok(&rig->client, 1, RING_OP_TRUNCATE, 1, 48);
	rig_must(&rig->client, rig_step(&rig->client, 1, &msg, &row, tokens));
}

static void test_too_long_says_by_what(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;
	struct rig_result result;

	request = rig_endless(&rig->client, 0, 0, 501); /* a prompt of 12 */
	result = rig_do(&rig->client, request);
	assert_int_equal(result.status, MIMEO_E_TOO_LONG);
	assert_int_equal(result.detail, RING_DETAIL_LENGTH);
	assert_int_equal(result.values[0], 513);
	assert_int_equal(result.values[1], 512);
	assert_int_equal(result.finish, MIMEO_FINISH_ERROR);
	result = rig_do(&rig->client, rig_endless(&rig->client, 0, 0, 149));
	assert_int_equal(result.status, MIMEO_E_TOO_LONG);
	assert_int_equal(result.detail, RING_DETAIL_PAGES);
	assert_int_equal(result.values[0], 11);
	assert_int_equal(result.values[1], 10);
	rig_must(&rig->client, rig_endless(&rig->client, 0, 0, 148));
}

static void test_request_that_would_wait_for_its_own_sequence_is_too_long(void **state)
{
	struct rig *rig = *state;
	struct rig_result result;

	fill(&rig->client, 1, 96, false);
	result = rig_do(&rig->client, rig_endless(&rig->client, 0, 1, 60));
	assert_int_equal(result.status, MIMEO_E_TOO_LONG);
	assert_int_equal(result.detail, RING_DETAIL_PAGES);
	assert_int_equal(result.values[0], 11);
}

/* ---- everything comes back ---- */

static void test_cancelled_waiting_request_leaves_nothing(void **state)
{
	struct rig *rig = *state;
	struct rig_request one, two;

	rig_gate_close(rig);
	one = ask_wide(&rig->client, 0);
	two = rig_endless(&rig->client, 1, 0, 200);
	rig_submit(&rig->client, one);
	rig_submit(&rig->client, two);
	rig_wait_waiting(rig, 1);
	rig_cancel(&rig->client, 2, &two);
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[1].status, MIMEO_E_CANCELLED);
	assert_int_equal(rig->results[1].n_prompt, 0);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].n_generated, 10);
	rig_assert_all_free(rig);
}

static void test_cancel_in_the_middle_of_a_prompt_gives_pages_back_behind_the_launched_steps(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;
	int32_t tokens[100];

	for (int i = 0; i < 100; i++)
		tokens[i] = 'a';
	rig_gate_close(rig);
	request = rig_ask(&rig->client, 0, 0, tokens, 100, 20, 0);
	rig_submit(&rig->client, request);
	rig_wait_steps(rig, 2);
	rig_cancel(&rig->client, 1, &request);
	rig_wait(&rig->client, rig->results, 0);
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[0].status, MIMEO_E_CANCELLED);
	assert_int_equal(rig->results[0].n_generated, 0);
	/* The launched steps still name them. */
	assert_int_equal(rig_pages_free(rig, 0), 20 - 7);
	assert_int_equal(engine_stats(rig->engine)->n_slots_free, 15);
	rig_gate_open(rig);
	rig_assert_all_free(rig);
	assert_int_equal(engine_stats(rig->engine)->n_steps, 2);
	assert_int_equal(engine_stats(rig->engine)->n_discarded_rows, 2);
}

static void test_deadline_ends_a_waiting_request_while_nothing_else_happens(void **state)
{
	struct rig *rig = *state;
	struct rig_result result;
	struct msg_generate msg = rig_greedy(90, 10);
	int32_t tokens[90];

	fill(&rig->client, 1, 80, true);
	rig_nonsense(tokens, 90, 1);
	msg.deadline_ms = 30;
	result = rig_do(&rig->client, rig_generate(&rig->client, 0, tokens, 90, &msg));
	assert_int_equal(result.status, MIMEO_E_DEADLINE);
	assert_int_equal(result.finish, MIMEO_FINISH_ERROR);
}

static void test_earlier_deadline_that_came_later_is_not_overlooked(void **state)
{
	struct rig *rig = *state;
	struct msg_generate msg = rig_greedy(90, 10);
	int32_t tokens[90];

	fill(&rig->client, 1, 80, true);
	rig_nonsense(tokens, 90, 1);
	for (uint32_t i = 0; i < 3; i++) {
		msg.deadline_ms = i == 0 ? 3600 * 1000 : 40 - 10 * i;
		rig_submit(&rig->client, rig_generate(&rig->client, i, tokens, 90, &msg));
	}
	rig_wait(&rig->client, rig->results, 1);
	rig_wait(&rig->client, rig->results, 2);
	assert_int_equal(rig->results[1].status, MIMEO_E_DEADLINE);
	assert_int_equal(rig->results[2].status, MIMEO_E_DEADLINE);
	assert_false(rig->results[0].done);
}

/* A client that goes away after n_events completions of whatever it runs. */
static void live_and_leave(struct rig *rig, uint32_t n_events)
{
	struct rig_result results[16] = {0};
	struct rig_client client;
	uint32_t n = 0, n_done = 0;

	rig_attach(rig, &client, 16);
	for (uint32_t id = 1; id <= 2; id++)
		rig_submit(&client, rig_call(&client, id - 1, RING_OP_OPEN, id, 0));
	rig_submit(&client, rig_step_text(&client, 2, 1, "sort 52 17", true));
	rig_submit(&client, rig_call(&client, 3, RING_OP_FORK, 1, 3));
	for (uint32_t i = 4; i < 10; i++)
		rig_submit(&client, rig_endless(&client, i, i == 4 ? 1 : i == 5 ? 3 : i == 6 ? 2 : 0, 20));
	/* Or until all have ended: a slow reader gets fewer progress completions. */
	while (n < n_events && n_done < 10) {
		rig_poll(&client, results);
		n = n_done = 0;
		for (uint32_t i = 0; i < 10; i++) {
			n += results[i].n_events;
			n_done += results[i].done;
		}
	}
	rig_detach(&client);
}

static void test_detach_at_any_stage_gives_all_back_and_disturbs_no_other_client(void **state)
{
	struct rig *rig = *state;
	struct rig_client *witness = rig_other(rig, 8);

	for (uint32_t n_events = 0; n_events <= 60; n_events += n_events < 16 ? 1 : 4) {
		struct rig_request request = rig_ask_text(witness, 0, 0, "count 4 30\n");
		struct rig_result results[8] = {0};

		rig_submit(witness, request);
		live_and_leave(rig, n_events);
		rig_wait(witness, results, 0);
		assert_int_equal(results[0].n_generated, 40);
		assert_memory_equal(rig_tokens(witness, &request),
			((int32_t[]){'4', ' ', '5', ' ', '6', ' ', '7'}), 28);
		rig_assert_all_free(rig);
	}
}

static void test_detach_before_the_launched_steps_are_done_waits_for_them(void **state)
{
	struct rig *rig = *state;
	struct engine_report report;

	rig_gate_close(rig);
	rig_submit(&rig->client, rig_endless(&rig->client, 0, 0, 100));
	rig_wait_steps(rig, 2);
	assert_int_equal(engine_post_detach(rig->engine, rig->client.port), 0);
	RIG_AWAIT(!engine_stats(rig->engine)->n_running);
	assert_int_equal(rig_pages_free(rig, 0), 20 - 1);
	assert_false(engine_report_take(rig->engine, &report));
	rig_gate_open(rig);
	rig_detached(&rig->client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(test_generate_waits_for_pages_and_then_answers_right,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 15),
		RIG_TEST(test_request_that_does_not_fit_is_passed_by_32_others,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 20, .max_requests = 2),
		RIG_ENGINE_TEST(test_turns_of_many_sessions_preempt_nothing,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_requests = 2),
		RIG_ENGINE_TEST(test_sessions_take_turns,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_requests = 1),
		RIG_ENGINE_TEST(test_pages_of_fixed_sequences_are_waited_for_without_holding_up_others,
			.mode = GRAPH_FULL, .attention = "flex", .kv_pages = 20),
		RIG_ENGINE_TEST(test_wide_step_takes_slots_one_by_one_among_narrow_requests,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_requests = 4),
		RIG_TEST(test_step_without_pages_is_refused_with_the_counts,
			.mode = GRAPH_FULL, .attention = "flex", .kv_pages = 8),
		RIG_TEST(test_too_long_says_by_what,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 10),
		RIG_TEST(test_request_that_would_wait_for_its_own_sequence_is_too_long,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 10),
		RIG_TEST(test_cancelled_waiting_request_leaves_nothing,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 15),
		RIG_TEST(test_cancel_in_the_middle_of_a_prompt_gives_pages_back_behind_the_launched_steps,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 20, .max_batch_tokens = 8),
		RIG_TEST(test_deadline_ends_a_waiting_request_while_nothing_else_happens,
			.mode = GRAPH_FULL, .attention = "flex", .kv_pages = 10),
		RIG_TEST(test_earlier_deadline_that_came_later_is_not_overlooked,
			.mode = GRAPH_FULL, .attention = "flex", .kv_pages = 10),
		RIG_ENGINE_TEST(test_detach_at_any_stage_gives_all_back_and_disturbs_no_other_client,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 20, .max_requests = 4, .max_batch_tokens = 16),
		RIG_TEST(test_detach_before_the_launched_steps_are_done_waits_for_them,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 20),
	};

	return cmocka_run_group_tests_name("engine pages", tests, NULL, NULL);
}
