/* SPDX-License-Identifier: MIT */
/* Rings between two threads: nothing is lost, and no wake-up. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "ipc/doorbell.h"
#include "tests/ipc/ring_pair.h"
#include "tests/random.h"

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
	uint32_t bits = random_u32(random);
	uint32_t n = (bits >> 4) & ((1u << (bits % 16)) - 1);

	for (volatile uint32_t i = 0; i < n; i++)
		;
}

/* False if the doorbell was never rung. */
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
			if (ring_cq_fits(ring, 1) != 1) {
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

/* One in flight for the first eighth: then no later entry hides a lost wake-up. */
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
		while (ring_cq_fits(&order->pair.daemon, RING_ENTRIES_MAX) == 0)
			;
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
		order.pair.client.cq_index = order.pair.client.cq_published = end - 1;
		ring_cq_advance(&order.pair.client);
		atomic_fetch_add(&order.n_taken, 1);
	}
	pthread_join(thread, NULL);
	region_deinit(&order.pair.region);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ring_tail_is_never_ahead_of_a_stamp),
		cmocka_unit_test(test_ring_two_threads_lose_no_entry_and_no_wakeup),
	};

	return cmocka_run_group_tests_name("ring_threads", tests, NULL, NULL);
}
