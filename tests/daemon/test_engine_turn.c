/* SPDX-License-Identifier: MIT */
/*
 * What one client can make the engine's thread do in a turn. On an engine that computes nothing (dry.h), so that
 * each claim is about counts.
 */
#include "tests/daemon/dry.h"

#include "attention/kv_cache.h"

static struct dry dry;

static uint64_t n_looks, n_fork_tokens, n_prefix_tokens;

struct sequence *__real_engine_session_request_sequence(const struct request *request);
struct sequence *__wrap_engine_session_request_sequence(const struct request *request);
struct sequence *__wrap_engine_session_request_sequence(const struct request *request)
{
	n_looks++;
	return __real_engine_session_request_sequence(request);
}

int __real_kv_fork(struct kv_cache *cache, const struct kv_table *parent, uint32_t n_tokens, struct kv_table *child);
int __wrap_kv_fork(struct kv_cache *cache, const struct kv_table *parent, uint32_t n_tokens, struct kv_table *child);
int __wrap_kv_fork(struct kv_cache *cache, const struct kv_table *parent, uint32_t n_tokens, struct kv_table *child)
{
	n_fork_tokens += n_tokens;
	return __real_kv_fork(cache, parent, n_tokens, child);
}

uint32_t __real_kv_prefix_take(
	struct kv_cache *cache, struct kv_table *table, uint64_t salt, const int32_t *ids, uint32_t n_ids);
uint32_t __wrap_kv_prefix_take(
	struct kv_cache *cache, struct kv_table *table, uint64_t salt, const int32_t *ids, uint32_t n_ids);
uint32_t __wrap_kv_prefix_take(
	struct kv_cache *cache, struct kv_table *table, uint64_t salt, const int32_t *ids, uint32_t n_ids)
{
	n_prefix_tokens += n_ids;
	return __real_kv_prefix_take(cache, table, salt, ids, n_ids);
}

enum { COST = 1024, COPIED = 64, MANY = 4096, LONG = 2000, WIDE = 32 }; /* as in admit.c */

static void make_history(struct rig_client *client, uint32_t sequence, uint32_t n_tokens)
{
	struct rig_result results[1] = {0};
	int32_t tokens[LONG];

	rig_nonsense(tokens, n_tokens, sequence);
	rig_submit(client, rig_call(client, 0, RING_OP_OPEN, sequence, 0));
	dry_settle(&dry);
	rig_poll(client, results);
	assert_true(results[0].done && !results[0].status);
	results[0].done = false;
	rig_submit(client, rig_ask(client, 0, sequence, tokens, n_tokens, 1, 0));
	dry_settle(&dry);
	rig_poll(client, results);
	assert_true(results[0].done && !results[0].status);
}

static void test_forks_of_a_long_sequence_take_several_turns(void **state)
{
	static struct rig_result results[MANY];
	struct rig_client client;
	uint32_t n_turns = 0, n_done = 0;

	memset(results, 0, sizeof(results));
	dry_open(&dry, &(struct rig_options){.max_seq_len = LONG + 16});
	dry_attach(&dry, &client, MANY, 0, 1);
	make_history(&client, 1, LONG);
	for (uint32_t i = 0; i < 2000; i++) {
		const bool fork = i % 2 == 0;

		rig_submit(&client, rig_call(&client, i, fork ? RING_OP_FORK : RING_OP_CLOSE, fork ? 1 : 2, 2));
	}
	for (bool worked = true; worked; n_turns++) {
		n_fork_tokens = 0;
		worked = engine_turn(dry.engine);
		assert_true(n_fork_tokens <= COST * COPIED + LONG);
	}
	assert_true(n_turns > 1000 * (LONG / COPIED + 2) / COST);
	rig_poll(&client, results);
	for (uint32_t i = 0; i < 2000; i++)
		n_done += results[i].done && !results[i].status;
	assert_int_equal(n_done, 2000);
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static void test_pile_of_waiting_requests_is_looked_at_in_parts(void **state)
{
	static struct rig_result results[MANY];
	struct rig_client client;

	dry_open(&dry, &(struct rig_options){.max_requests = 4});
	dry_attach(&dry, &client, MANY, 0, 1);
	make_history(&client, 1, 20);
	/* One runs, the others wait for it. */
	for (uint32_t i = 0; i < MANY - 1; i++)
		rig_submit(&client, rig_ask(&client, i, 1, (int32_t[]){'x'}, 1, 100, MIMEO_GENERATE_IGNORE_EOS));
	dry_turns(&dry);
	for (int i = 0; i < 10; i++) {
		uint32_t n_turns = 0;

		rig_cancel(&client, MANY - 1, &(struct rig_request){.index = MANY - 2, .sqe.generation = 0});
		dry.engine->accounting.admit = true;
		/* Two calls for a look; each turn looks at twice as many as the one before. */
		for (bool worked = true; worked; n_turns++) {
			n_looks = 0;
			worked = engine_turn(dry.engine);
			assert_true(n_looks <= ((uint64_t)2 * COST << n_turns) + 10);
		}
		assert_true(n_turns > 1);
		memset(results, 0, sizeof(results));
		rig_poll(&client, results);
	}
	dry_detach(&dry, &client);
	dry_close(&dry);
}

/* The arena has space for a few requests only: the engine takes them before others are written. */
static void submit_and_turn(struct rig_client *client, struct rig_request request)
{
	rig_submit(client, request);
	if (request.index % 8 == 7)
		dry_turns(&dry);
}

static void test_request_behind_a_pile_starts_while_the_pile_waits(void **state)
{
	static struct rig_result results[MANY];
	struct rig_client client;

	memset(results, 0, sizeof(results));
	dry_open(&dry, &(struct rig_options){.max_requests = 4});
	dry_attach(&dry, &client, MANY, 0, 1);
	make_history(&client, 1, 20);
	for (uint32_t i = 0; i < MANY - 1; i++)
		submit_and_turn(&client, rig_ask(&client, i, 1, (int32_t[]){'x'}, 1, 100, MIMEO_GENERATE_IGNORE_EOS));
	submit_and_turn(&client, rig_ask(&client, MANY - 1, 0, (int32_t[]){'y'}, 1, 1, MIMEO_GENERATE_IGNORE_EOS));
	dry_steps(&dry, 3);
	rig_poll(&client, results);
	assert_true(results[MANY - 1].done && !results[MANY - 1].status && !results[0].done);
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static struct rig_request wide_step(struct rig_client *client, uint32_t index)
{
	static struct msg_row rows[WIDE];
	static int32_t tokens[WIDE];
	const struct msg_step msg = {.n_rows = WIDE, .outputs = MIMEO_STEP_TOKENS};

	for (uint32_t i = 0; i < WIDE; i++) {
		rows[i] = (struct msg_row){i + 1, 1};
		tokens[i] = 'x';
	}
	return rig_step(client, index, &msg, rows, tokens);
}

static void test_interactive_request_behind_wide_steps_starts(void **state)
{
	enum { STEPS = COST / WIDE + 2 };
	static struct rig_result results[MANY];
	struct rig_client client;
	struct msg_generate msg = {.n_tokens = 1, .max_tokens = 1, .request_class = MIMEO_CLASS_INTERACTIVE};

	memset(results, 0, sizeof(results));
	dry_open(&dry, &(struct rig_options){.max_requests = WIDE, .kv_pages = 4 * WIDE});
	dry_attach(&dry, &client, MANY, 0, 1);
	for (uint32_t i = 0; i < WIDE; i++)
		submit_and_turn(&client, rig_call(&client, i, RING_OP_OPEN, i + 1, 0));
	dry_settle(&dry);
	rig_poll(&client, results);
	memset(results, 0, sizeof(results));
	/* All steps wait for the first request. */
	submit_and_turn(&client, rig_ask(&client, 0, 1, (int32_t[]){'x'}, 1, 100, MIMEO_GENERATE_IGNORE_EOS));
	for (uint32_t i = 1; i <= STEPS; i++) {
		submit_and_turn(&client, wide_step(&client, i));
		dry_turns(&dry);
	}
	submit_and_turn(&client, rig_generate(&client, STEPS + 1, (int32_t[]){'x'}, 1, &msg));
	dry_steps(&dry, 3);
	rig_poll(&client, results);
	assert_true(results[STEPS + 1].done && !results[STEPS + 1].status && !results[0].done);
	dry_settle(&dry);
	rig_poll(&client, results);
	for (uint32_t i = 0; i <= STEPS; i++)
		assert_true(results[i].done && !results[i].status);
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static void test_requests_that_are_refused_behind_a_pile_take_several_turns(void **state)
{
	struct rig_client client;
	static struct rig_result results[MANY];
	uint64_t most = 0;

	memset(results, 0, sizeof(results));
	dry_open(&dry, &(struct rig_options){.max_requests = 4});
	dry_attach(&dry, &client, MANY, 0, 1);
	make_history(&client, 1, 20);
	/* 800 wait for the first, and those behind name no sequence that is open. */
	for (uint32_t i = 0; i < 3000; i++)
		rig_submit(&client, rig_ask(&client, i, i < 800 ? 1 : 2, (int32_t[]){'x'}, 1, 400,
					    MIMEO_GENERATE_IGNORE_EOS));
	for (bool worked = true; worked;) {
		n_looks = 0;
		worked = engine_turn(dry.engine);
		most = n_looks > most ? n_looks : most;
	}
	/* Three calls for a look, and one for an end. */
	if (most > 4 * COST)
		fail_msg("%lu looks in a turn", (unsigned long)most);
	rig_poll(&client, results);
	for (uint32_t i = 800; i < 3000; i++)
		assert_int_equal(results[i].status, MIMEO_E_UNKNOWN_SEQUENCE);
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static void test_waiting_long_prompts_are_looked_at_in_parts(void **state)
{
	static int32_t tokens[LONG];
	struct rig_client client;
	uint32_t n_turns = 0;

	/* There are slots, and pages for one of them. */
	dry_open(&dry, &(struct rig_options){.max_requests = 4, .max_seq_len = LONG + 400, .kv_pages = 150,
		.prefix_sharing = ENGINE_PREFIX_USER});
	dry_attach(&dry, &client, 128, 0, 1);
	rig_nonsense(tokens, LONG, 1);
	for (uint32_t i = 0; i < 100; i++) {
		tokens[0] = 3 + (int32_t)i;
		rig_submit(&client, rig_ask(&client, i, 0, tokens, LONG, 10, 0));
	}
	dry.engine->accounting.admit = true;
	for (bool worked = true; worked; n_turns++) {
		n_prefix_tokens = 0;
		worked = engine_turn(dry.engine);
		assert_true(n_prefix_tokens <= ((uint64_t)COST * COPIED << n_turns) + LONG);
	}
	assert_true(n_turns > 1);
	dry_detach(&dry, &client);
	dry_close(&dry);
}

static void test_payload_longer_than_any_sequence_is_refused_before_it_is_copied(void **state)
{
	enum { TOO_MANY = 512 * 3 + 1 };
	static int32_t tokens[TOO_MANY];
	const struct engine_session *session;
	struct rig_result results[8] = {0};
	struct rig_client client;

	dry_open(&dry, &(struct rig_options){0});
	dry_attach(&dry, &client, 8, 0, 1);
	session = client.port->engine_private;
	rig_nonsense(tokens, TOO_MANY, 1);
	rig_submit(&client, rig_ask(&client, 0, 0, tokens, TOO_MANY, 10, 0));
	dry_settle(&dry);
	rig_poll(&client, results);
	assert_int_equal(results[0].status, MIMEO_E_TOO_LONG);
	assert_int_equal(results[0].detail, RING_DETAIL_LENGTH);
	assert_int_equal(results[0].values[0], TOO_MANY);
	assert_int_equal(results[0].values[1], 512);
	for (uint32_t i = 0; i < 64; i++)
		assert_int_equal(session->payloads.memory[i], 0);
	dry_detach(&dry, &client);
	dry_close(&dry);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forks_of_a_long_sequence_take_several_turns),
		cmocka_unit_test(test_pile_of_waiting_requests_is_looked_at_in_parts),
		cmocka_unit_test(test_request_behind_a_pile_starts_while_the_pile_waits),
		cmocka_unit_test(test_interactive_request_behind_wide_steps_starts),
		cmocka_unit_test(test_requests_that_are_refused_behind_a_pile_take_several_turns),
		cmocka_unit_test(test_waiting_long_prompts_are_looked_at_in_parts),
		cmocka_unit_test(test_payload_longer_than_any_sequence_is_refused_before_it_is_copied),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
