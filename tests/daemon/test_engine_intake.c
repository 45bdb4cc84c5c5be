/* SPDX-License-Identifier: MIT */
/*
 * What clients can make the engine's thread copy and check in one turn. On an engine that computes nothing (dry.h):
 * bytes are counted by the requests that a turn refuses, each of whose tokens it has looked at.
 */
#include "tests/daemon/dry.h"

#include "daemon/engine/requests/submissions.h"

enum {
	ROWS = 16,
	TOKENS = 512, /* the rig's sequences have no more */
	PAYLOAD = ROWS * (8 + TOKENS * 4),
	ENTRIES = 256,
	CLIENTS = 12,
};

static struct dry dry;
static struct rig_client clients[CLIENTS];
static struct rig_result results[CLIENTS][ENTRIES];

static void open_engine(uint32_t n_clients)
{
	memset(results, 0, sizeof(results));
	dry_open(&dry, &(struct rig_options){.max_requests = ROWS});
	for (uint32_t i = 0; i < n_clients; i++)
		dry_attach(&dry, &clients[i], ENTRIES, i, 1);
}

static void close_engine(uint32_t n_clients)
{
	for (uint32_t i = 0; i < n_clients; i++)
		dry_detach(&dry, &clients[i]);
	dry_close(&dry);
}

/* A step of ROWS rows, TOKENS tokens in each; bad: the last one is outside the vocabulary. */
static struct rig_request wide(struct rig_client *client, uint32_t index, bool bad)
{
	struct rig_request request = rig_call(client, index, RING_OP_STEP, 0, 0);
	const struct msg_step msg = {.n_rows = ROWS, .outputs = MIMEO_STEP_TOKENS};
	uint8_t *arena = client->region.arena;
	struct msg_row *rows;
	int32_t *tokens;

	request.sqe.header_length = (uint32_t)msg_step_encode(&msg, arena, MSG_HEADER_MAX);
	request.sqe.payload_offset = bad ? 65536 : 2 * 65536;
	request.sqe.payload_length = PAYLOAD;
	request.sqe.output_offset = 3 * 65536;
	request.sqe.output_length = 4096;
	rows = (struct msg_row *)(arena + request.sqe.payload_offset);
	tokens = (int32_t *)(rows + ROWS);
	for (uint32_t i = 0; i < ROWS; i++)
		rows[i] = (struct msg_row){i + 1, TOKENS};
	for (uint32_t i = 0; i < ROWS * TOKENS; i++)
		tokens[i] = 1;
	if (bad)
		tokens[ROWS * TOKENS - 1] = 300;
	return request;
}

static void flood(uint32_t n_clients)
{
	for (uint32_t c = 0; c < n_clients; c++) {
		for (uint32_t i = 0; i < ENTRIES; i++)
			rig_submit(&clients[c], wide(&clients[c], i, true));
	}
}

/* Requests that have been refused for their last token. */
static uint32_t n_refused(uint32_t client)
{
	uint32_t n = 0;

	rig_poll(&clients[client], results[client]);
	for (uint32_t i = 0; i < ENTRIES; i++)
		n += results[client][i].done && results[client][i].detail == RING_DETAIL_TOKEN;
	return n;
}

/* Turn until nothing is left. Returns the most entries of client 0 that one turn refused, and how many all did. */
static uint32_t most_of_a_turn(uint32_t *ret_n)
{
	uint32_t n_before = 0, most = 0;

	while (engine_turn(dry.engine)) {
		const uint32_t n = n_refused(0);

		most = n - n_before > most ? n - n_before : most;
		n_before = n;
	}
	*ret_n = n_before;
	return most;
}

static void test_one_turn_takes_a_bounded_part_of_what_a_client_submits(void **state)
{
	uint32_t n_before = 0, most = 0;

	open_engine(1);
	flood(1);
	most = most_of_a_turn(&n_before);
	assert_int_equal(n_before, ENTRIES);
	assert_in_range(most * PAYLOAD, PAYLOAD, SUBMISSIONS_SESSION_BYTES + PAYLOAD);
	close_engine(1);
}

static void test_one_turn_takes_a_bounded_part_of_what_all_submit(void **state)
{
	uint32_t n_before = 0, n = 0, most = 0;

	open_engine(CLIENTS);
	flood(CLIENTS);
	while (engine_turn(dry.engine)) {
		n = 0;
		for (uint32_t c = 0; c < CLIENTS; c++)
			n += n_refused(c);
		most = n - n_before > most ? n - n_before : most;
		n_before = n;
	}
	assert_int_equal(n, CLIENTS * ENTRIES);
	assert_in_range(most * PAYLOAD, PAYLOAD, SUBMISSIONS_TURN_BYTES + SUBMISSIONS_SESSION_BYTES + PAYLOAD);
	close_engine(CLIENTS);
}

static void test_client_beside_a_flood_has_its_turn_after_one_part_of_each_other(void **state)
{
	enum { OTHERS = CLIENTS - 1, TURNS = OTHERS * SUBMISSIONS_SESSION_BYTES / SUBMISSIONS_TURN_BYTES + 2 };
	struct rig_client *last = &clients[OTHERS];
	uint32_t n_turns = 0;

	open_engine(CLIENTS);
	flood(OTHERS);
	for (int i = 0; i < 5; i++)
		engine_turn(dry.engine);
	rig_submit(last, rig_endless(last, 0, 0, 4));
	while (!atomic_load(&last->port->n_requests)) {
		engine_turn(dry.engine);
		assert_in_range(++n_turns, 1, TURNS);
	}
	close_engine(CLIENTS);
}

static void test_entries_that_waited_for_the_pool_are_taken_in_parts(void **state)
{
	enum { N_FIRST = (1 << 20) / PAYLOAD, N_HELD = 200 };
	const struct engine_session *session;
	struct rig_request first[N_FIRST];
	uint32_t n_before = 0, most = 0;

	open_engine(1);
	session = clients[0].port->engine_private;
	for (uint32_t i = 1; i <= ROWS; i++) {
		rig_submit(&clients[0], rig_call(&clients[0], 0, RING_OP_OPEN, i, 0));
		dry_turns(&dry);
		rig_poll(&clients[0], results[0]);
		results[0][0] = (struct rig_result){0};
	}
	for (uint32_t i = 0; i < N_FIRST; i++) {
		first[i] = wide(&clients[0], i, false);
		rig_submit(&clients[0], first[i]);
	}
	for (uint32_t i = N_FIRST; i < N_FIRST + N_HELD; i++)
		rig_submit(&clients[0], wide(&clients[0], i, true));
	dry_turns(&dry);
	assert_int_equal(session->n_held, N_HELD);
	for (uint32_t i = 0; i < N_FIRST; i++)
		ring_cancel(&clients[0].region.ring, i, first[i].sqe.generation);
	most = most_of_a_turn(&n_before);
	assert_int_equal(n_before, N_HELD);
	assert_in_range(most * PAYLOAD, PAYLOAD, SUBMISSIONS_SESSION_BYTES + PAYLOAD);
	close_engine(1);
}

/* ---- what is refused is not copied ---- */

/* Only so many bytes of the pool have been written. */
static void expect_refusal(struct rig_request request, struct rig_expected expected, uint32_t n_copied)
{
	const struct payload_pool *pool = &((struct engine_session *)clients[0].port->engine_private)->payloads;
	const struct rig_result *result = &results[0][request.index];

	rig_submit(&clients[0], request);
	dry_turns(&dry);
	rig_poll(&clients[0], results[0]);
	assert_true(result->done);
	assert_int_equal(result->status, expected.status);
	assert_int_equal(result->detail, expected.detail);
	assert_int_equal(result->values[0], expected.a);
	assert_int_equal(result->values[1], expected.b);
	for (uint32_t i = n_copied; i < n_copied + 4096; i++)
		assert_int_equal(pool->memory[i], 0);
}

static void test_step_whose_payload_is_longer_than_its_rows_is_refused_before_it_is_copied(void **state)
{
	struct rig_request request;
	uint32_t *rows;

	open_engine(1);
	request = wide(&clients[0], 0, false);
	rows = (uint32_t *)(clients[0].region.arena + request.sqe.payload_offset);
	rows[2 * ROWS - 1] = TOKENS - 1;
	expect_refusal(request, (struct rig_expected){
		MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, PAYLOAD, PAYLOAD - 4}, ROWS * 8);
	close_engine(1);
}

static void test_row_longer_than_any_sequence_is_refused_before_it_is_copied(void **state)
{
	struct rig_request request;
	uint32_t *rows;

	open_engine(1);
	request = wide(&clients[0], 0, false);
	rows = (uint32_t *)(clients[0].region.arena + request.sqe.payload_offset);
	rows[2 * ROWS - 3] = TOKENS - 1;
	rows[2 * ROWS - 1] = TOKENS + 1;
	expect_refusal(request, (struct rig_expected){
		MIMEO_E_TOO_LONG, RING_DETAIL_LENGTH, TOKENS + 1, TOKENS}, ROWS * 8);
	close_engine(1);
}

static void test_prompt_with_a_payload_of_another_length_is_refused_before_it_is_copied(void **state)
{
	struct rig_request request;
	int32_t tokens[TOKENS];

	open_engine(1);
	memset(tokens, 1, sizeof(tokens));
	request = rig_ask(&clients[0], 0, 0, tokens, TOKENS - 1, 1, 0);
	request.sqe.payload_length += 4;
	expect_refusal(request, (struct rig_expected){
		MIMEO_E_INVALID, RING_DETAIL_PAYLOAD, TOKENS * 4, TOKENS * 4 - 4}, 0);
	close_engine(1);
}

static void test_step_that_is_too_large_for_one_turn_is_refused(void **state)
{
	struct rig_request request;

	open_engine(1);
	request = wide(&clients[0], 0, false);
	request.sqe.payload_length = PAYLOAD_BYTES_MAX + 4;
	expect_refusal(request, (struct rig_expected){MIMEO_E_TOO_LONG, RING_DETAIL_PAYLOAD_MOST,
		PAYLOAD_BYTES_MAX + 4, PAYLOAD_BYTES_MAX}, 0);
	close_engine(1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_turn_takes_a_bounded_part_of_what_a_client_submits),
		cmocka_unit_test(test_one_turn_takes_a_bounded_part_of_what_all_submit),
		cmocka_unit_test(test_client_beside_a_flood_has_its_turn_after_one_part_of_each_other),
		cmocka_unit_test(test_entries_that_waited_for_the_pool_are_taken_in_parts),
		cmocka_unit_test(test_step_whose_payload_is_longer_than_its_rows_is_refused_before_it_is_copied),
		cmocka_unit_test(test_row_longer_than_any_sequence_is_refused_before_it_is_copied),
		cmocka_unit_test(test_prompt_with_a_payload_of_another_length_is_refused_before_it_is_copied),
		cmocka_unit_test(test_step_that_is_too_large_for_one_turn_is_refused),
	};

	return cmocka_run_group_tests_name("engine intake", tests, NULL, NULL);
}
