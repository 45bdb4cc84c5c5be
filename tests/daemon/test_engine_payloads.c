/* SPDX-License-Identifier: MIT */
/* Requests own their payloads, in a pool of their session: daemon/engine/requests/payload.h. */
#include <stdlib.h>
#include <time.h>

#include "daemon/engine/query.h"
#include "daemon/engine/requests/adjust.h"
#include "tests/daemon/manual.h"
#include "tests/random.h"

#define TOKENS 64u /* a sequence */
#define ROW_BYTES (8 + 12 * TOKENS)

static struct engine_session *session_of(const struct rig_client *client)
{
	RIG_AWAIT(client->port->engine_private);
	return client->port->engine_private;
}

/* Of 4 requests in flight and steps of 2 rows: 2 steps with mask words fill the pool, less what generate requests
 * may say about their logits. */
static int payloads_setup(void **state)
{
	struct payload_pool *pool;
	int rc = rig_setup(state);

	if (rc)
		return rc;
	pool = &session_of(&((struct rig *)*state)->client)->payloads;
	assert_int_equal(pool->bytes, 4 * (ROW_BYTES + adjust_payload_most(MANUAL_VOCAB)));
	pool->bytes = 4 * ROW_BYTES;
	return 0;
}

#define PAYLOADS_TEST(test)                                                                        \
	{#test, test, payloads_setup, rig_teardown, &(struct rig_options){.attention = "flex",      \
		.max_requests = 2, .max_seq_len = TOKENS, .entries = 4}}

static void assert_pool_empties(const struct rig_client *client)
{
	const struct payload_pool *pool = &session_of(client)->payloads;

	RIG_AWAIT(!pool->used && !pool->first);
}

/* A step of two rows with mask words, of the sequences `first` and the next one: half a pool. */
static struct rig_request half_pool(struct rig_client *client, uint32_t index, uint32_t first)
{
	const struct msg_row rows[] = {{first, TOKENS}, {first + 1, TOKENS}};
	const struct msg_step msg = {.n_rows = 2, .outputs = MIMEO_STEP_TOKENS,
		.mask = {.kind = MIMEO_MASK_DOCUMENTS}};
	int32_t payload[2 * TOKENS * 3] = {0};
	struct rig_request request;

	rig_nonsense(payload, 2 * TOKENS, index);
	request = rig_step(client, index, &msg, rows, payload);
	assert_int_equal(request.sqe.payload_length, 2 * ROW_BYTES);
	return request;
}

static void await_queue(const struct rig_client *client, uint32_t n_in_flight, uint32_t n_waiting)
{
	RIG_AWAIT(client->port->n_in_flight == n_in_flight && client->port->n_waiting == n_waiting);
}

/* With its lane held and its pool full: a step runs, one waits. */
static void fill_pool(struct rig_client *client)
{
	for (uint32_t i = 1; i <= 4; i++)
		rig_ok(client, 0, RING_OP_OPEN, i, 0);
	rig_gate_close(client->rig);
	rig_submit(client, half_pool(client, 0, 1));
	rig_submit(client, half_pool(client, 1, 3));
	await_queue(client, 2, 1);
	assert_int_equal(session_of(client)->payloads.used, 4 * ROW_BYTES);
}

static void test_client_that_overwrites_its_arena_changes_nothing(void **state)
{
	struct rig *rig = *state;
	const struct msg_row rows[] = {{1, 8}, {2, 8}};
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_LOGITS,
		.mask = {.kind = MIMEO_MASK_DOCUMENTS}};
	const struct msg_output layout = msg_output_layout(1, 1, MANUAL_VOCAB, 1, 160);
	int32_t payload[3 * 8] = {0};
	float expected[MANUAL_VOCAB];
	struct rig_request request;

	rig_nonsense(payload, 8, 1);
	for (uint32_t i = 4; i < 8; i++)
		payload[8 + 2 * i] = 1; /* another document */
	for (uint32_t i = 1; i <= 4; i++)
		rig_ok(&rig->client, 0, RING_OP_OPEN, i, 0);
	request = rig_step(&rig->client, 0, &msg, &rows[0], payload);
	rig_must(&rig->client, request);
	memcpy(expected, rig_logits(&rig->client, &request, &layout), sizeof(expected));
	rig_gate_close(rig);
	rig_submit(&rig->client, half_pool(&rig->client, 1, 3));
	request = rig_step(&rig->client, 0, &msg, &rows[1], payload);
	rig->results[0] = (struct rig_result){0};
	rig_submit(&rig->client, request);
	await_queue(&rig->client, 2, 1); /* for a slot */
	memset(rig->client.region.arena + request.sqe.payload_offset, 0xff, request.sqe.payload_length);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].status, 0);
	manual_assert_logits(rig_logits(&rig->client, &request, &layout), expected, 1, "overwritten");
	assert_pool_empties(&rig->client);
}

static void test_entry_waits_for_the_pool_while_a_request_of_its_session_runs(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	const int32_t prompt[] = {1, '1', '+', '2', '='};

	fill_pool(client);
	rig_submit(client, rig_ask(client, 2, 0, prompt, 5, 8, 0));
	RIG_AWAIT(session_of(client)->n_held);
	assert_int_equal(client->port->n_in_flight, 2);
	assert_int_equal(session_of(client)->payloads.used, 4 * ROW_BYTES);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 3; i++) {
		rig_wait(client, rig->results, i);
		assert_int_equal(rig->results[i].status, 0);
	}
	assert_pool_empties(client);
}

static void test_entry_that_waits_for_the_pool_takes_those_behind_it_along_in_order(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	const int32_t bad[] = {1, 300};

	fill_pool(client);
	rig_submit(client, rig_ask(client, 2, 0, bad, 2, 8, 0));
	rig_submit(client, rig_call(client, 3, RING_OP_CLOSE, 9, 0));
	RIG_AWAIT(session_of(client)->n_held);
	assert_false(rig_poll(client, rig->results));
	rig_gate_open(rig);
	rig_wait(client, rig->results, 2);
	assert_int_equal(rig->results[2].detail, RING_DETAIL_TOKEN);
	rig_wait(client, rig->results, 3);
	assert_int_equal(rig->results[3].status, MIMEO_E_UNKNOWN_SEQUENCE);
	rig_wait(client, rig->results, 0);
	rig_wait(client, rig->results, 1);
	assert_pool_empties(client);
}

static void test_cancel_reaches_running_and_held_requests_past_held_entries(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	struct rig_request held[2];

	for (uint32_t i = 1; i <= 2; i++)
		rig_ok(client, 0, RING_OP_OPEN, i, 0);
	rig_gate_close(rig);
	held[0] = rig_endless(client, 0, 0, 8);
	rig_submit(client, held[0]);
	await_queue(client, 1, 0);
	rig_submit(client, half_pool(client, 1, 1));
	await_queue(client, 2, 1);
	held[1] = half_pool(client, 2, 1);
	rig_submit(client, held[1]);
	RIG_AWAIT(session_of(client)->n_held == 1);
	rig_cancel(client, 3, &held[1]);
	rig_wait(client, rig->results, 3);
	assert_int_equal(rig->results[3].status, 0);
	rig_wait(client, rig->results, 2);
	assert_int_equal(rig->results[2].status, MIMEO_E_CANCELLED);
	assert_int_equal(session_of(client)->n_held, 0);
	memset(&rig->results[2], 0, 2 * sizeof(rig->results[2]));
	held[1] = half_pool(client, 2, 1);
	rig_submit(client, held[1]);
	RIG_AWAIT(session_of(client)->n_held == 1);
	rig_cancel(client, 3, &held[0]);
	rig_wait(client, rig->results, 3);
	assert_int_equal(rig->results[3].status, 0);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 3; i++)
		rig_wait(client, rig->results, i);
	assert_int_equal(rig->results[0].status, MIMEO_E_CANCELLED);
	assert_pool_empties(client);
}

/* The one query's answer, which is the caller's to free. */
static struct engine_query *asked(struct rig *rig, struct engine_query query)
{
	struct engine_query *copy = malloc(sizeof(*copy)), *answer = NULL;

	assert_non_null(copy);
	*copy = query;
	assert_int_equal(engine_post_query(rig->engine, copy), 0);
	RIG_AWAIT((answer = engine_query_take(rig->engine)));
	return answer;
}

static void test_operators_see_and_cancel_held_entries(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	struct engine_query *answer;
	uint64_t id;

	fill_pool(client);
	rig_submit(client, rig_endless(client, 2, 0, 8));
	RIG_AWAIT(session_of(client)->n_held == 1);
	answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_REQUESTS});
	assert_int_equal(answer->n, 3);
	assert_int_equal(answer->requests[2].state, ENGINE_REQUEST_QUEUED);
	assert_int_equal(answer->requests[2].model, ENGINE_ALL);
	id = answer->requests[2].id;
	assert_true(id > answer->requests[1].id);
	engine_query_free(answer);
	answer = asked(rig, (struct engine_query){.kind = ENGINE_QUERY_CANCEL, .id = id});
	assert_int_equal(answer->rc, 0);
	engine_query_free(answer);
	rig_wait(client, rig->results, 2);
	assert_int_equal(rig->results[2].status, MIMEO_E_CANCELLED);
	assert_int_equal(rig->results[2].detail, RING_DETAIL_OPERATOR);
	rig_gate_open(rig);
	rig_wait(client, rig->results, 0);
	rig_wait(client, rig->results, 1);
	rig_close_histories(client, 4);
}

static void test_deadline_of_a_held_entry_counts_from_its_submission(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	const struct msg_generate msg = {.n_tokens = 5, .max_tokens = 8, .deadline_ms = 200};
	const int32_t prompt[] = {1, '1', '+', '2', '='};

	fill_pool(client);
	rig_submit(client, rig_generate(client, 2, prompt, 5, &msg));
	RIG_AWAIT(session_of(client)->n_held == 1);
	nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
	rig_gate_open(rig);
	rig_wait(client, rig->results, 2);
	assert_int_equal(rig->results[2].status, MIMEO_E_DEADLINE);
	rig_wait(client, rig->results, 0);
	rig_wait(client, rig->results, 1);
	assert_pool_empties(client);
}

/* Nothing of its session ends before it. */
static void test_deadlines_end_held_entries_where_they_are(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	struct msg_generate msg = {.n_tokens = 5, .max_tokens = 8, .first_token_ms = 20};
	const int32_t prompt[] = {1, '1', '+', '2', '='};

	fill_pool(client);
	rig_submit(client, rig_generate(client, 2, prompt, 5, &msg));
	msg.first_token_ms = 0;
	msg.deadline_ms = 30;
	rig_submit(client, rig_generate(client, 3, prompt, 5, &msg));
	rig_wait(client, rig->results, 2);
	rig_wait(client, rig->results, 3);
	for (uint32_t i = 0; i < 2; i++) {
		const struct rig_result *result = &rig->results[2 + i];

		assert_false(rig->results[i].done);
		assert_int_equal(result->status, MIMEO_E_DEADLINE);
		assert_int_equal(result->finish, MIMEO_FINISH_ERROR);
		assert_int_equal(result->detail, RING_DETAIL_DEADLINE);
		assert_int_equal(result->values[0], i ? MSG_DEADLINE_MS : MSG_FIRST_TOKEN_MS);
		assert_int_equal(result->values[1], i ? 30 : 20);
	}
	assert_int_equal(session_of(client)->n_held, 0);
	rig_gate_open(rig);
	rig_wait(client, rig->results, 0);
	rig_wait(client, rig->results, 1);
	assert_pool_empties(client);
}

static void test_index_of_a_held_entry_is_in_flight(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;

	fill_pool(client);
	rig_submit(client, rig_ask_text(client, 2, 0, "1+2="));
	RIG_AWAIT(session_of(client)->n_held == 1);
	rig_submit(client, rig_call(client, 2, RING_OP_NOP, 0, 0));
	RIG_AWAIT(session_of(client)->failed);
	rig_gate_open(rig);
}

static void test_pool_full_of_waiting_requests_is_no_memory(void **state)
{
	struct rig *rig = *state;
	struct rig_client *other = rig_other(rig, 4);
	struct rig_request request;

	for (uint32_t i = 1; i <= 4; i++)
		rig_ok(&rig->client, 0, RING_OP_OPEN, i, 0);
	rig_gate_close(rig);
	rig_submit(other, rig_endless(other, 0, 0, 8));
	rig_submit(other, rig_endless(other, 1, 0, 8));
	await_queue(other, 2, 0);
	rig_submit(&rig->client, half_pool(&rig->client, 0, 1));
	rig_submit(&rig->client, half_pool(&rig->client, 1, 3));
	await_queue(&rig->client, 2, 2);
	request = rig_ask_text(&rig->client, 2, 0, "1+2=");
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_NO_MEMORY});
	assert_int_equal(session_of(&rig->client)->payloads.used, 4 * ROW_BYTES);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 2; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, 0);
	}
}

static void test_payload_larger_than_the_pool_is_too_long_at_once(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	static const int32_t tokens[ROW_BYTES + 1];
	struct rig_request request = rig_ask(client, 2, 0, tokens, ROW_BYTES + 1, 1, 0);

	assert_int_equal(request.sqe.payload_length, 4 * ROW_BYTES + 4);
	rig_expect(client, &request, (struct rig_expected){
		MIMEO_E_TOO_LONG, RING_DETAIL_LENGTH, ROW_BYTES + 1, TOKENS});
	fill_pool(client);
	rig_expect(client, &request, (struct rig_expected){
		MIMEO_E_TOO_LONG, RING_DETAIL_LENGTH, ROW_BYTES + 1, TOKENS});
	/* And so is one that has the pool's size: no sequence has so many. */
	rig_gate_open(rig);
	rig_wait(client, rig->results, 0);
	rig_wait(client, rig->results, 1);
	request = rig_ask(client, 2, 0, tokens, ROW_BYTES, 1, 0);
	rig_expect(client, &request, (struct rig_expected){
		MIMEO_E_TOO_LONG, RING_DETAIL_LENGTH, ROW_BYTES, TOKENS});
	assert_pool_empties(client);
}

static void test_payloads_go_back_however_their_requests_end(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	const int32_t bad[] = {1, 300};
	struct rig_request runs, waits;
	struct msg_generate late = rig_greedy(2, 8);

	rig_must(client, rig_ask_text(client, 0, 0, "9+8="));
	assert_pool_empties(client);
	assert_int_equal(rig_do(client, rig_ask(client, 0, 0, bad, 2, 8, 0)).detail, RING_DETAIL_TOKEN);
	assert_pool_empties(client);
	for (uint32_t i = 1; i <= 4; i++)
		rig_ok(client, 0, RING_OP_OPEN, i, 0);
	rig_gate_close(rig);
	runs = half_pool(client, 0, 1);
	waits = half_pool(client, 1, 3);
	rig_submit(client, runs);
	rig_submit(client, waits);
	await_queue(client, 2, 1);
	rig_cancel(client, 2, &waits);
	rig_wait(client, rig->results, 1);
	rig_wait(client, rig->results, 2);
	late.deadline_ms = 1;
	rig->results[2] = (struct rig_result){0};
	rig_submit(client, rig_generate(client, 2, (const int32_t[]){1, '1'}, 2, &late));
	rig_wait(client, rig->results, 2);
	assert_int_equal(rig->results[2].status, MIMEO_E_DEADLINE);
	assert_int_equal(session_of(client)->payloads.used, 2 * ROW_BYTES);
	rig_cancel(client, 3, &runs);
	rig_wait(client, rig->results, 0);
	rig_wait(client, rig->results, 3);
	assert_pool_empties(client);
	rig_gate_open(rig);
}

/* The engine itself stops if a session that ends has left any. */
static void test_session_that_ends_leaves_no_payload(void **state)
{
	struct rig *rig = *state;

	fill_pool(&rig->client);
	rig_submit(&rig->client, rig_ask_text(&rig->client, 2, 0, "1+2="));
	RIG_AWAIT(session_of(&rig->client)->n_held);
	assert_int_equal(engine_post_detach(rig->engine, rig->client.port), 0);
	RIG_AWAIT(engine_stats(rig->engine)->n_waiting == 0);
	rig_gate_open(rig);
	rig_detached(&rig->client);
}

static void test_sessions_do_not_share_a_pool(void **state)
{
	struct rig *rig = *state;
	struct rig_client *other = rig_other(rig, 4);
	struct rig_result results[4] = {0};

	rig_ok(other, 0, RING_OP_OPEN, 1, 0);
	rig_ok(other, 0, RING_OP_OPEN, 2, 0);
	fill_pool(&rig->client);
	rig_submit(other, half_pool(other, 0, 1));
	RIG_AWAIT(other->port->n_in_flight == 1);
	assert_int_equal(session_of(other)->payloads.used, 2 * ROW_BYTES);
	rig_gate_open(rig);
	rig_wait(other, results, 0);
	assert_int_equal(results[0].status, 0);
}

/* ---- the pool by itself ---- */

static void test_pool_is_bounded_by_requests_rows_and_arena(void **state)
{
	assert_int_equal(payload_pool_bytes(4, 2, 64, 0, 1 << 20), 4 * ROW_BYTES);
	assert_int_equal(payload_pool_bytes(4, 16, 64, 0, 1 << 20), 16 * ROW_BYTES);
	assert_int_equal(payload_pool_bytes(4, 16, 64, 8224, 1 << 20), 16 * (ROW_BYTES + 8224));
	assert_int_equal(payload_pool_bytes(4096, 16, 131072, 0, 1 << 30), 1 << 30);
	assert_int_equal(payload_pool_bytes(4096, 16, UINT32_MAX, 0, 65536), 65536);
}

static void test_payloads_never_overlap_and_every_gap_is_found(void **state)
{
	enum { UNITS = 64, N = 32 };
	struct payload payloads[N] = {0};
	struct payload_pool pool = {.bytes = 4 * UNITS};
	uint64_t random = 1;

	for (uint32_t round = 0; round < 20000; round++) {
		struct payload *p = &payloads[random_below(&random, N)];
		uint32_t n = random_below(&random, 4 * 9), gap = 0, longest = 0, used = 0;
		bool owned[UNITS] = {0}, was = p->bytes;

		payload_release(&pool, p);
		assert_int_equal(p->bytes, 0);
		for (uint32_t i = 0; i < N; i++) {
			assert_true(payloads[i].offset + payloads[i].bytes <= pool.bytes);
			for (uint32_t at = 0; at < payloads[i].bytes / 4; at++) {
				assert_false(owned[payloads[i].offset / 4 + at]);
				owned[payloads[i].offset / 4 + at] = true;
			}
			used += payloads[i].bytes;
		}
		assert_int_equal(pool.used, used);
		for (uint32_t i = 0; i < UNITS; i++) {
			gap = owned[i] ? 0 : gap + 1;
			longest = gap > longest ? gap : longest;
		}
		if (!was)
			assert_int_equal(payload_take(&pool, p, n), longest && n <= 4 * longest);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		PAYLOADS_TEST(test_client_that_overwrites_its_arena_changes_nothing),
		PAYLOADS_TEST(test_entry_waits_for_the_pool_while_a_request_of_its_session_runs),
		PAYLOADS_TEST(test_entry_that_waits_for_the_pool_takes_those_behind_it_along_in_order),
		PAYLOADS_TEST(test_pool_full_of_waiting_requests_is_no_memory),
		PAYLOADS_TEST(test_payload_larger_than_the_pool_is_too_long_at_once),
		PAYLOADS_TEST(test_payloads_go_back_however_their_requests_end),
		PAYLOADS_TEST(test_cancel_reaches_running_and_held_requests_past_held_entries),
		PAYLOADS_TEST(test_operators_see_and_cancel_held_entries),
		PAYLOADS_TEST(test_deadline_of_a_held_entry_counts_from_its_submission),
		PAYLOADS_TEST(test_deadlines_end_held_entries_where_they_are),
		PAYLOADS_TEST(test_index_of_a_held_entry_is_in_flight),
		PAYLOADS_TEST(test_session_that_ends_leaves_no_payload),
		PAYLOADS_TEST(test_sessions_do_not_share_a_pool),
		cmocka_unit_test(test_pool_is_bounded_by_requests_rows_and_arena),
		cmocka_unit_test(test_payloads_never_overlap_and_every_gap_is_found),
	};

	return cmocka_run_group_tests_name("engine payloads", tests, NULL, NULL);
}
