/* SPDX-License-Identifier: MIT */
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "ipc/clock.h"
#include "tests/sdk/session.h"

static void test_sequences_run_out_as_quota(void **state)
{
	struct session *s = *state;
	uint32_t a, b, c;

	assert_int_equal(mimeo_sequence_open(s->m, 0, &a), 0);
	assert_int_equal(mimeo_sequence_fork(s->m, a, &b), 0);
	assert_int_not_equal(a, b);
	assert_string_equal(mimeo_sequence_message(s->m), "");
	assert_int_equal(mimeo_sequence_open(s->m, 0, &c), MIMEO_E_QUOTA);
	assert_string_equal(mimeo_sequence_message(s->m),
		"open sequences: 1 asked for, 0 left for this session (max_sequences)");
	assert_int_equal(mimeo_sequence_close(s->m, b), 0);
	assert_string_equal(mimeo_sequence_message(s->m), "");
	assert_int_equal(mimeo_sequence_fork(s->m, a, &c), MIMEO_E_QUOTA);
	assert_string_equal(mimeo_sequence_message(s->m),
		"open sequences: 1 asked for, 0 left for this session (max_sequences)");
}

static void test_refused_sequence_call_has_a_sentence(void **state)
{
	struct session *s = *state;
	uint32_t id;

	assert_int_equal(mimeo_sequence_open(s->m, 7, &id), MIMEO_E_UNKNOWN_MODEL);
	assert_non_null(strstr(mimeo_sequence_message(s->m), "no model has index 7: the daemon serves "));
	assert_int_equal(mimeo_sequence_close(s->m, 1), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_string_equal(mimeo_sequence_message(s->m), "sequence 1 is not open");
	assert_int_equal(mimeo_sequence_open(s->m, 0, &id), 0);
	assert_string_equal(mimeo_sequence_message(s->m), "");
	while (mimeo_request_get(s->m)) { }
	assert_int_equal(mimeo_sequence_close(s->m, id), MIMEO_E_FULL);
	assert_non_null(strstr(mimeo_sequence_message(s->m), "entries are in use"));
}

static void test_closed_sequence_is_unknown_and_its_id_free_once_the_daemon_agrees(void **state)
{
	struct session *s = *state;
	uint32_t id, again;

	mimeo_sequence_open(s->m, 0, &id);
	assert_int_equal(mimeo_sequence_close(s->m, id), 0);
	assert_int_equal(mimeo_sequence_close(s->m, id), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), MIMEO_E_UNKNOWN_SEQUENCE);
	mimeo_submit(s->m);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &again), MIMEO_E_QUOTA);
	for (int i = 0; i < 2; i++) {
		struct ring_sqe sqe = session_pop(s);
		session_final(s, &sqe, 0);
	}
	assert_int_equal(session_peek(s), 0);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &again), 0);
	assert_int_equal(again, id);
}

static void test_sequence_calls_need_a_credit(void **state)
{
	struct session *s = *state;
	uint32_t id;

	while (mimeo_request_get(s->m))
		;
	assert_int_equal(mimeo_sequence_open(s->m, 0, &id), MIMEO_E_FULL);
}

/* All entries are taken by calls that were answered; events have not been looked for. */
static uint32_t fill_with_answered_calls(struct session *s)
{
	struct ring_sqe sqe;
	uint32_t id;

	assert_int_equal(mimeo_sequence_open(s->m, 0, &id), 0);
	for (int i = 1; i < 8; i++)
		assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), 0);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), MIMEO_E_FULL);
	mimeo_submit(s->m);
	while (fake_pop(&s->fake, &sqe))
		session_final(s, &sqe, 0);
	return id;
}

static void test_calls_take_the_entries_of_calls_that_succeeded(void **state)
{
	struct session *s = *state;
	uint32_t other;

	uint32_t id = fill_with_answered_calls(s);
	if (s->variant == 0)
		assert_int_equal(mimeo_sequence_open(s->m, 0, &other), 0);
	else if (s->variant == 1)
		assert_int_equal(mimeo_sequence_fork(s->m, id, &other), 0);
	else if (s->variant == 2)
		assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), 0);
	else if (s->variant == 3)
		assert_int_equal(mimeo_sequence_close(s->m, id), 0);
	else
		assert_non_null(mimeo_request_get(s->m));
}

static void test_open_takes_the_id_of_a_close_that_succeeded(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	mimeo_sequence_close(s->m, id);
	mimeo_submit(s->m);
	while (fake_pop(&s->fake, &sqe))
		session_final(s, &sqe, 0);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &id), 0);
}

/* An event that is held, or the next in the ring, stays what it is. */
static void test_events_are_not_taken_by_calls_that_need_an_entry(void **state)
{
	struct session *s = *state;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	session_generate(s, 3);
	while (mimeo_request_get(s->m))
		;
	mimeo_submit(s->m);
	struct ring_sqe open = session_pop(s), generate = session_pop(s);
	session_final(s, &open, 0);
	session_tokens(s, &generate, 1);
	struct ring_cqe cqe = fake_final(&generate);
	cqe.status = MIMEO_E_DEADLINE;
	cqe.n_generated = 1;
	fake_push(&s->fake, &cqe);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), 0);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), MIMEO_E_FULL);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.n_tokens, 1);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), MIMEO_E_FULL);
	session_seen(s);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.status, MIMEO_E_DEADLINE);
	session_seen(s);
}

/* The wake-up that was armed came for what is taken without a look for events: it stays. */
static void test_silence_that_a_call_takes_leaves_the_descriptor_readable(void **state)
{
	struct session *s = *state;
	uint32_t id;

	struct pollfd fd = {.fd = mimeo_fd(s->m), .events = POLLIN};
	mimeo_sequence_open(s->m, 0, &id);
	session_generate(s, 3);
	while (mimeo_request_get(s->m))
		;
	mimeo_submit(s->m);
	struct ring_sqe open = session_pop(s), generate = session_pop(s);
	assert_int_equal(session_peek(s), 0);
	assert_int_equal(poll(&fd, 1, 0), 0);
	session_final(s, &open, 0);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), 0);
	session_final(s, &generate, 0);
	assert_int_equal(poll(&fd, 1, 0), 1);
	assert_int_equal(session_peek(s), 1);
	session_seen(s);
	/* And it is armed again. */
	assert_int_equal(session_peek(s), 0);
	assert_int_equal(poll(&fd, 1, 0), 0);
}

static void test_wait_ends_when_all_in_flight_ended_without_events(void **state)
{
	struct session *s = *state;

	uint32_t id = fill_with_answered_calls(s);
	/* Not one of the peeks that took them reports it, but the wait; and only once. */
	if (s->variant == 1)
		assert_int_equal(session_peek(s), 0);
	alarm(20);
	assert_int_equal(session_wait(s), 0);
	alarm(0);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), 0);
	uint64_t start = clock_ns();
	assert_int_equal(mimeo_event_wait(s->m, &s->event, 20), 0);
	assert_true(clock_ns() - start >= 19000000);
}

static void *answer_later(void *argument)
{
	struct session *s = argument;
	struct ring_sqe sqe;

	usleep(20000);
	while (fake_pop(&s->fake, &sqe)) {
		if (sqe.op == RING_OP_GENERATE)
			usleep(20000);
		session_final(s, &sqe, 0);
	}
	return NULL;
}

static void test_wait_goes_on_past_silence_while_an_event_may_come(void **state)
{
	struct session *s = *state;
	pthread_t thread;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	session_generate(s, 3);
	mimeo_submit(s->m);
	assert_int_equal(pthread_create(&thread, NULL, answer_later, s), 0);
	alarm(20);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.user_data, 103);
	session_seen(s);
	pthread_join(thread, NULL);
	/* Asleep when the answer comes. */
	mimeo_sequence_truncate(s->m, id, 0);
	mimeo_submit(s->m);
	assert_int_equal(pthread_create(&thread, NULL, answer_later, s), 0);
	assert_int_equal(session_wait(s), 0);
	alarm(0);
	pthread_join(thread, NULL);
}

static void test_successful_sequence_calls_are_silent_and_return_their_credits(void **state)
{
	struct session *s = *state;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	for (uint32_t i = 0; i < 30; i++) {
		assert_int_equal(mimeo_sequence_truncate(s->m, id, i), 0);
		mimeo_submit(s->m);
		struct ring_sqe sqe;
		while (fake_pop(&s->fake, &sqe))
			session_final(s, &sqe, 0);
		assert_int_equal(session_peek(s), 0);
	}
}

static void test_refused_sequence_calls_return_their_credits_when_seen(void **state)
{
	struct session *s = *state;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	mimeo_submit(s->m);
	struct ring_sqe sqe = session_pop(s);
	session_final(s, &sqe, 0);
	for (int i = 0; i < 30; i++) {
		assert_int_equal(mimeo_sequence_truncate(s->m, id, 99), 0);
		mimeo_submit(s->m);
		sqe = session_pop(s);
		session_final(s, &sqe, MIMEO_E_INVALID);
		assert_int_equal(session_wait(s), 1);
		session_seen(s);
	}
}

static void test_length_is_answered_by_an_event(void **state)
{
	struct session *s = *state;
	struct ring_cqe cqe;
	struct ring_sqe sqe;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	assert_int_equal(mimeo_sequence_length(s->m, id), 0);
	mimeo_submit(s->m);
	sqe = session_pop(s);
	session_final(s, &sqe, 0);
	sqe = session_pop(s);
	assert_int_equal(sqe.op, RING_OP_LENGTH);
	assert_int_equal(sqe.sequence, id);
	cqe = fake_final(&sqe);
	cqe.n_sequence = 123;
	fake_push(&s->fake, &cqe);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_SEQUENCE);
	assert_int_equal(s->event.status, 0);
	assert_int_equal(s->event.sequence, id);
	assert_int_equal(s->event.n_sequence, 123);
	session_seen(s);
	assert_int_equal(mimeo_sequence_length(s->m, id + 1), MIMEO_E_UNKNOWN_SEQUENCE);
}

static void test_id_of_a_closed_fork_is_free_again(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe;
	uint32_t parent, child;

	mimeo_sequence_open(s->m, 0, &parent);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(mimeo_sequence_fork(s->m, parent, &child), 0);
		assert_int_equal(mimeo_sequence_close(s->m, child), 0);
		mimeo_submit(s->m);
		while (fake_pop(&s->fake, &sqe))
			session_final(s, &sqe, 0);
		assert_int_equal(session_peek(s), 0);
	}
}

/* Else the calls still on their way would be taken for calls on the id's next owner. */
static void test_id_is_not_given_out_while_calls_name_it(void **state)
{
	struct session *s = *state;
	uint32_t id, again;

	mimeo_sequence_open(s->m, 0, &id);
	mimeo_sequence_truncate(s->m, id, 0);
	mimeo_submit(s->m);
	struct ring_sqe open = session_pop(s), truncate = session_pop(s);
	session_final(s, &open, MIMEO_E_NO_MEMORY);
	assert_int_equal(session_wait(s), 1);
	session_seen(s);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &again), MIMEO_E_QUOTA);
	session_final(s, &truncate, MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(session_wait(s), 1);
	session_seen(s);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &again), 0);
}

static void test_refused_open_is_reported_and_gives_the_id_back(void **state)
{
	struct session *s = *state;
	uint32_t id, again;

	mimeo_sequence_open(s->m, 0, &id);
	mimeo_submit(s->m);
	struct ring_sqe sqe = session_pop(s);
	session_final(s, &sqe, MIMEO_E_NO_MEMORY);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_SEQUENCE);
	assert_int_equal(s->event.status, MIMEO_E_NO_MEMORY);
	assert_int_equal(s->event.sequence, id);
	session_seen(s);
	assert_int_equal(mimeo_sequence_close(s->m, id), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &again), 0);
	assert_int_equal(again, id);
}

static void test_refused_fork_names_the_child_and_spares_the_parent(void **state)
{
	struct session *s = *state;
	uint32_t parent, child;

	mimeo_sequence_open(s->m, 0, &parent);
	mimeo_sequence_fork(s->m, parent, &child);
	mimeo_submit(s->m);
	struct ring_sqe sqe = session_pop(s);
	session_final(s, &sqe, 0);
	sqe = session_pop(s);
	assert_int_equal(sqe.sequence, parent);
	assert_int_equal(sqe.argument, child);
	session_final(s, &sqe, MIMEO_E_NO_MEMORY);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.sequence, child);
	session_seen(s);
	assert_int_equal(mimeo_sequence_truncate(s->m, child, 0), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_sequence_truncate(s->m, parent, 0), 0);
}

static void test_refused_truncate_leaves_the_sequence_open(void **state)
{
	struct session *s = *state;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	mimeo_sequence_truncate(s->m, id, 99);
	mimeo_submit(s->m);
	struct ring_sqe sqe = session_pop(s);
	session_final(s, &sqe, 0);
	sqe = session_pop(s);
	session_final(s, &sqe, MIMEO_E_INVALID);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_SEQUENCE);
	session_seen(s);
	assert_int_equal(mimeo_sequence_close(s->m, id), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test_with(test_sequences_run_out_as_quota,
			.script.max_sequences = 2),
		session_test(test_refused_sequence_call_has_a_sentence),
		session_test_with(test_closed_sequence_is_unknown_and_its_id_free_once_the_daemon_agrees,
			.script.max_sequences = 1),
		session_test(test_sequence_calls_need_a_credit),
		session_test_with(test_calls_take_the_entries_of_calls_that_succeeded, .variant = 0),
		session_test_with(test_calls_take_the_entries_of_calls_that_succeeded, .variant = 1),
		session_test_with(test_calls_take_the_entries_of_calls_that_succeeded, .variant = 2),
		session_test_with(test_calls_take_the_entries_of_calls_that_succeeded, .variant = 3),
		session_test_with(test_calls_take_the_entries_of_calls_that_succeeded, .variant = 4),
		session_test_with(test_open_takes_the_id_of_a_close_that_succeeded,
			.script.max_sequences = 1),
		session_test(test_events_are_not_taken_by_calls_that_need_an_entry),
		session_test(test_silence_that_a_call_takes_leaves_the_descriptor_readable),
		session_test(test_wait_ends_when_all_in_flight_ended_without_events),
		session_test_with(test_wait_ends_when_all_in_flight_ended_without_events,
			.spin_us = 50, .variant = 1),
		session_test_with(test_wait_ends_when_all_in_flight_ended_without_events,
			.spin_us = MIMEO_SPIN_FOREVER),
		session_test(test_wait_goes_on_past_silence_while_an_event_may_come),
		session_test(test_successful_sequence_calls_are_silent_and_return_their_credits),
		session_test(test_refused_sequence_calls_return_their_credits_when_seen),
		session_test(test_length_is_answered_by_an_event),
		session_test_with(test_id_of_a_closed_fork_is_free_again,
			.script.max_sequences = 2),
		session_test_with(test_id_is_not_given_out_while_calls_name_it,
			.script.max_sequences = 1),
		session_test(test_refused_open_is_reported_and_gives_the_id_back),
		session_test(test_refused_fork_names_the_child_and_spares_the_parent),
		session_test(test_refused_truncate_leaves_the_sequence_open),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
