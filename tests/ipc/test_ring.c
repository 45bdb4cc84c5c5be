/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc/doorbell.h"
#include "ipc/region.h"
#include "ipc/ring.h"
#include "tests/ipc/test.h"

#define ENTRIES 4u
#define CQ_ENTRIES RING_CQ_ENTRIES(ENTRIES)

/* Both sides over one mapping, so that a sanitizer sees that they share it. */
struct pair {
	struct region region;
	struct ring daemon, client;
};

static void pair_init(struct pair *pair, uint32_t entries)
{
	assert_int_equal(region_create(&pair->region, entries, REGION_ARENA_MIN), 0);
	pair->daemon = pair->region.ring;
	pair->client = pair->region.ring;
}

/* As if so many entries had gone round already. */
static void pair_start_at(struct pair *pair, uint32_t index)
{
	struct ring_control *control = pair->region.ring.control;
	struct ring *sides[] = {&pair->daemon, &pair->client};

	atomic_store(&control->sq_tail, index);
	atomic_store(&control->sq_head, index);
	atomic_store(&control->cq_tail, index);
	atomic_store(&control->cq_head, index);
	for (size_t i = 0; i < ARRAY_SIZE(sides); i++) {
		sides[i]->sq_index = sides[i]->sq_published = sides[i]->sq_seen = index;
		sides[i]->cq_index = sides[i]->cq_published = sides[i]->cq_seen = index;
	}
}

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

static const struct ring_sqe nop = {.op = RING_OP_NOP};

static void complete(struct ring *daemon, uint64_t user_data)
{
	struct ring_cqe cqe = {.user_data = user_data, .kind = RING_CQE_FINAL};

	assert_int_equal(ring_cq_room(daemon, 1), 1);
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

static void test_ring_publish_of_nothing_counts_zero_and_wakes_nobody(void **state)
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

static void test_ring_popped_entries_make_room_on_release_only(void **state)
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
	assert_int_equal(ring_cq_room(&pair->daemon, 1), 0);
	ring_cq_publish(&pair->daemon);
	assert_true(ring_cq_peek(&pair->client, &cqe));
	assert_int_equal(ring_cq_space(&pair->daemon), 0);
	ring_cq_advance(&pair->client);
	assert_int_equal(ring_cq_space(&pair->daemon), 1);
	assert_int_equal(ring_cq_room(&pair->daemon, 1), 1);
	assert_int_equal(ring_cq_room(&pair->daemon, 2), 0);
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
	assert_int_equal(ring_cq_room(&pair->daemon, CQ_ENTRIES), -EPROTO);
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

static void test_ring_publish_tells_of_a_sleeping_peer(void **state)
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

static void test_ring_sleep_tells_of_what_waits(void **state)
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

/* ---- two threads ---- */

#define MESSAGES 1000000u
#define STRESS_ENTRIES 16u
#define LOST_MS (2 * 60 * 1000)

struct stress {
	struct pair pair;
	int daemon_bell, client_bell;
	const char *daemon_error;
};

/* Up to some ten microseconds between having seen nothing and announcing sleep, so that the other
 * side publishes at every moment of it. */
static void dither(uint64_t *random)
{
	*random = *random * 6364136223846793005u + 1442695040888963407u;
	uint32_t bits = (uint32_t)(*random >> 33);
	uint32_t n = (bits >> 4) & ((1u << (bits % 16)) - 1);

	for (volatile uint32_t i = 0; i < n; i++)
		;
}

/* False if nobody ever rang. */
static bool bell_wait(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	if (poll(&poll_fd, 1, LOST_MS) != 1)
		return false;
	doorbell_clear(fd);
	return true;
}

/* Takes each submission and completes it; sleeps whenever there is none. */
static void *stress_daemon(void *data)
{
	struct stress *stress = data;
	struct ring *ring = &stress->pair.daemon;
	uint64_t random = 1;

	for (uint64_t next = 0; next < MESSAGES;) {
		struct ring_sqe sqe;

		if (ring_sq_pop(ring, &sqe)) {
			if (sqe.user_data != next) {
				stress->daemon_error = "a submission is out of order";
				return NULL;
			}
			struct ring_cqe cqe = {.user_data = next++, .kind = RING_CQE_FINAL};

			ring_sq_release(ring);
			if (ring_cq_room(ring, 1) != 1) {
				stress->daemon_error = "a credit is missing";
				return NULL;
			}
			ring_cq_push(ring, &cqe);
			if (ring_cq_publish(ring))
				doorbell_ring(stress->client_bell);
			continue;
		}
		if (ring_sq_check(ring) < 0) {
			stress->daemon_error = "a tail that cannot be";
			return NULL;
		}
		dither(&random);
		if (!ring_daemon_sleep(ring) && !bell_wait(stress->daemon_bell)) {
			stress->daemon_error = "the daemon's wake-up was lost";
			return NULL;
		}
		ring_daemon_awake(ring);
	}
	return NULL;
}

/* One in flight for the first eighth: then no later entry makes good for a lost wake-up. */
static void stress_submit(struct stress *stress, uint64_t *next, uint64_t completed)
{
	uint64_t credits = completed < MESSAGES / 8 ? 1 : STRESS_ENTRIES;
	struct ring *ring = &stress->pair.client;
	uint32_t count;

	while (*next < MESSAGES && *next - completed < credits) {
		struct ring_sqe sqe = {.user_data = *next, .op = RING_OP_NOP};

		if (ring_sq_push(ring, &sqe) != 1)
			break;
		++*next;
	}
	if (ring_sq_publish(ring, &count))
		doorbell_ring(stress->daemon_bell);
}

static void test_ring_two_threads_lose_no_entry_and_no_wakeup(void **state)
{
	struct stress stress = {0};
	struct ring *ring = &stress.pair.client;
	uint64_t next = 0, completed = 0;
	const char *error = NULL;
	uint64_t random = 2;
	pthread_t thread;

	(void)state;
	pair_init(&stress.pair, STRESS_ENTRIES);
	pair_start_at(&stress.pair, UINT32_MAX - MESSAGES / 2);
	stress.daemon_bell = doorbell_new();
	stress.client_bell = doorbell_new();
	assert_true(stress.daemon_bell >= 0 && stress.client_bell >= 0);
	assert_int_equal(pthread_create(&thread, NULL, stress_daemon, &stress), 0);

	while (completed < MESSAGES && !error) {
		struct ring_cqe cqe;

		stress_submit(&stress, &next, completed);
		if (ring_cq_peek(ring, &cqe)) {
			if (cqe.user_data != completed)
				error = "a completion is out of order";
			ring_cq_advance(ring);
			completed++;
		} else if (ring_cq_check(ring) < 0) {
			error = "a tail that cannot be";
		} else {
			dither(&random);
			if (!ring_client_sleep(ring) && !bell_wait(stress.client_bell))
				error = "the client's wake-up was lost";
			ring_client_awake(ring);
		}
	}
	if (error)
		fail_msg("%s after %llu", error, (unsigned long long)completed);
	pthread_join(thread, NULL);
	assert_null(stress.daemon_error);
	close(stress.daemon_bell);
	close(stress.client_bell);
	region_deinit(&stress.pair.region);
}

/* ---- the order of publishing ---- */

#define ROUNDS 200u

struct order {
	struct pair pair;
	_Atomic uint32_t n_taken; /* rounds */
};

static void *fill_submissions(void *data)
{
	struct order *order = data;
	uint32_t count;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t i = 0; i < RING_ENTRIES_MAX; i++)
			(void)ring_sq_push(&order->pair.client, &nop);
		ring_sq_publish(&order->pair.client, &count);
		while (atomic_load(&order->n_taken) <= round)
			;
	}
	return NULL;
}

static void *fill_completions(void *data)
{
	struct order *order = data;
	const struct ring_cqe cqe = {.kind = RING_CQE_FINAL};

	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t i = 0; i < RING_ENTRIES_MAX; i++)
			ring_cq_push(&order->pair.daemon, &cqe);
		ring_cq_publish(&order->pair.daemon);
		while (atomic_load(&order->n_taken) <= round)
			;
	}
	return NULL;
}

/* A sleeper goes by the tail and then by the stamps: of a ringful the last one is looked at first. */
static void test_ring_tail_is_never_ahead_of_a_stamp(void **state)
{
	struct order order = {0};
	pthread_t thread;

	(void)state;
	pair_init(&order.pair, RING_ENTRIES_MAX);
	assert_int_equal(pthread_create(&thread, NULL, fill_submissions, &order), 0);
	for (uint32_t end = RING_ENTRIES_MAX; end <= ROUNDS * RING_ENTRIES_MAX;
		end += RING_ENTRIES_MAX) {
		struct ring last = order.pair.daemon;
		struct ring_sqe sqe;

		last.sq_index = end - 1;
		while (atomic_load_explicit(&last.control->sq_tail, memory_order_acquire) != end)
			;
		assert_true(ring_sq_pop(&last, &sqe));
		order.pair.daemon.sq_index = end;
		ring_sq_release(&order.pair.daemon);
		atomic_fetch_add(&order.n_taken, 1);
	}
	pthread_join(thread, NULL);

	order.n_taken = 0;
	assert_int_equal(pthread_create(&thread, NULL, fill_completions, &order), 0);
	for (uint32_t end = RING_ENTRIES_MAX; end <= ROUNDS * RING_ENTRIES_MAX;
		end += RING_ENTRIES_MAX) {
		struct ring last = order.pair.client;
		struct ring_cqe cqe;

		last.cq_index = end - 1;
		while (atomic_load_explicit(&last.control->cq_tail, memory_order_acquire) != end)
			;
		assert_true(ring_cq_peek(&last, &cqe));
		atomic_fetch_add(&order.n_taken, 1);
	}
	pthread_join(thread, NULL);
	region_deinit(&order.pair.region);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_ring_empty_pops_and_peeks_nothing),
		TEST(test_ring_push_is_unseen_until_publish),
		TEST(test_ring_publish_of_nothing_counts_zero_and_wakes_nobody),
		TEST(test_ring_full_refuses_push),
		TEST(test_ring_popped_entries_make_room_on_release_only),
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
		TEST(test_ring_publish_tells_of_a_sleeping_peer),
		TEST(test_ring_sleep_tells_of_what_waits),
		cmocka_unit_test(test_ring_tail_is_never_ahead_of_a_stamp),
		cmocka_unit_test(test_ring_two_threads_lose_no_entry_and_no_wakeup),
	};

	return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
