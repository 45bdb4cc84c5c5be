/* SPDX-License-Identifier: MIT */
#include "tests/sdk/session.h"

static void start(struct session *s)
{
	session_start(s, NULL, NULL);
}

static void test_sequences_run_out_as_quota(void **state)
{
	const struct fake_script script = {.max_sequences = 2};
	struct session s;
	uint32_t a, b, c;

	session_start(&s, &script, NULL);
	assert_int_equal(mimeo_sequence_open(s.m, 0, &a), 0);
	assert_int_equal(mimeo_sequence_fork(s.m, a, &b), 0);
	assert_int_not_equal(a, b);
	assert_int_equal(mimeo_sequence_open(s.m, 0, &c), MIMEO_E_QUOTA);
	assert_int_equal(mimeo_sequence_fork(s.m, a, &c), MIMEO_E_QUOTA);
	session_stop(&s);
}

static void test_closed_sequence_is_unknown_and_its_id_free_once_the_daemon_agrees(void **state)
{
	const struct fake_script script = {.max_sequences = 1};
	struct session s;
	uint32_t id, again;

	session_start(&s, &script, NULL);
	mimeo_sequence_open(s.m, 0, &id);
	assert_int_equal(mimeo_sequence_close(s.m, id), 0);
	assert_int_equal(mimeo_sequence_close(s.m, id), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_sequence_truncate(s.m, id, 0), MIMEO_E_UNKNOWN_SEQUENCE);
	mimeo_submit(s.m);
	assert_int_equal(mimeo_sequence_open(s.m, 0, &again), MIMEO_E_QUOTA);
	for (int i = 0; i < 2; i++) {
		struct ring_sqe sqe = session_pop(&s);
		session_final(&s, &sqe, 0);
	}
	assert_int_equal(session_peek(&s), 0);
	assert_int_equal(mimeo_sequence_open(s.m, 0, &again), 0);
	assert_int_equal(again, id);
	session_stop(&s);
}

static void test_sequence_calls_need_a_credit(void **state)
{
	struct session s;
	uint32_t id;

	start(&s);
	while (mimeo_request_get(s.m))
		;
	assert_int_equal(mimeo_sequence_open(s.m, 0, &id), MIMEO_E_FULL);
	session_stop(&s);
}

static void test_successful_sequence_calls_are_silent_and_return_their_credits(void **state)
{
	struct session s;
	uint32_t id;

	start(&s);
	mimeo_sequence_open(s.m, 0, &id);
	for (uint32_t i = 0; i < 30; i++) {
		assert_int_equal(mimeo_sequence_truncate(s.m, id, i), 0);
		mimeo_submit(s.m);
		struct ring_sqe sqe;
		while (fake_pop(&s.fake, &sqe))
			session_final(&s, &sqe, 0);
		assert_int_equal(session_peek(&s), 0);
	}
	session_stop(&s);
}

static void test_refused_sequence_calls_return_their_credits_when_seen(void **state)
{
	struct session s;
	uint32_t id;

	start(&s);
	mimeo_sequence_open(s.m, 0, &id);
	mimeo_submit(s.m);
	struct ring_sqe sqe = session_pop(&s);
	session_final(&s, &sqe, 0);
	for (int i = 0; i < 30; i++) {
		assert_int_equal(mimeo_sequence_truncate(s.m, id, 99), 0);
		mimeo_submit(s.m);
		sqe = session_pop(&s);
		session_final(&s, &sqe, MIMEO_E_INVALID);
		assert_int_equal(session_wait(&s), 1);
		session_seen(&s);
	}
	session_stop(&s);
}

static void test_id_of_a_closed_fork_is_free_again(void **state)
{
	const struct fake_script script = {.max_sequences = 2};
	struct session s;
	struct ring_sqe sqe;
	uint32_t parent, child;

	session_start(&s, &script, NULL);
	mimeo_sequence_open(s.m, 0, &parent);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(mimeo_sequence_fork(s.m, parent, &child), 0);
		assert_int_equal(mimeo_sequence_close(s.m, child), 0);
		mimeo_submit(s.m);
		while (fake_pop(&s.fake, &sqe))
			session_final(&s, &sqe, 0);
		assert_int_equal(session_peek(&s), 0);
	}
	session_stop(&s);
}

/* Else the calls still on their way would be taken for calls on the id's next owner. */
static void test_id_is_not_given_out_while_calls_name_it(void **state)
{
	const struct fake_script script = {.max_sequences = 1};
	struct session s;
	uint32_t id, again;

	session_start(&s, &script, NULL);
	mimeo_sequence_open(s.m, 0, &id);
	mimeo_sequence_truncate(s.m, id, 0);
	mimeo_submit(s.m);
	struct ring_sqe open = session_pop(&s), truncate = session_pop(&s);
	session_final(&s, &open, MIMEO_E_NO_MEMORY);
	assert_int_equal(session_wait(&s), 1);
	session_seen(&s);
	assert_int_equal(mimeo_sequence_open(s.m, 0, &again), MIMEO_E_QUOTA);
	session_final(&s, &truncate, MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(session_wait(&s), 1);
	session_seen(&s);
	assert_int_equal(mimeo_sequence_open(s.m, 0, &again), 0);
	session_stop(&s);
}

static void test_refused_open_tells_and_gives_the_id_back(void **state)
{
	struct session s;
	uint32_t id, again;

	start(&s);
	mimeo_sequence_open(s.m, 0, &id);
	mimeo_submit(s.m);
	struct ring_sqe sqe = session_pop(&s);
	session_final(&s, &sqe, MIMEO_E_NO_MEMORY);
	assert_int_equal(session_wait(&s), 1);
	assert_int_equal(s.event.kind, MIMEO_EVENT_SEQUENCE);
	assert_int_equal(s.event.status, MIMEO_E_NO_MEMORY);
	assert_int_equal(s.event.sequence, id);
	session_seen(&s);
	assert_int_equal(mimeo_sequence_close(s.m, id), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_sequence_open(s.m, 0, &again), 0);
	assert_int_equal(again, id);
	session_stop(&s);
}

static void test_refused_fork_names_the_child_and_spares_the_parent(void **state)
{
	struct session s;
	uint32_t parent, child;

	start(&s);
	mimeo_sequence_open(s.m, 0, &parent);
	mimeo_sequence_fork(s.m, parent, &child);
	mimeo_submit(s.m);
	struct ring_sqe sqe = session_pop(&s);
	session_final(&s, &sqe, 0);
	sqe = session_pop(&s);
	assert_int_equal(sqe.sequence, parent);
	assert_int_equal(sqe.argument, child);
	session_final(&s, &sqe, MIMEO_E_NO_MEMORY);
	assert_int_equal(session_wait(&s), 1);
	assert_int_equal(s.event.sequence, child);
	session_seen(&s);
	assert_int_equal(mimeo_sequence_truncate(s.m, child, 0), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_sequence_truncate(s.m, parent, 0), 0);
	session_stop(&s);
}

static void test_refused_truncate_leaves_the_sequence_open(void **state)
{
	struct session s;
	uint32_t id;

	start(&s);
	mimeo_sequence_open(s.m, 0, &id);
	mimeo_sequence_truncate(s.m, id, 99);
	mimeo_submit(s.m);
	struct ring_sqe sqe = session_pop(&s);
	session_final(&s, &sqe, 0);
	sqe = session_pop(&s);
	session_final(&s, &sqe, MIMEO_E_INVALID);
	assert_int_equal(session_wait(&s), 1);
	assert_int_equal(s.event.kind, MIMEO_EVENT_SEQUENCE);
	session_seen(&s);
	assert_int_equal(mimeo_sequence_close(s.m, id), 0);
	session_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sequences_run_out_as_quota),
		cmocka_unit_test(
			test_closed_sequence_is_unknown_and_its_id_free_once_the_daemon_agrees),
		cmocka_unit_test(test_sequence_calls_need_a_credit),
		cmocka_unit_test(
			test_successful_sequence_calls_are_silent_and_return_their_credits),
		cmocka_unit_test(test_refused_sequence_calls_return_their_credits_when_seen),
		cmocka_unit_test(test_id_of_a_closed_fork_is_free_again),
		cmocka_unit_test(test_id_is_not_given_out_while_calls_name_it),
		cmocka_unit_test(test_refused_open_tells_and_gives_the_id_back),
		cmocka_unit_test(test_refused_fork_names_the_child_and_spares_the_parent),
		cmocka_unit_test(test_refused_truncate_leaves_the_sequence_open),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
