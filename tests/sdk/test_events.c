/* SPDX-License-Identifier: MIT */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "ipc/clock.h"
#include "tests/sdk/session.h"

/* One generate in flight; the daemon has popped it. */
static struct ring_sqe start_generate(struct session *s, uint32_t max_tokens)
{
	session_generate(s, max_tokens);
	assert_int_equal(mimeo_submit(s->m), 1);
	return session_pop(s);
}

/* The same, of a generate with the prompt's logits. */
static struct ring_sqe start_with_logits(struct session *s)
{
	const int32_t prompt[] = {20};
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	generate.tokens = prompt;
	generate.n_tokens = 1;
	generate.max_tokens = 3;
	generate.flags = MIMEO_GENERATE_PROMPT_LOGITS;
	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	mimeo_submit(s->m);
	return session_pop(s);
}

static bool readable(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, 0) == 1;
}

/* ---- contents ---- */

static void test_tokens_come_once_each_however_completions_are_grouped(void **state)
{
	struct session *s = *state;
	const uint32_t steps[] = {1, 2, 7, 30};
	struct ring_sqe sqe = start_generate(s, 32);
	int32_t next = 11;

	for (size_t i = 0; i < 4; i++) {
		session_tokens(s, &sqe, steps[i]);
		assert_int_equal(session_peek(s), 1);
		assert_int_equal(s->event.kind, MIMEO_EVENT_TOKENS);
		assert_int_equal(s->event.user_data, 132);
		assert_int_equal(s->event.n_generated, steps[i]);
		for (uint32_t k = 0; k < s->event.n_tokens; k++)
			assert_int_equal(s->event.tokens[k], next++);
		session_seen(s);
	}
	assert_int_equal(next, 41);
	fake_write(&s->fake, &sqe, 32);
	struct ring_cqe cqe = fake_final(&sqe);
	cqe.n_generated = 32;
	cqe.n_prompt = 2;
	cqe.finish = MIMEO_FINISH_LENGTH;
	fake_push(&s->fake, &cqe);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(s->event.finish, MIMEO_FINISH_LENGTH);
	assert_int_equal(s->event.n_prompt, 2);
	assert_int_equal(s->event.n_generated, 32);
	assert_int_equal(s->event.n_tokens, 2);
	assert_int_equal(s->event.tokens[1], 42);
	assert_null(s->event.logits);
}

static void test_progress_without_new_tokens_is_no_event(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 4);

	session_tokens(s, &sqe, 0);
	assert_int_equal(session_peek(s), 0);
}

static void test_peek_gives_the_same_event_until_it_is_seen(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 4);

	session_tokens(s, &sqe, 1);
	session_tokens(s, &sqe, 3);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.n_generated, 1);
	session_seen(s);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.n_generated, 3);
}

static void test_seen_twice_drops_no_other_event(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 4);
	struct mimeo_event first, second;

	session_tokens(s, &sqe, 1);
	session_tokens(s, &sqe, 3);
	mimeo_event_peek(s->m, &first);
	mimeo_event_seen(s->m, &first);
	mimeo_event_peek(s->m, &second);
	mimeo_event_seen(s->m, &first);
	assert_int_equal(session_peek(s), 1);
	assert_int_equal(s->event.n_generated, 3);
}

static void test_prompt_logits_come_with_the_final_event(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_with_logits(s);

	assert_true(fake_answer(&s->fake, &sqe));
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.n_rows, 1);
	for (uint32_t i = 0; i < FAKE_VOCAB; i++)
		assert_true(s->event.logits[i] == (float)i);
}

static void test_logits_that_were_never_computed_are_not_given(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_with_logits(s);

	session_final(s, &sqe, MIMEO_E_DEADLINE);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.status, MIMEO_E_DEADLINE);
	assert_int_equal(s->event.finish, MIMEO_FINISH_ERROR);
	assert_null(s->event.logits);
	assert_int_equal(s->event.n_rows, 0);
}

static void test_refusal_carries_status_and_detail(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 4);
	struct ring_cqe cqe = fake_final(&sqe);
	char text[100];

	cqe.status = MIMEO_E_TOO_LONG;
	cqe.detail = RING_DETAIL_LENGTH;
	cqe.values[0] = 900;
	cqe.values[1] = 512;
	fake_push(&s->fake, &cqe);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.status, MIMEO_E_TOO_LONG);
	mimeo_event_message(&s->event, text, sizeof(text));
	assert_string_equal(text, "900 tokens in all, with the sequence's and max_tokens: the model's "
		"sequences have at most 512");
}

static void test_cancel_has_an_event_of_its_own(void **state)
{
	struct session *s = *state;

	struct mimeo_request *request = session_generate(s, 4);
	uint64_t id = mimeo_request_id(request);
	struct mimeo_request *cancel = mimeo_request_get(s->m);
	mimeo_request_set_data(cancel, 5);
	mimeo_request_prep_cancel(cancel, id);
	mimeo_submit(s->m);
	struct ring_sqe generate_sqe = session_pop(s), cancel_sqe = session_pop(s);
	fake_write(&s->fake, &generate_sqe, 2);
	struct ring_cqe cqe = fake_final(&generate_sqe);
	cqe.finish = MIMEO_FINISH_CANCELLED;
	cqe.n_generated = 2;
	fake_push(&s->fake, &cqe);
	session_final(s, &cancel_sqe, 0);

	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.finish, MIMEO_FINISH_CANCELLED);
	assert_int_equal(s->event.n_tokens, 2);
	session_seen(s);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.user_data, 5);
	assert_int_equal(s->event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(s->event.status, 0);
}

/* ---- waiting ---- */

static void test_wait_returns_zero_on_timeout(void **state)
{
	struct session *s = *state;

	assert_int_equal(mimeo_event_wait(s->m, &s->event, 0), 0);
	assert_int_equal(mimeo_event_wait(s->m, &s->event, 3), 0);
}

static void test_sleeping_wait_is_woken_by_the_doorbell(void **state)
{
	struct session *s = *state;

	fake_serve(&s->fake);
	for (uint32_t i = 0; i < 200; i++) {
		session_generate(s, 1 + i % 9);
		assert_int_equal(mimeo_submit(s->m), 1);
		assert_int_equal(session_wait(s), 1);
		assert_int_equal(s->event.n_generated, 1 + i % 9);
		session_seen(s);
	}
}

static void test_spinning_wait_finds_streams_of_many_requests(void **state)
{
	struct session *s = *state;
	uint32_t finals = 0, asked = 0, tokens = 0;

	fake_serve(&s->fake);
	while (finals < 500) {
		while (asked < 500 && asked - finals < 8) {
			session_generate(s, 10);
			asked++;
		}
		assert_in_range(mimeo_submit(s->m), 0, 8);
		assert_int_equal(session_wait(s), 1);
		for (uint32_t i = 0; i < s->event.n_tokens; i++)
			assert_int_equal(s->event.tokens[i],
				11 + s->event.n_generated - s->event.n_tokens + i);
		tokens += s->event.n_tokens;
		finals += s->event.kind == MIMEO_EVENT_FINAL;
		session_seen(s);
	}
	assert_int_equal(tokens, 5000);
}

static void on_alarm(int number)
{
}

static void test_signal_does_not_end_a_wait(void **state)
{
	struct session *s = *state;
	const struct sigaction action = {.sa_handler = on_alarm};
	const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};

	sigaction(SIGALRM, &action, NULL);
	uint64_t start = clock_ns();
	setitimer(ITIMER_REAL, &often, NULL);
	assert_int_equal(mimeo_event_wait(s->m, &s->event, 30), 0);
	setitimer(ITIMER_REAL, &never, NULL);
	assert_true(clock_ns() - start >= 29000000);
}

/* ---- the pollable fd ---- */

static void test_fd_is_quiet_until_a_completion_comes_after_peek(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 4);
	int fd = mimeo_fd(s->m);

	assert_int_equal(session_peek(s), 0);
	assert_false(readable(fd));
	session_tokens(s, &sqe, 1);
	assert_true(readable(fd));
	assert_int_equal(session_peek(s), 1);
	session_seen(s);
	assert_int_equal(session_peek(s), 0);
	assert_false(readable(fd));
	session_tokens(s, &sqe, 2);
	assert_true(readable(fd));
}

/* The daemon saw NEED_WAKEUP, but its ring arrives after the completion was taken. */
static void test_ring_that_comes_late_is_cleared_by_peeking(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 4);
	int fd = mimeo_fd(s->m);
	unsigned n = 0;

	assert_int_equal(session_peek(s), 0);
	session_tokens(s, &sqe, 1);
	assert_int_equal(session_peek(s), 1);
	session_seen(s);
	assert_int_equal(session_peek(s), 0);
	fake_ring(&s->fake);
	assert_true(readable(fd));
	while (readable(fd)) {
		assert_int_equal(session_peek(s), 0);
		assert_true(++n < 1000000);
	}
	session_tokens(s, &sqe, 2);
	assert_true(readable(fd));
}

static void test_peek_without_fd_makes_the_daemon_ring_nothing(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 4);

	for (uint32_t n = 1; n <= 4; n++) {
		assert_int_equal(session_peek(s), 0);
		session_tokens(s, &sqe, n);
		assert_int_equal(session_peek(s), 1);
		session_seen(s);
	}
	assert_int_equal(atomic_load(&s->fake.n_rings), 0);
}

static void test_daemon_does_not_ring_while_events_are_being_taken(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = start_generate(s, 32);

	mimeo_fd(s->m);
	assert_int_equal(session_peek(s), 0);
	session_tokens(s, &sqe, 1);
	assert_int_equal(session_peek(s), 1);
	for (uint32_t n = 2; n < 8; n++)
		session_tokens(s, &sqe, n);
	assert_int_equal(atomic_load(&s->fake.n_rings), 1);
}

static void test_polling_the_fd_misses_no_event(void **state)
{
	struct session *s = *state;

	fake_serve(&s->fake);
	struct pollfd fd = {.fd = mimeo_fd(s->m), .events = POLLIN};
	for (uint32_t done = 0; done < 300;) {
		struct mimeo_request *free_one = mimeo_request_get(s->m);
		if (free_one) {
			mimeo_request_put(free_one);
			session_generate(s, 5);
			mimeo_submit(s->m);
			continue;
		}
		while (session_peek(s) == 0)
			assert_int_equal(poll(&fd, 1, -1), 1);
		done += s->event.kind == MIMEO_EVENT_FINAL;
		session_seen(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test(test_tokens_come_once_each_however_completions_are_grouped),
		session_test(test_progress_without_new_tokens_is_no_event),
		session_test(test_peek_gives_the_same_event_until_it_is_seen),
		session_test(test_seen_twice_drops_no_other_event),
		session_test(test_prompt_logits_come_with_the_final_event),
		session_test(test_logits_that_were_never_computed_are_not_given),
		session_test(test_refusal_carries_status_and_detail),
		session_test(test_cancel_has_an_event_of_its_own),
		session_test(test_wait_returns_zero_on_timeout),
		session_test(test_sleeping_wait_is_woken_by_the_doorbell),
		session_test_with(test_spinning_wait_finds_streams_of_many_requests,
			.script.tokens_a_completion = 3, .spin_us = 20),
		session_test(test_signal_does_not_end_a_wait),
		session_test(test_fd_is_quiet_until_a_completion_comes_after_peek),
		session_test(test_ring_that_comes_late_is_cleared_by_peeking),
		session_test(test_peek_without_fd_makes_the_daemon_ring_nothing),
		session_test(test_daemon_does_not_ring_while_events_are_being_taken),
		session_test_with(test_polling_the_fd_misses_no_event,
			.script.tokens_a_completion = 1),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
