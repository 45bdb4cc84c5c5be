/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>

#include "tests/ipc/ring_pair.h"

#define ENTRIES 4u
#define CQ_ENTRIES RING_CQ_ENTRIES(ENTRIES)

static int setup(void **state)
{
	static struct pair pair;

	pair_init(&pair, ENTRIES);
	*state = &pair;
	return 0;
}

static int teardown(void **state)
{
	struct pair *pair = *state;

	region_deinit(&pair->region);
	return 0;
}

static void submit(struct ring *client, uint64_t user_data)
{
	struct ring_sqe sqe = {.user_data = user_data, .op = RING_OP_NOP};

	assert_int_equal(ring_sq_push(client, &sqe), 1);
}

static void complete(struct ring *daemon, uint64_t user_data)
{
	struct ring_cqe cqe = {.user_data = user_data, .kind = RING_CQE_FINAL};

	assert_int_equal(ring_cq_fits(daemon, 1), 1);
	ring_cq_push(daemon, &cqe);
}

static void test_ring_empty_pops_and_peeks_nothing(void **state)
{
	struct pair *pair = *state;
	struct ring_sqe sqe;
	struct ring_cqe cqe;

	assert_false(ring_sq_pop(&pair->daemon, &sqe));
	assert_false(ring_cq_peek(&pair->client, &cqe));
}

static void test_ring_push_is_unseen_until_publish(void **state)
{
	struct pair *pair = *state;
	struct ring_sqe sqe;
	struct ring_cqe cqe;
	uint32_t count = 99;

	submit(&pair->client, 7);
	complete(&pair->daemon, 8);
	assert_false(ring_sq_pop(&pair->daemon, &sqe));
	assert_false(ring_cq_peek(&pair->client, &cqe));

	assert_false(ring_sq_publish(&pair->client, &count));
	assert_int_equal(count, 1);
	assert_false(ring_cq_publish(&pair->daemon));
	assert_true(ring_sq_pop(&pair->daemon, &sqe));
	assert_int_equal(sqe.user_data, 7);
	assert_true(ring_cq_peek(&pair->client, &cqe));
	assert_int_equal(cqe.user_data, 8);
}

static void test_ring_publish_of_nothing_counts_zero_and_needs_no_wake_up(void **state)
{
	struct pair *pair = *state;
	uint32_t count = 99;

	assert_false(ring_daemon_sleep(&pair->daemon));
	assert_false(ring_client_sleep(&pair->client));
	assert_false(ring_sq_publish(&pair->client, &count));
	assert_int_equal(count, 0);
	assert_false(ring_cq_publish(&pair->daemon));
}

static void test_ring_full_refuses_push(void **state)
{
	struct pair *pair = *state;
	uint32_t count;

	for (uint64_t i = 0; i < ENTRIES; i++)
		submit(&pair->client, i);
	assert_int_equal(ring_sq_push(&pair->client, &nop), 0);
	ring_sq_publish(&pair->client, &count);
	assert_int_equal(count, ENTRIES);
	assert_int_equal(ring_sq_push(&pair->client, &nop), 0);
}

static void test_ring_popped_entries_become_free_on_release_only(void **state)
{
	struct pair *pair = *state;
	struct ring_sqe sqe;
	uint32_t count;

	for (uint64_t i = 0; i < ENTRIES; i++)
		submit(&pair->client, i);
	ring_sq_publish(&pair->client, &count);
	assert_true(ring_sq_pop(&pair->daemon, &sqe));
	assert_int_equal(ring_sq_push(&pair->client, &nop), 0);
	ring_sq_release(&pair->daemon);
	submit(&pair->client, ENTRIES);
	assert_int_equal(ring_sq_push(&pair->client, &nop), 0);
}

static void test_ring_cq_space_counts_down_and_comes_back(void **state)
{
	struct pair *pair = *state;
	struct ring_cqe cqe;

	for (int i = 0; i < (int)CQ_ENTRIES; i++) {
		assert_int_equal(ring_cq_space(&pair->daemon), (int)CQ_ENTRIES - i);
		complete(&pair->daemon, (uint64_t)i);
	}
	assert_int_equal(ring_cq_space(&pair->daemon), 0);
	assert_int_equal(ring_cq_fits(&pair->daemon, 1), 0);
	ring_cq_publish(&pair->daemon);
	assert_true(ring_cq_peek(&pair->client, &cqe));
	assert_int_equal(ring_cq_space(&pair->daemon), 0);
	ring_cq_advance(&pair->client);
	assert_int_equal(ring_cq_space(&pair->daemon), 1);
	assert_int_equal(ring_cq_fits(&pair->daemon, 1), 1);
	assert_int_equal(ring_cq_fits(&pair->daemon, 2), 0);
}

static void test_ring_peek_takes_nothing(void **state)
{
	struct pair *pair = *state;
	struct ring_cqe cqe;

	complete(&pair->daemon, 1);
	complete(&pair->daemon, 2);
	ring_cq_publish(&pair->daemon);
	assert_true(ring_cq_peek(&pair->client, &cqe));
	assert_true(ring_cq_peek(&pair->client, &cqe));
	assert_int_equal(cqe.user_data, 1);
	ring_cq_advance(&pair->client);
	assert_true(ring_cq_peek(&pair->client, &cqe));
	assert_int_equal(cqe.user_data, 2);
}

static void test_ring_order_survives_the_wrap_at_2_32(void **state)
{
	struct pair *pair = *state;
	struct ring_sqe sqe;
	struct ring_cqe cqe;
	uint32_t count;

	pair_start_at(pair, UINT32_MAX - 5);
	for (uint64_t i = 0; i < 24; i += 3) {
		for (uint64_t k = i; k < i + 3; k++)
			submit(&pair->client, k);
		ring_sq_publish(&pair->client, &count);
		assert_int_equal(count, 3);
		for (uint64_t k = i; k < i + 3; k++) {
			assert_true(ring_sq_pop(&pair->daemon, &sqe));
			assert_int_equal(sqe.user_data, k);
			complete(&pair->daemon, k);
		}
		assert_false(ring_sq_pop(&pair->daemon, &sqe));
		ring_sq_release(&pair->daemon);
		ring_cq_publish(&pair->daemon);
		for (uint64_t k = i; k < i + 3; k++) {
			assert_true(ring_cq_peek(&pair->client, &cqe));
			assert_int_equal(cqe.user_data, k);
			ring_cq_advance(&pair->client);
		}
	}
	assert_int_equal(atomic_load(&pair->region.ring.control->sq_head), 18);
}

static void test_ring_full_is_seen_across_the_wrap(void **state)
{
	struct pair *pair = *state;
	uint32_t count;

	pair_start_at(pair, UINT32_MAX - 1);
	for (uint64_t i = 0; i < ENTRIES; i++)
		submit(&pair->client, i);
	ring_sq_publish(&pair->client, &count);
	assert_int_equal(ring_sq_push(&pair->client, &nop), 0);
}

static void test_ring_tail_beyond_the_ring_is_refused(void **state)
{
	struct pair *pair = *state;
	_Atomic uint32_t *tail = &pair->region.ring.control->sq_tail;
	struct ring_sqe sqe;
	uint32_t count;

	for (uint64_t i = 0; i < ENTRIES; i++)
		submit(&pair->client, i);
	ring_sq_publish(&pair->client, &count);
	assert_int_equal(ring_sq_check(&pair->daemon), 0);
	atomic_store(tail, ENTRIES + 1);
	assert_int_equal(ring_sq_check(&pair->daemon), -EPROTO);
	/* One taken and not released: its place is not free yet. */
	atomic_store(tail, ENTRIES);
	assert_true(ring_sq_pop(&pair->daemon, &sqe));
	assert_int_equal(ring_sq_check(&pair->daemon), 0);
	atomic_store(tail, ENTRIES + 1);
	assert_int_equal(ring_sq_check(&pair->daemon), -EPROTO);
}

static void test_ring_tail_ahead_of_what_is_written_is_refused(void **state)
{
	struct pair *pair = *state;
	struct ring_sqe sqe;

	atomic_store(&pair->region.ring.control->sq_tail, 1);
	assert_false(ring_sq_pop(&pair->daemon, &sqe));
	assert_int_equal(ring_sq_check(&pair->daemon), -EPROTO);
	assert_false(ring_daemon_sleep(&pair->daemon));
}

static void test_ring_tail_may_lag_by_a_ring_and_no_more(void **state)
{
	struct pair *pair = *state;
	_Atomic uint32_t *tail = &pair->region.ring.control->sq_tail;
	struct ring_sqe sqe;
	uint32_t count;

	submit(&pair->client, 1);
	ring_sq_publish(&pair->client, &count);
	assert_true(ring_sq_pop(&pair->daemon, &sqe));
	atomic_store(tail, 0);
	assert_int_equal(ring_sq_check(&pair->daemon), 0);
	/* Nothing to take: it may sleep, and the exchange to come wakes it. */
	assert_false(ring_daemon_sleep(&pair->daemon));
	atomic_store(tail, 1 - ENTRIES);
	assert_int_equal(ring_sq_check(&pair->daemon), 0);
	atomic_store(tail, 0 - ENTRIES);
	assert_int_equal(ring_sq_check(&pair->daemon), -EPROTO);
}

/* As a client would that writes over what the daemon takes. */
static void test_ring_no_more_than_a_ringful_is_taken_before_a_release(void **state)
{
	struct pair *pair = *state;
	struct ring *client = &pair->client;
	struct ring_sqe sqe;
	uint32_t count;

	for (uint32_t i = 0; i < ENTRIES; i++) {
		submit(client, i);
		ring_sq_publish(client, &count);
		assert_true(ring_sq_pop(&pair->daemon, &sqe));
	}
	client->sq_seen = client->sq_index;
	submit(client, 99);
	ring_sq_publish(client, &count);
	assert_false(ring_sq_pop(&pair->daemon, &sqe));
	ring_sq_release(&pair->daemon);
	assert_true(ring_sq_pop(&pair->daemon, &sqe));
	assert_int_equal(sqe.user_data, 99);
}

/* The entry of the lap before lies in the same place. */
static void test_ring_stamp_of_the_lap_before_is_none(void **state)
{
	struct pair *pair = *state;
	struct ring_sqe sqe;
	struct ring_cqe cqe;
	uint32_t count;

	for (uint32_t i = 0; i < CQ_ENTRIES; i++) {
		submit(&pair->client, i);
		ring_sq_publish(&pair->client, &count);
		assert_true(ring_sq_pop(&pair->daemon, &sqe));
		ring_sq_release(&pair->daemon);
		complete(&pair->daemon, i);
		ring_cq_publish(&pair->daemon);
		assert_true(ring_cq_peek(&pair->client, &cqe));
		ring_cq_advance(&pair->client);
		assert_false(ring_sq_pop(&pair->daemon, &sqe));
		assert_false(ring_cq_peek(&pair->client, &cqe));
	}
	/* Nor is one of an entry that is written and not published. */
	submit(&pair->client, 1);
	complete(&pair->daemon, 1);
	assert_false(ring_sq_pop(&pair->daemon, &sqe));
	assert_false(ring_cq_peek(&pair->client, &cqe));
}

static void test_ring_completion_head_beyond_tail_is_refused(void **state)
{
	struct pair *pair = *state;

	complete(&pair->daemon, 1);
	ring_cq_publish(&pair->daemon);
	complete(&pair->daemon, 2);
	atomic_store(&pair->region.ring.control->cq_head, 2);
	assert_int_equal(ring_cq_space(&pair->daemon), -EPROTO);
	assert_int_equal(ring_cq_fits(&pair->daemon, CQ_ENTRIES), -EPROTO);
}

static void test_ring_completion_head_that_goes_back_is_refused(void **state)
{
	struct pair *pair = *state;

	complete(&pair->daemon, 1);
	complete(&pair->daemon, 2);
	ring_cq_publish(&pair->daemon);
	atomic_store(&pair->region.ring.control->cq_head, 2);
	assert_int_equal(ring_cq_space(&pair->daemon), CQ_ENTRIES);
	atomic_store(&pair->region.ring.control->cq_head, 1);
	assert_int_equal(ring_cq_space(&pair->daemon), -EPROTO);
	atomic_store(&pair->region.ring.control->cq_head, 2 - CQ_ENTRIES - 1);
	assert_int_equal(ring_cq_space(&pair->daemon), -EPROTO);
}

static void test_ring_client_refuses_a_daemon_that_jumps(void **state)
{
	struct pair *pair = *state;
	struct ring_cqe cqe;
	uint32_t count;

	assert_int_equal(ring_cq_check(&pair->client), 0);
	atomic_store(&pair->region.ring.control->cq_tail, CQ_ENTRIES + 1);
	assert_int_equal(ring_cq_check(&pair->client), -EPROTO);
	atomic_store(&pair->region.ring.control->cq_tail, 1);
	assert_false(ring_cq_peek(&pair->client, &cqe));
	assert_int_equal(ring_cq_check(&pair->client), -EPROTO);

	for (uint64_t i = 0; i < ENTRIES; i++)
		submit(&pair->client, i);
	ring_sq_publish(&pair->client, &count);
	atomic_store(&pair->region.ring.control->sq_head, ENTRIES + 1);
	assert_int_equal(ring_sq_push(&pair->client, &nop), -EPROTO);
}

/* Neither head nor tail moves: full rings do not matter. */
static void test_ring_cancel_is_seen_beside_full_rings(void **state)
{
	struct pair *pair = *state;
	uint32_t count;

	for (uint32_t i = 0; i < ENTRIES; i++)
		submit(&pair->client, i);
	ring_sq_publish(&pair->client, &count);
	for (uint32_t i = 0; i < CQ_ENTRIES; i++)
		complete(&pair->daemon, i);
	assert_false(ring_cancels_wait(&pair->daemon));
	assert_false(ring_cancel(&pair->client, ENTRIES - 1, 7));
	assert_true(ring_cancels_wait(&pair->daemon));
	ring_cancels_begin(&pair->daemon);
	assert_false(ring_cancels_wait(&pair->daemon));
	assert_int_equal(ring_cancel_word(&pair->daemon, ENTRIES - 1), 7);
	assert_int_equal(ring_cancel_word(&pair->daemon, 0), 0);
	ring_cancel_clear(&pair->client, ENTRIES - 1);
	assert_int_equal(ring_cancel_word(&pair->daemon, ENTRIES - 1), 0);
	assert_int_equal(ring_sq_check(&pair->daemon), 0);
}

static void test_ring_cancel_reports_a_sleeping_daemon(void **state)
{
	struct pair *pair = *state;

	assert_false(ring_daemon_sleep(&pair->daemon));
	assert_false(ring_cancels_wait(&pair->daemon));
	assert_true(ring_cancel(&pair->client, 0, 1));
	ring_daemon_awake(&pair->daemon);
	assert_false(ring_cancel(&pair->client, 0, 2));
}

static void test_ring_publish_reports_a_sleeping_peer(void **state)
{
	struct pair *pair = *state;
	uint32_t count;

	assert_false(ring_daemon_sleep(&pair->daemon));
	submit(&pair->client, 1);
	assert_true(ring_sq_publish(&pair->client, &count));
	ring_daemon_awake(&pair->daemon);
	submit(&pair->client, 2);
	assert_false(ring_sq_publish(&pair->client, &count));

	assert_false(ring_client_sleep(&pair->client));
	complete(&pair->daemon, 1);
	assert_true(ring_cq_publish(&pair->daemon));
	ring_client_awake(&pair->client);
	complete(&pair->daemon, 2);
	assert_false(ring_cq_publish(&pair->daemon));
}

static void test_ring_sleep_reports_waiting_entries(void **state)
{
	struct pair *pair = *state;
	uint32_t count;

	submit(&pair->client, 1);
	ring_sq_publish(&pair->client, &count);
	assert_true(ring_daemon_sleep(&pair->daemon));
	complete(&pair->daemon, 1);
	ring_cq_publish(&pair->daemon);
	assert_true(ring_client_sleep(&pair->client));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_ring_empty_pops_and_peeks_nothing),
		TEST(test_ring_push_is_unseen_until_publish),
		TEST(test_ring_publish_of_nothing_counts_zero_and_needs_no_wake_up),
		TEST(test_ring_full_refuses_push),
		TEST(test_ring_popped_entries_become_free_on_release_only),
		TEST(test_ring_cq_space_counts_down_and_comes_back),
		TEST(test_ring_peek_takes_nothing),
		TEST(test_ring_order_survives_the_wrap_at_2_32),
		TEST(test_ring_full_is_seen_across_the_wrap),
		TEST(test_ring_tail_beyond_the_ring_is_refused),
		TEST(test_ring_tail_ahead_of_what_is_written_is_refused),
		TEST(test_ring_tail_may_lag_by_a_ring_and_no_more),
		TEST(test_ring_no_more_than_a_ringful_is_taken_before_a_release),
		TEST(test_ring_stamp_of_the_lap_before_is_none),
		TEST(test_ring_completion_head_beyond_tail_is_refused),
		TEST(test_ring_completion_head_that_goes_back_is_refused),
		TEST(test_ring_client_refuses_a_daemon_that_jumps),
		TEST(test_ring_cancel_is_seen_beside_full_rings),
		TEST(test_ring_cancel_reports_a_sleeping_daemon),
		TEST(test_ring_publish_reports_a_sleeping_peer),
		TEST(test_ring_sleep_reports_waiting_entries),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
