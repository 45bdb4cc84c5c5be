/* SPDX-License-Identifier: MIT */
/* What a request or a session may not, what it gets when it tries, and what it may. */
#include "tests/e2e/calls.h"
#include "tests/e2e/daemon.h"

#define PAGES "24" /* of 16 tokens: 384 */
#define N_PAGE_TOKENS 16
#define N_CROWD 40

/* Few pages, slots and sessions. */
static int start(void **state)
{
	static const char *const options[] = {
		"--kv-pages", PAGES, "--max-requests", "8", "--max-sessions", "6", NULL};

	return group_daemon_start_with(state, options);
}

/* ---- rings and arena ---- */

static void test_no_more_requests_than_entries_are_given_out(void **state)
{
	struct mimeo *m = daemon_connect(*state, 4, 0);
	struct mimeo_request *requests[4];
	uint32_t sequence;

	for (unsigned i = 0; i < 4; i++)
		assert_non_null(requests[i] = mimeo_request_get(m));
	assert_null(mimeo_request_get(m));
	assert_int_equal(mimeo_sequence_open(m, 0, &sequence), MIMEO_E_FULL);
	mimeo_request_put(requests[0]);
	assert_non_null(mimeo_request_get(m));
	mimeo_close(m);
}

static void test_full_arena_refuses_a_prompt_and_takes_it_later(void **state)
{
	static const int32_t tokens[200] = {1};
	struct mimeo *m = daemon_connect(*state, 256, 64 << 10);
	struct mimeo_generate generate = generate_of(tokens, 200, 100);
	struct mimeo_request *request;
	uint32_t n = 0;
	int rc;

	while ((rc = mimeo_request_prep_generate(request = mimeo_request_get(m), &generate)) == 0)
		n++;
	assert_int_equal(rc, MIMEO_E_FULL);
	assert_true(n > 10 && n < 256);
	assert_int_equal(mimeo_submit(m), n);
	assert_int_equal(wait_final(m).status, 0);
	assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
	assert_int_equal(mimeo_submit(m), 1);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(wait_final(m).status, 0);
	mimeo_close(m);
}

static void test_slow_reader_loses_no_token(void **state)
{
	struct question questions[2];
	struct reply replies[2] = {0};
	struct mimeo *slow = daemon_connect(*state, 2, 0), *other = daemon_connect(*state, 0, 0);

	/* More tokens than the completion ring of two can hold, and no one reads. */
	questions[0] = questions[1] =
		question_of("count 97 12\n", "97 98 99 100 101 102 103 104 105 "
					     "106 107 108");
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(question_prepare(slow, &questions[i], i), 0);
	assert_int_equal(mimeo_submit(slow), 2);
	assert_true(EVENTUALLY(
		daemon_count(*state, "running") == 0 && daemon_count(*state, "waiting") == 0));
	assert_serves(other, 1);
	assert_int_equal(replies_collect(slow, replies, 2), 0);
	assert_int_equal(replies_wrong(questions, replies, 2), 0);
	mimeo_close(slow);
	mimeo_close(other);
}

/* ---- what a request may not ---- */

static void test_token_outside_the_vocabulary_is_refused_by_name(void **state)
{
	static const int32_t high[] = {1, 2, 256}, low[] = {1, -1};
	struct mimeo *m = daemon_connect(*state, 0, 0);

	struct mimeo_event event = answer_to(m, high, 3, 4);
	assert_int_equal(event.status, MIMEO_E_INVALID);
	assert_int_equal(event.finish, MIMEO_FINISH_ERROR);
	assert_message_has(&event, "token 2 is 256");
	event = answer_to(m, low, 2, 4);
	assert_int_equal(event.status, MIMEO_E_INVALID);
	assert_message_has(&event, "token 1 is -1");
	mimeo_close(m);
}

static void test_stop_id_outside_the_vocabulary_is_refused_by_name(void **state)
{
	static const int32_t prompt[] = {1, '9'}, stop[] = {255, 256};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = generate_of(prompt, 2, 1);

	generate.stop = stop;
	generate.n_stop = 1;
	submit_generate(m, &generate);
	assert_int_equal(wait_final(m).status, 0);
	generate.n_stop = 2;
	struct mimeo_request *request = mimeo_request_get(m);
	assert_int_equal(mimeo_request_prep_generate(request, &generate), MIMEO_E_INVALID);
	assert_string_equal(mimeo_request_message(request),
		"stop id 1 is 256, outside the vocabulary of 256");
	mimeo_request_put(request);
	mimeo_close(m);
}

static void test_prompt_and_limit_beyond_the_model_are_too_long(void **state)
{
	static const int32_t tokens[2048] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = generate_of(tokens, 2048, 1);
	struct mimeo_request *request = mimeo_request_get(m);

	assert_int_equal(mimeo_request_prep_generate(request, &generate), MIMEO_E_TOO_LONG);
	mimeo_request_put(request);
	mimeo_close(m);
}

static void test_request_that_no_number_of_free_pages_fits_is_too_long(void **state)
{
	static const int32_t tokens[] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_request *request = mimeo_request_get(m);
	uint32_t most = mimeo_model_get(m, 0)->max_seq_len;
	struct mimeo_generate generate = generate_of(tokens, 1, most);
	struct mimeo_event event;

	assert_int_equal(most, 24 * N_PAGE_TOKENS);
	assert_int_equal(mimeo_request_prep_generate(request, &generate), MIMEO_E_TOO_LONG);

	/* What a sequence has already only the daemon counts. */
	assert_int_equal(mimeo_sequence_open(m, 0, &generate.sequence), 0);
	for (int i = 0; i < 2; i++) {
		generate.max_tokens = i == 0 ? 1 : most - 1;
		assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
		assert_int_equal(mimeo_submit(m), i == 0 ? 2 : 1);
		event = wait_final(m);
		if (i == 0)
			assert_int_equal(event.status, 0);
		request = mimeo_request_get(m);
	}
	assert_int_equal(event.status, MIMEO_E_TOO_LONG);
	assert_message_has(&event, "386 tokens");
	assert_message_has(&event, "at most 384");
	mimeo_close(m);
}

static void test_empty_prompt_and_empty_step_are_invalid(void **state)
{
	static const int32_t tokens[] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_step empty = MIMEO_STEP_INIT;
	struct mimeo_request *request = mimeo_request_get(m);

	generate.tokens = tokens;
	generate.max_tokens = 1;
	assert_int_equal(mimeo_request_prep_generate(request, &generate), MIMEO_E_INVALID);
	empty.outputs = MIMEO_STEP_TOKENS;
	assert_int_equal(mimeo_request_prep_step(request, &empty), MIMEO_E_INVALID);
	mimeo_request_put(request);
	mimeo_close(m);
}

static void test_unknown_models_and_sequences_are_named(void **state)
{
	static const int32_t tokens[] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(m);
	uint32_t sequence;

	generate.tokens = tokens;
	generate.n_tokens = generate.max_tokens = 1;
	generate.model = 1;
	assert_int_equal(mimeo_request_prep_generate(request, &generate), MIMEO_E_UNKNOWN_MODEL);
	generate.model = 0;
	generate.sequence = 5;
	assert_int_equal(mimeo_request_prep_generate(request, &generate), MIMEO_E_UNKNOWN_SEQUENCE);
	mimeo_request_put(request);
	assert_int_equal(mimeo_sequence_open(m, 1, &sequence), MIMEO_E_UNKNOWN_MODEL);
	assert_int_equal(mimeo_sequence_close(m, 5), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_sequence_fork(m, 5, &sequence), MIMEO_E_UNKNOWN_SEQUENCE);
	assert_int_equal(mimeo_model_find(m, "tinycalc"), 0);
	assert_int_equal(mimeo_model_find(m, "other"), MIMEO_E_UNKNOWN_MODEL);
	mimeo_close(m);
}

/* ---- pages ---- */

static void test_requests_beyond_the_pages_queue_and_are_all_answered(void **state)
{
	static struct question questions[N_CROWD];
	static struct reply replies[N_CROWD];
	struct mimeo *m = daemon_connect(*state, 64, 0);

	questions_make(questions, N_CROWD, 77);
	assert_int_equal(questions_ask(m, questions, N_CROWD, N_CROWD, replies), 0);
	assert_int_equal(replies_wrong(questions, replies, N_CROWD), 0);
	mimeo_close(m);
}

static void test_step_beyond_the_pages_takes_those_of_idle_sequences(void **state)
{
	static const int32_t tokens[23 * N_PAGE_TOKENS] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t a = sequence_of(m), b;

	b = sequence_of(m);
	assert_int_equal(step(m, a, tokens, 23 * N_PAGE_TOKENS, NULL), 0);
	assert_int_equal(step(m, b, tokens, N_PAGE_TOKENS, NULL), 0);
	assert_int_equal(step(m, b, tokens, 1, NULL), 0);
	assert_int_equal(step(m, a, tokens, 1, NULL), 0);
	mimeo_close(m);
}

/* ---- sessions ---- */

static void test_sessions_are_bounded_by_quota(void **state)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	struct mimeo *m[4];

	config.socket_path = ((struct daemon *)*state)->socket;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(mimeo_connect(&m[i], &config), 0);
	assert_int_equal(mimeo_connect(&m[3], &config), MIMEO_E_QUOTA);
	mimeo_close(m[0]);
	assert_true(EVENTUALLY(mimeo_connect(&m[0], &config) == 0));
	for (unsigned i = 0; i < 3; i++)
		mimeo_close(m[i]);
}

/* ---- how requests end ---- */

static void test_token_limit_ends_with_length(void **state)
{
	const struct question q = question_of("count 97 12\n", "");
	struct mimeo *m = daemon_connect(*state, 0, 0);

	struct mimeo_event event = answer_to(m, q.prompt, q.n_prompt, 5);
	assert_int_equal(event.status, 0);
	assert_int_equal(event.finish, MIMEO_FINISH_LENGTH);
	assert_int_equal(event.n_generated, 5);
	assert_int_equal(event.n_prompt, q.n_prompt);
	mimeo_close(m);
}

static void test_stop_id_ends_the_output_and_is_its_last_token(void **state)
{
	static const int32_t stop[] = {200, '9', 201};
	const struct question asked = question_of("count 397 12\n", "");
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = generate_of(asked.prompt, asked.n_prompt, 50);
	struct reply reply = {0};

	generate.stop = stop;
	generate.n_stop = 3;
	submit_generate(m, &generate);
	assert_int_equal(replies_collect(m, &reply, 1), 0);
	assert_int_equal(reply.finish, MIMEO_FINISH_STOP);
	assert_int_equal(reply.n_tokens, 2);
	assert_int_equal(reply.tokens[0], '3');
	assert_int_equal(reply.tokens[1], '9');
	mimeo_close(m);
}

static void test_cancelled_stream_ends_with_the_tokens_it_had(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_event event, last = {0};
	bool cancel_ended = false;
	uint64_t id;

	assert_int_equal(endless_submit(m, 300, 1, &id), 0);
	event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_TOKENS);
	mimeo_event_seen(m, &event);
	submit_cancel(m, id, 2);
	while (!cancel_ended || last.kind == 0) {
		event = wait_final(m);
		if (event.user_data == 1)
			last = event;
		else
			cancel_ended = true;
	}
	assert_int_equal(event.user_data == 2 ? event.status : 0, 0);
	assert_int_equal(last.status, MIMEO_E_CANCELLED);
	assert_int_equal(last.finish, MIMEO_FINISH_CANCELLED);
	assert_true(last.n_generated >= 1 && last.n_generated < 300);
	mimeo_close(m);
}

static void test_cancel_finds_a_place_with_all_entries_in_flight(void **state)
{
	struct mimeo *m = daemon_connect(*state, 2, 0);
	struct mimeo_event event;
	uint64_t ids[2];

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(endless_submit(m, 350, i, &ids[i]), 0);
	assert_null(mimeo_request_get(m));
	for (unsigned i = 2; i-- > 0;) {
		assert_int_equal(mimeo_cancel(m, ids[i]), 0);
		assert_int_equal(mimeo_cancel(m, ids[i]), 0);
		event = wait_final(m);
		assert_int_equal(event.user_data, i);
		assert_int_equal(event.status, MIMEO_E_CANCELLED);
		assert_int_equal(event.finish, MIMEO_FINISH_CANCELLED);
		assert_int_equal(mimeo_cancel(m, ids[i]), MIMEO_E_UNKNOWN_REQUEST);
	}
	mimeo_close(m);
}

static void test_cancel_of_what_has_ended_is_an_unknown_request(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint64_t id;

	assert_int_equal(endless_submit(m, 1, 1, &id), 0);
	assert_int_equal(wait_final(m).status, 0);
	struct mimeo_request *other = mimeo_request_get(m), *request = mimeo_request_get(m);
	assert_int_equal(mimeo_request_prep_cancel(request, id), 0);
	assert_int_equal(mimeo_submit(m), 1);
	assert_int_equal(wait_final(m).status, MIMEO_E_UNKNOWN_REQUEST);
	mimeo_request_put(other);
	mimeo_close(m);
}

static void test_cancel_reaches_a_request_that_waits_for_pages(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_event event;
	uint64_t running, waiting;

	assert_int_equal(endless_submit(m, 350, 1, &running), 0);
	take_event(m);
	assert_int_equal(endless_submit(m, 350, 2, &waiting), 0);
	submit_cancel(m, waiting, 3);
	for (unsigned i = 0; i < 3; i++) {
		event = wait_final(m);
		assert_int_equal(event.status, event.user_data == 2 ? MIMEO_E_CANCELLED : 0);
		assert_int_equal(event.n_generated, event.user_data == 1 ? 350 : 0);
	}
	mimeo_close(m);
}

static void test_deadline_ends_a_request_that_waits_for_pages(void **state)
{
	static const int32_t tokens[22 * N_PAGE_TOKENS] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = generate_of(tokens, 22 * N_PAGE_TOKENS, 2 * N_PAGE_TOKENS);

	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	submit_generate(m, &generate);
	generate.n_tokens = 6 * N_PAGE_TOKENS;
	generate.deadline_ms = 1;
	submit_generate(m, &generate);
	struct mimeo_event event = wait_final(m);
	assert_int_equal(event.status, MIMEO_E_DEADLINE);
	assert_int_equal(event.finish, MIMEO_FINISH_ERROR);
	assert_int_equal(event.n_generated, 0);
	event = wait_final(m);
	assert_int_equal(event.status, 0);
	assert_int_equal(event.n_generated, 2 * N_PAGE_TOKENS);
	mimeo_close(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		GROUP_TEST(test_no_more_requests_than_entries_are_given_out),
		GROUP_TEST(test_full_arena_refuses_a_prompt_and_takes_it_later),
		GROUP_TEST(test_slow_reader_loses_no_token),
		GROUP_TEST(test_token_outside_the_vocabulary_is_refused_by_name),
		GROUP_TEST(test_stop_id_outside_the_vocabulary_is_refused_by_name),
		GROUP_TEST(test_prompt_and_limit_beyond_the_model_are_too_long),
		GROUP_TEST(test_request_that_no_number_of_free_pages_fits_is_too_long),
		GROUP_TEST(test_empty_prompt_and_empty_step_are_invalid),
		GROUP_TEST(test_unknown_models_and_sequences_are_named),
		GROUP_TEST(test_requests_beyond_the_pages_queue_and_are_all_answered),
		GROUP_TEST(test_step_beyond_the_pages_takes_those_of_idle_sequences),
		GROUP_TEST(test_sessions_are_bounded_by_quota),
		GROUP_TEST(test_token_limit_ends_with_length),
		GROUP_TEST(test_stop_id_ends_the_output_and_is_its_last_token),
		GROUP_TEST(test_cancelled_stream_ends_with_the_tokens_it_had),
		GROUP_TEST(test_cancel_finds_a_place_with_all_entries_in_flight),
		GROUP_TEST(test_cancel_of_what_has_ended_is_an_unknown_request),
		GROUP_TEST(test_cancel_reaches_a_request_that_waits_for_pages),
		GROUP_TEST(test_deadline_ends_a_request_that_waits_for_pages),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("limits", tests, start, group_daemon_end);
}
