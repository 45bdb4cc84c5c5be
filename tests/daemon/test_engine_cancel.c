/* SPDX-License-Identifier: MIT */
/* Cancels by cancel words (ipc/ring.h), which need no entry of a ring. */
#include "tests/daemon/rig.h"

#define ENTRIES 4u
#define CANCEL_TEST(test) RIG_TEST(test, .max_requests = 2, .entries = ENTRIES)

static struct engine_session *session_of(const struct rig_client *client)
{
	RIG_AWAIT(client->port->engine_private);
	return client->port->engine_private;
}

static void cancel_by_word(struct rig_client *client, const struct rig_request *target)
{
	ring_cancel(&client->region.ring, target->index, target->sqe.generation);
}

static void assert_cancelled(const struct rig_result *result)
{
	assert_true(result->done);
	assert_int_equal(result->status, MIMEO_E_CANCELLED);
	assert_int_equal(result->finish, MIMEO_FINISH_CANCELLED);
}

/* Two run and two wait. */
static void fill_entries(struct rig_client *client, struct rig_request requests[static ENTRIES])
{
	for (uint32_t i = 0; i < ENTRIES; i++) {
		requests[i] = rig_endless(client, i, 0, 400);
		rig_submit(client, requests[i]);
	}
	RIG_AWAIT(client->port->n_in_flight == ENTRIES && client->port->n_waiting == ENTRIES - 2);
}

static void test_cancel_ends_a_request_with_all_entries_in_flight(void **state)
{
	struct rig *rig = *state;
	struct rig_request requests[ENTRIES];

	/* A device that loads a kernel for the first time may wait for the lane, which the gate holds. */
	rig_must(&rig->client, rig_ask_text(&rig->client, 0, 0, "1+2="));
	rig_gate_close(rig);
	fill_entries(&rig->client, requests);
	/* One that waits, then one that runs; a second cancel of it changes nothing. */
	cancel_by_word(&rig->client, &requests[3]);
	rig_wait(&rig->client, rig->results, 3);
	cancel_by_word(&rig->client, &requests[0]);
	cancel_by_word(&rig->client, &requests[0]);
	rig_wait(&rig->client, rig->results, 0);
	assert_cancelled(&rig->results[3]);
	assert_cancelled(&rig->results[0]);
	RIG_AWAIT(rig->client.port->n_in_flight == 2);
	rig_gate_open(rig);
	rig_wait(&rig->client, rig->results, 1);
	rig_wait(&rig->client, rig->results, 2);
	assert_int_equal(rig->results[1].status, 0);
	assert_int_equal(rig->results[2].status, 0);
	assert_int_equal(engine_stats(rig->engine)->n_cancelled, 2);
}

static void test_cancel_of_what_has_ended_does_not_end_the_next_of_its_index(void **state)
{
	struct rig *rig = *state;
	struct rig_request first = rig_ask_text(&rig->client, 0, 0, "1+2=");

	rig_must(&rig->client, first);
	rig_submit(&rig->client, rig_endless(&rig->client, 0, 0, 200));
	cancel_by_word(&rig->client, &first);
	rig->results[0] = (struct rig_result){0};
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].status, 0);
	assert_int_equal(rig->results[0].n_generated, 200);
}

/* Its tokens' completions have filled all but the places of final ones, and nobody takes any. */
static void test_cancel_takes_effect_beside_a_full_completion_ring(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	struct rig_request requests[ENTRIES];

	fill_entries(client, requests);
	RIG_AWAIT(atomic_load(&client->region.ring.control->cq_tail) == ENTRIES);
	cancel_by_word(client, &requests[2]);
	RIG_AWAIT(client->port->n_in_flight == ENTRIES - 1);
	assert_int_equal(client->region.ring.cq_index, 0);
	for (uint32_t i = 0; i < ENTRIES; i++)
		cancel_by_word(client, &requests[i]);
	RIG_AWAIT(client->port->n_in_flight == 0);
	for (uint32_t i = 0; i < ENTRIES; i++)
		rig_wait(client, rig->results, i);
	assert_cancelled(&rig->results[2]);
}

/* The completion ring is full of final ones. The cancel comes before the daemon may take the entry. */
static void test_cancel_of_an_entry_ends_it_as_it_is_taken(void **state)
{
	struct rig *rig = *state;
	struct rig_client *client = &rig->client;
	struct rig_request request = rig_endless(client, 1, 0, 400);
	struct ring_cqe cqe;

	for (uint32_t i = 0; i < RING_CQ_ENTRIES(ENTRIES); i++) {
		rig_submit(client, rig_call(client, 0, RING_OP_NOP, 0, 0));
		RIG_AWAIT(atomic_load(&client->region.ring.control->cq_tail) == i + 1);
	}
	rig_submit(client, request);
	RIG_AWAIT(session_of(client)->cq_full);
	cancel_by_word(client, &request);
	for (uint32_t i = 0; i < RING_CQ_ENTRIES(ENTRIES); i++) {
		assert_true(ring_cq_peek(&client->region.ring, &cqe));
		ring_cq_advance(&client->region.ring);
	}
	rig_wait(client, rig->results, 1);
	assert_cancelled(&rig->results[1]);
	assert_int_equal(rig->results[1].n_prompt, 0);
	assert_int_equal(engine_stats(rig->engine)->n_steps, 0);
}

/* Words of indices and generations that are not in flight, counted without end. */
static void test_words_of_a_hostile_client_hurt_nobody(void **state)
{
	struct rig *rig = *state;
	struct rig_client *other = rig_other(rig, ENTRIES);
	struct ring *ring = &rig->client.region.ring;

	rig_submit(&rig->client, rig_endless(&rig->client, 0, 0, 100));
	rig_submit(other, rig_ask_text(other, 0, 0, "9+8="));
	for (uint32_t i = 0; i < 100000; i++) {
		atomic_store(&ring->cancels[i % ENTRIES], i % ENTRIES ? i : UINT32_MAX - i);
		atomic_fetch_add(&ring->control->n_cancels, 1);
	}
	rig_wait(other, rig->results, 0);
	assert_int_equal(rig->results[0].status, 0);
	rig->results[0] = (struct rig_result){0};
	rig_wait(&rig->client, rig->results, 0);
	assert_int_equal(rig->results[0].status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CANCEL_TEST(test_cancel_ends_a_request_with_all_entries_in_flight),
		CANCEL_TEST(test_cancel_of_what_has_ended_does_not_end_the_next_of_its_index),
		CANCEL_TEST(test_cancel_takes_effect_beside_a_full_completion_ring),
		CANCEL_TEST(test_cancel_of_an_entry_ends_it_as_it_is_taken),
		CANCEL_TEST(test_words_of_a_hostile_client_hurt_nobody),
	};

	return cmocka_run_group_tests_name("engine cancel", tests, NULL, NULL);
}
