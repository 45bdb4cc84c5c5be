/* SPDX-License-Identifier: MIT */
/*
 * Pages of sequences that cannot be evicted, and each user's quota of them (daemon/engine/requests/pinned.h). On an
 * engine that computes nothing (dry.h). A page holds 16 tokens. Sequences are fixed by a mask of the request's own.
 */
#include "tests/daemon/dry.h"

#include "attention/kv_cache.h"

enum { USERS = 3, SEQUENCES = 12 };

static struct dry dry;
static struct rig_client clients[USERS];
static struct rig_result results[USERS][RIG_ENTRIES];

static void open_engine(const struct rig_options *options)
{
	struct rig_options o = *options;

	o.attention = "flex";
	memset(results, 0, sizeof(results));
	dry_open(&dry, &o);
	for (uint32_t i = 0; i < USERS; i++)
		dry_attach(&dry, &clients[i], RIG_ENTRIES, i, 1);
}

static void close_engine(void)
{
	for (uint32_t i = 0; i < USERS; i++)
		dry_detach(&dry, &clients[i]);
	assert_int_equal(dry.rig.runner->slots.pinned.n_pages, 0);
	assert_int_equal(dry.rig.runner->slots.pinned.n_promised, 0);
	assert_int_equal(dry.rig.runner->slots.pinned.n_users, 0);
	dry_close(&dry);
}

static const struct rig_result *end_of(uint32_t user, struct rig_request request)
{
	struct rig_result *result = &results[user][request.index];

	*result = (struct rig_result){0};
	rig_submit(&clients[user], request);
	dry_settle(&dry);
	rig_poll(&clients[user], results[user]);
	assert_true(result->done);
	return result;
}

static void call(uint32_t user, unsigned op, uint32_t sequence, uint32_t argument)
{
	assert_int_equal(end_of(user, rig_call(&clients[user], 0, op, sequence, argument))->status, 0);
}

/* A step that appends n_tokens to the sequence; fixed: under a mask of its own. */
static struct rig_request append(uint32_t user, uint32_t sequence, uint32_t n_tokens, bool fixed)
{
	const struct mimeo_mask window = {.kind = MIMEO_MASK_WINDOW, .window = 512};
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	const struct msg_row row = {sequence, n_tokens};
	int32_t tokens[512];

	if (fixed)
		msg.mask = window;
	rig_nonsense(tokens, n_tokens, sequence + 10 * user);
	return rig_step(&clients[user], 0, &msg, &row, tokens);
}

static struct rig_request ask(uint32_t user, uint32_t sequence, uint32_t n_tokens, uint32_t max_tokens, bool fixed)
{
	const struct mimeo_mask window = {.kind = MIMEO_MASK_WINDOW, .window = 512};
	struct msg_generate msg = rig_greedy(n_tokens, max_tokens);
	int32_t tokens[512];

	msg.sequence = sequence;
	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	if (fixed)
		msg.mask = window;
	rig_nonsense(tokens, n_tokens, sequence + 10 * user);
	return rig_generate(&clients[user], 1, tokens, n_tokens, &msg);
}

/* A new sequence with so many pages pinned. */
static void pin(uint32_t user, uint32_t sequence, uint32_t n_pages)
{
	call(user, RING_OP_OPEN, sequence, 0);
	assert_int_equal(end_of(user, append(user, sequence, 16 * n_pages, true))->status, 0);
}

static void expect_refusal(const struct rig_result *result, int32_t asked, int32_t left)
{
	assert_int_equal(result->status, MIMEO_E_QUOTA);
	assert_int_equal(result->detail, RING_DETAIL_BUDGET);
	assert_int_equal(result->values[0], RING_BUDGET_PAGES);
	assert_int_equal(result->values[1], asked);
	assert_int_equal(result->values[2], left);
}

/* What the user may have more, by a request for too much. */
static void expect_left(uint32_t user, int32_t left)
{
	call(user, RING_OP_OPEN, SEQUENCES, 0);
	expect_refusal(end_of(user, append(user, SEQUENCES, 16 * ((uint32_t)left + 1), true)), left + 1, left);
	call(user, RING_OP_CLOSE, SEQUENCES, 0);
}

/* ---- the quota ---- */

static void test_user_with_all_pages_that_he_may_pin_keeps_no_other_out(void **state)
{
	uint32_t n_pinned = 0, sequence = 1;

	open_engine(&(struct rig_options){.kv_pages = 20});
	for (;; sequence++, n_pinned++) {
		call(0, RING_OP_OPEN, sequence, 0);
		if (end_of(0, append(0, sequence, 16, true))->status)
			break;
	}
	assert_int_equal(n_pinned, 10);
	expect_refusal(&results[0][0], 1, 0);
	assert_int_equal(end_of(1, ask(1, 0, 100, 50, false))->n_generated, 50);
	close_engine();
}

static void test_each_further_user_may_pin_a_part_of_what_is_left(void **state)
{
	open_engine(&(struct rig_options){.kv_pages = 24});
	pin(0, 1, 12);
	expect_left(0, 0);
	expect_left(1, 4);
	pin(1, 1, 4);
	expect_left(1, 0);
	expect_left(2, 2);
	pin(2, 1, 2);
	expect_left(2, 0);
	/* The first keeps what it has; what it returns is the others' as well. */
	call(0, RING_OP_TRUNCATE, 1, 16);
	expect_left(0, 4);
	expect_left(1, 2);
	close_engine();
}

static void test_closed_and_truncated_sequences_give_their_part_back(void **state)
{
	open_engine(&(struct rig_options){.kv_pages = 20});
	pin(0, 1, 6);
	pin(0, 2, 4);
	expect_left(0, 0);
	call(0, RING_OP_CLOSE, 2, 0);
	expect_left(0, 4);
	call(0, RING_OP_TRUNCATE, 1, 32);
	expect_left(0, 8);
	/* Without tokens it can be evicted. */
	call(0, RING_OP_TRUNCATE, 1, 0);
	expect_left(0, 10);
	assert_int_equal(end_of(0, append(0, 1, 16 * 15, false))->status, 0);
	expect_left(0, 10);
	close_engine();
}

static void test_pages_that_can_be_evicted_are_not_counted(void **state)
{
	open_engine(&(struct rig_options){.kv_pages = 20});
	call(0, RING_OP_OPEN, 1, 0);
	assert_int_equal(end_of(0, append(0, 1, 16 * 15, false))->status, 0);
	expect_left(0, 10);
	/* All that the sequence has is pinned with its last token. */
	expect_refusal(end_of(0, append(0, 1, 1, true)), 16, 10);
	call(0, RING_OP_TRUNCATE, 1, 16 * 9);
	assert_int_equal(end_of(0, append(0, 1, 1, true))->status, 0);
	expect_left(0, 0);
	close_engine();
}

static void test_request_without_a_mask_on_a_fixed_sequence_is_counted(void **state)
{
	open_engine(&(struct rig_options){.kv_pages = 20});
	pin(0, 1, 6);
	expect_refusal(end_of(0, append(0, 1, 16 * 4 + 1, false)), 5, 4);
	expect_refusal(end_of(0, ask(0, 1, 16, 49, false)), 5, 4);
	assert_int_equal(end_of(0, append(0, 1, 16 * 4, false))->status, 0);
	expect_left(0, 0);
	close_engine();
}

/* ---- generate requests ---- */

static void test_generate_request_is_charged_for_all_that_it_can_take(void **state)
{
	struct rig_request request;

	open_engine(&(struct rig_options){.kv_pages = 20});
	call(0, RING_OP_OPEN, 1, 0);
	expect_refusal(end_of(0, ask(0, 1, 16, 16 * 10, true)), 11, 10);
	call(0, RING_OP_OPEN, 2, 0);
	request = ask(0, 1, 16, 16 * 9, true);
	rig_submit(&clients[0], request);
	dry_steps(&dry, 20);
	assert_in_range(dry.rig.runner->slots.pinned.n_pages, 1, 4);
	/* What it has not taken yet is not another request's ... */
	rig_submit(&clients[0], append(0, 2, 1, true));
	dry_steps(&dry, 1);
	memset(results, 0, sizeof(results));
	rig_poll(&clients[0], results[0]);
	expect_refusal(&results[0][0], 1, 0);
	/* ... until it ends. */
	ring_cancel(&clients[0].region.ring, 1, request.sqe.generation);
	dry_settle(&dry);
	expect_left(0, 10 - (int32_t)dry.rig.runner->slots.pinned.n_pages);
	close_engine();
}

static void test_request_that_waits_is_charged_until_it_is_cancelled(void **state)
{
	struct rig_request request;

	open_engine(&(struct rig_options){.kv_pages = 20, .max_requests = 1});
	call(0, RING_OP_OPEN, 1, 0);
	rig_submit(&clients[1], ask(1, 0, 16, 100, false));
	dry_steps(&dry, 3);
	request = ask(0, 1, 16, 16 * 9, true);
	rig_submit(&clients[0], request);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->slots.pinned.n_promised, 10);
	ring_cancel(&clients[0].region.ring, 1, request.sqe.generation);
	dry_turns(&dry);
	assert_int_equal(dry.rig.runner->slots.pinned.n_promised, 0);
	dry_settle(&dry);
	rig_poll(&clients[0], results[0]);
	close_engine();
}

static void test_request_without_a_limit_ends_where_its_quota_does(void **state)
{
	open_engine(&(struct rig_options){.kv_pages = 20});
	pin(0, 1, 6);
	call(0, RING_OP_OPEN, 2, 0);
	assert_int_equal(end_of(0, ask(0, 2, 20, 0, true))->status, 0);
	assert_int_equal(results[0][1].finish, MIMEO_FINISH_LENGTH);
	assert_int_equal(results[0][1].n_generated, 4 * 16 - 20);
	call(0, RING_OP_OPEN, 3, 0);
	expect_refusal(end_of(0, ask(0, 3, 20, 0, true)), 2, 0);
	close_engine();
}

/* ---- shared pages ---- */

static void test_fork_costs_nothing_until_it_writes(void **state)
{
	open_engine(&(struct rig_options){.kv_pages = 20});
	pin(0, 1, 6);
	assert_int_equal(end_of(0, append(0, 1, 1, false))->status, 0);
	for (uint32_t i = 2; i < SEQUENCES; i++)
		call(0, RING_OP_FORK, 1, i);
	expect_left(0, 3);
	/* The last page is copied. */
	assert_int_equal(end_of(0, append(0, 2, 1, false))->status, 0);
	expect_left(0, 2);
	/* Pages go back with the last sequence that has them. */
	for (uint32_t i = 1; i < SEQUENCES - 1; i++) {
		call(0, RING_OP_CLOSE, i, 0);
		expect_left(0, i == 1 ? 2 : 3);
	}
	call(0, RING_OP_CLOSE, SEQUENCES - 1, 0);
	expect_left(0, 10);
	close_engine();
}

static void test_pages_that_rows_of_a_step_share_are_asked_for_once(void **state)
{
	const struct mimeo_mask window = {.kind = MIMEO_MASK_WINDOW, .window = 512};
	const struct msg_step msg = {.n_rows = 3, .outputs = MIMEO_STEP_TOKENS, .mask = window};
	const struct msg_row rows[] = {{1, 16}, {2, 16}, {3, 32}};
	int32_t tokens[64];

	open_engine(&(struct rig_options){.kv_pages = 20});
	call(0, RING_OP_OPEN, 1, 0);
	assert_int_equal(end_of(0, append(0, 1, 16 * 5, false))->status, 0);
	call(0, RING_OP_FORK, 1, 2);
	call(0, RING_OP_FORK, 1, 3);
	rig_nonsense(tokens, 64, 1);
	assert_int_equal(end_of(0, rig_step(&clients[0], 0, &msg, rows, tokens))->status, 0);
	assert_int_equal(dry.rig.runner->slots.pinned.n_pages, 9);
	expect_left(0, 1);
	close_engine();
}

/* A history of so many pages, the same for all users, of which the user pins a prefix of two and one more. */
static void pin_common(uint32_t user)
{
	const struct mimeo_mask window = {.kind = MIMEO_MASK_WINDOW, .window = 512};
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	int32_t tokens[33];

	rig_nonsense(tokens, 33, 1);
	call(user, RING_OP_OPEN, 1, 0);
	assert_int_equal(end_of(user, rig_step(&clients[user], 0, &msg, &(struct msg_row){1, 33}, tokens))->status, 0);
	msg.mask = window;
	assert_int_equal(end_of(user, rig_step(&clients[user], 0, &msg, &(struct msg_row){1, 1}, tokens))->status, 0);
}

static void test_page_of_several_users_is_charged_to_the_first_until_he_has_left(void **state)
{
	const struct pinned *pinned;

	open_engine(&(struct rig_options){.kv_pages = 20, .prefix_sharing = ENGINE_PREFIX_ALL});
	pinned = &dry.rig.runner->slots.pinned;
	pin_common(0);
	pin_common(1);
	assert_int_equal(results[1][0].status, 0);
	assert_int_equal(pinned->n_pages, 4);
	assert_int_equal(pinned->n_users, 2);
	expect_left(0, 4);
	call(0, RING_OP_CLOSE, 1, 0);
	assert_int_equal(pinned->n_pages, 3);
	assert_int_equal(pinned->n_users, 2);
	dry_detach(&dry, &clients[0]);
	assert_int_equal(pinned->n_pages, 3);
	assert_int_equal(pinned->n_users, 1);
	dry_attach(&dry, &clients[0], RIG_ENTRIES, 0, 1);
	call(1, RING_OP_CLOSE, 1, 0);
	assert_int_equal(pinned->n_pages, 0);
	close_engine();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_user_with_all_pages_that_he_may_pin_keeps_no_other_out),
		cmocka_unit_test(test_each_further_user_may_pin_a_part_of_what_is_left),
		cmocka_unit_test(test_closed_and_truncated_sequences_give_their_part_back),
		cmocka_unit_test(test_pages_that_can_be_evicted_are_not_counted),
		cmocka_unit_test(test_request_without_a_mask_on_a_fixed_sequence_is_counted),
		cmocka_unit_test(test_generate_request_is_charged_for_all_that_it_can_take),
		cmocka_unit_test(test_request_that_waits_is_charged_until_it_is_cancelled),
		cmocka_unit_test(test_request_without_a_limit_ends_where_its_quota_does),
		cmocka_unit_test(test_fork_costs_nothing_until_it_writes),
		cmocka_unit_test(test_pages_that_rows_of_a_step_share_are_asked_for_once),
		cmocka_unit_test(test_page_of_several_users_is_charged_to_the_first_until_he_has_left),
	};

	return cmocka_run_group_tests_name("engine pinned", tests, NULL, NULL);
}
