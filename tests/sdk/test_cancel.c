/* SPDX-License-Identifier: MIT */
/* mimeo_cancel: a cancel that needs no request. */
#include "tests/sdk/session.h"

/* The connection has 8 entries. */
static void test_cancel_finds_a_place_with_all_entries_in_flight(void **state)
{
	struct session *s = *state;
	struct ring *ring = &s->fake.region.ring;
	uint64_t ids[8];

	for (uint32_t i = 0; i < 8; i++)
		ids[i] = mimeo_request_id(session_generate(s, 4));
	assert_null(mimeo_request_get(s->m));
	assert_int_equal(mimeo_cancel(s->m, ids[0]), MIMEO_E_INVALID);
	assert_int_equal(mimeo_submit(s->m), 8);
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(mimeo_cancel(s->m, ids[i]), 0);
		assert_true(ring_cancels_wait(ring));
		ring_cancels_begin(ring);
		assert_int_equal(ring_cancel_word(ring, (uint32_t)ids[i]), ids[i] >> 32);
	}
	/* A second one is not even counted. */
	assert_int_equal(mimeo_cancel(s->m, ids[3]), 0);
	assert_false(ring_cancels_wait(ring));
}

static void test_cancel_of_what_is_not_in_flight_is_refused(void **state)
{
	struct session *s = *state;
	struct mimeo_request *request = session_generate(s, 4), *held;
	uint64_t id = mimeo_request_id(request);

	assert_int_equal(mimeo_submit(s->m), 1);
	struct ring_sqe sqe = session_pop(s);
	assert_int_equal(mimeo_cancel(s->m, id), 0);
	session_final(s, &sqe, MIMEO_E_CANCELLED);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(mimeo_cancel(s->m, id), 0);
	mimeo_event_seen(s->m, &s->event);
	assert_int_equal(mimeo_cancel(s->m, id), MIMEO_E_UNKNOWN_REQUEST);
	assert_int_equal(ring_cancel_word(&s->fake.region.ring, sqe.request), 0);
	held = mimeo_request_get(s->m);
	assert_ptr_equal(held, request);
	assert_int_equal(mimeo_cancel(s->m, id), MIMEO_E_UNKNOWN_REQUEST);
	assert_int_equal(mimeo_cancel(s->m, mimeo_request_id(held)), MIMEO_E_INVALID);
	assert_int_equal(mimeo_cancel(s->m, 0), MIMEO_E_INVALID);
	assert_int_equal(mimeo_cancel(s->m, 5), MIMEO_E_INVALID);
	assert_int_equal(mimeo_cancel(s->m, 1ull << 32 | 8), MIMEO_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test(test_cancel_finds_a_place_with_all_entries_in_flight),
		session_test(test_cancel_of_what_is_not_in_flight_is_refused),
	};

	return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}
