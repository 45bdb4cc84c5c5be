/* SPDX-License-Identifier: MIT */
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/sdk/session.h"

/* Look until something comes; a spinner looks at the socket once a millisecond. */
static int spin_peek(struct session *s)
{
	int r;

	while ((r = session_peek(s)) == 0)
		;
	return r;
}

static void expect_gone(struct session *s, uint64_t user_data)
{
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(s->event.status, MIMEO_E_GONE);
	assert_int_equal(s->event.user_data, user_data);
	session_seen(s);
}

static void *hang_up_when_it_sleeps(void *argument)
{
	struct session *s = argument;
	struct ring_control *control = s->fake.region.ring.control;

	while (!atomic_load(&control->client_need_wakeup))
		usleep(100);
	fake_hang_up(&s->fake);
	return NULL;
}

static void test_wait_without_limit_ends_when_the_daemon_dies(void **state)
{
	struct session *s = *state;
	pthread_t killer;

	session_generate(s, 4);
	mimeo_submit(s->m);
	assert_int_equal(pthread_create(&killer, NULL, hang_up_when_it_sleeps, s), 0);
	expect_gone(s, 104);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
	pthread_join(killer, NULL);
}

static void test_wait_that_spins_forever_ends_when_the_daemon_dies(void **state)
{
	struct session *s = *state;

	fake_hang_up(&s->fake);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

static void test_peek_spinner_learns_that_the_daemon_died(void **state)
{
	struct session *s = *state;

	assert_int_equal(session_peek(s), 0);
	fake_hang_up(&s->fake);
	assert_int_equal(spin_peek(s), MIMEO_E_GONE);
}

static void test_fd_polls_readable_when_the_daemon_dies(void **state)
{
	struct session *s = *state;

	struct pollfd fd = {.fd = mimeo_fd(s->m), .events = POLLIN};
	assert_int_equal(session_peek(s), 0);
	fake_hang_up(&s->fake);
	assert_int_equal(poll(&fd, 1, -1), 1);
	assert_int_equal(spin_peek(s), MIMEO_E_GONE);
	assert_int_equal(poll(&fd, 1, 0), 1);
}

/* ---- a killed daemon, whose socket outlives it ---- */

static void *end_a_life_when_it_sleeps(void *argument)
{
	struct session *s = argument;
	struct ring_control *control = s->fake.region.ring.control;

	while (!atomic_load(&control->client_need_wakeup))
		usleep(100);
	fake_life_end(&s->fake, 1);
	return NULL;
}

static void test_sleeper_learns_of_a_death_before_the_socket_hangs_up(void **state)
{
	struct session *s = *state;
	pthread_t killer;

	session_generate(s, 4);
	mimeo_submit(s->m);
	assert_int_equal(pthread_create(&killer, NULL, end_a_life_when_it_sleeps, s), 0);
	expect_gone(s, 104);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
	pthread_join(killer, NULL);
}

static void test_spinner_learns_of_a_death_by_either_life(void **state)
{
	struct session *s = *state;

	fake_life_end(&s->fake, s->variant);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

static void test_peeker_learns_of_a_death_by_either_life(void **state)
{
	struct session *s = *state;

	assert_int_equal(session_peek(s), 0);
	fake_life_end(&s->fake, s->variant);
	assert_int_equal(spin_peek(s), MIMEO_E_GONE);
}

static void test_poller_learns_of_a_death_by_either_life(void **state)
{
	struct session *s = *state;
	struct pollfd fd = {.fd = mimeo_fd(s->m), .events = POLLIN};

	assert_int_equal(session_peek(s), 0);
	assert_int_equal(poll(&fd, 1, 0), 0);
	fake_life_end(&s->fake, s->variant);
	assert_int_equal(poll(&fd, 1, -1), 1);
	assert_int_equal(spin_peek(s), MIMEO_E_GONE);
}

static void *end_a_life_of(void *argument)
{
	struct session *s = argument;
	struct pollfd fd = {.fd = s->fake.socket, .events = POLLIN};

	assert_int_equal(poll(&fd, 1, -1), 1); /* the call */
	fake_life_end(&s->fake, 0);
	return NULL;
}

static void test_call_on_the_socket_ends_with_the_daemons_life(void **state)
{
	struct session *s = *state;
	uint32_t buffer;
	pthread_t killer;

	assert_int_equal(pthread_create(&killer, NULL, end_a_life_of, s), 0);
	assert_int_equal(
		mimeo_buffer_alloc(s->m, MIMEO_HANDLE_MEMFD, 4096, &buffer), MIMEO_E_GONE);
	pthread_join(killer, NULL);
}

/* A fence is recorded, and the daemon is dead before it completes. */
static void test_fence_wait_ends_with_the_daemons_life(void **state)
{
	struct session *s = *state;
	struct mimeo_handle fence = MIMEO_HANDLE_INIT;
	const uint32_t recorded = 1;

	fence.kind = MIMEO_HANDLE_MEMFD;
	fence.fd = memfd_create("fence", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fence.fd, sysconf(_SC_PAGESIZE)), 0);
	assert_int_equal(pwrite(fence.fd, &recorded, sizeof(recorded), 0), sizeof(recorded));
	assert_int_equal(mimeo_fence_wait(s->m, &fence, 1), 0);
	fake_life_end(&s->fake, 1);
	assert_int_equal(mimeo_fence_wait(s->m, &fence, -1), MIMEO_E_GONE);
	close(fence.fd);
}

static void test_session_goes_on_while_the_daemon_lives(void **state)
{
	struct session *s = *state;

	fake_serve(&s->fake);
	session_generate(s, 4);
	mimeo_submit(s->m);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.n_generated, 4);
}

static void test_each_request_in_flight_ends_once_read_or_not(void **state)
{
	struct session *s = *state;
	unsigned seen = 0;

	for (uint32_t i = 1; i <= 5; i++)
		session_generate(s, i);
	assert_int_equal(mimeo_submit(s->m), 5);
	session_pop(s);
	session_pop(s);
	fake_hang_up(&s->fake);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(session_wait(s), 1);
		assert_int_equal(s->event.status, MIMEO_E_GONE);
		assert_int_equal(s->event.finish, MIMEO_FINISH_ERROR);
		seen |= 1u << (s->event.user_data - 101);
		session_seen(s);
	}
	assert_int_equal(seen, 31);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
	assert_int_equal(session_peek(s), MIMEO_E_GONE);
}

static void test_what_the_daemon_posted_before_it_died_is_delivered(void **state)
{
	struct session *s = *state;

	session_generate(s, 4);
	session_generate(s, 3);
	mimeo_submit(s->m);
	struct ring_sqe first = session_pop(s), second = session_pop(s);
	session_tokens(s, &second, 2);
	assert_true(fake_answer(&s->fake, &first));
	fake_hang_up(&s->fake);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.user_data, 103);
	assert_int_equal(s->event.n_tokens, 2);
	session_seen(s);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.user_data, 104);
	assert_int_equal(s->event.status, 0);
	assert_int_equal(s->event.n_generated, 4);
	session_seen(s);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.user_data, 103);
	assert_int_equal(s->event.status, MIMEO_E_GONE);
	assert_int_equal(s->event.n_generated, 2);
	session_seen(s);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

static void test_completion_that_comes_after_the_end_is_ignored(void **state)
{
	struct session *s = *state;

	session_generate(s, 1);
	session_generate(s, 2);
	mimeo_submit(s->m);
	session_pop(s);
	struct ring_sqe second = session_pop(s);
	fake_hang_up(&s->fake);
	expect_gone(s, 101);
	assert_true(fake_answer(&s->fake, &second));
	expect_gone(s, 102);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

static void test_goodbye_on_the_socket_ends_the_session(void **state)
{
	struct session *s = *state;
	const uint8_t goodbye[] = {1, 0, 0, 0, 0x80};

	session_generate(s, 4);
	mimeo_submit(s->m);
	fake_say(&s->fake, goodbye, sizeof(goodbye));
	expect_gone(s, 104);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

static void test_sequence_calls_in_flight_end_without_events(void **state)
{
	struct session *s = *state;
	uint32_t id;

	mimeo_sequence_open(s->m, 0, &id);
	session_generate(s, 4);
	mimeo_submit(s->m);
	fake_hang_up(&s->fake);
	expect_gone(s, 104);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

static void test_every_call_says_gone_afterwards(void **state)
{
	struct session *s = *state;
	uint32_t id, more;

	mimeo_sequence_open(s->m, 0, &id);
	mimeo_submit(s->m);
	fake_hang_up(&s->fake);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
	assert_int_equal(mimeo_event_wait(s->m, &s->event, 0), MIMEO_E_GONE);
	assert_int_equal(mimeo_submit(s->m), MIMEO_E_GONE);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &more), MIMEO_E_GONE);
	assert_int_equal(mimeo_sequence_fork(s->m, id, &more), MIMEO_E_GONE);
	assert_int_equal(mimeo_sequence_truncate(s->m, id, 0), MIMEO_E_GONE);
	assert_int_equal(mimeo_sequence_close(s->m, id), MIMEO_E_GONE);
}

static void test_prepared_request_has_no_event_and_can_be_put_back(void **state)
{
	struct session *s = *state;

	struct mimeo_request *request = session_generate(s, 4);
	fake_hang_up(&s->fake);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
	assert_int_equal(mimeo_submit(s->m), MIMEO_E_GONE);
	mimeo_request_put(request);
	for (int i = 0; i < 8; i++)
		assert_non_null(mimeo_request_get(s->m));
}

static void test_connecting_again_is_all_it_takes(void **state)
{
	struct session *s = *state;
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	fake_hang_up(&s->fake);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
	mimeo_close(s->m);
	config.socket_path = s->fake.path;
	assert_int_equal(mimeo_connect(&s->m, &config), 0);
	fake_session(&s->fake);
	fake_serve(&s->fake);
	session_generate(s, 4);
	mimeo_submit(s->m);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.n_generated, 4);
}

/* ---- a daemon that breaks the protocol counts as gone ---- */

static void expect_broken_by(struct session *s, const struct ring_cqe *cqe)
{
	fake_push(&s->fake, cqe);
	expect_gone(s, 104);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
	session_stop(s);
}

static struct ring_cqe broken_start(struct session *s)
{
	session_start(s, NULL, NULL);
	session_generate(s, 4);
	mimeo_submit(s->m);
	struct ring_sqe sqe = session_pop(s);
	return fake_final(&sqe);
}

static void test_impossible_completion_ends_the_session(void **state)
{
	/* Added to a good completion. */
	static const struct ring_cqe wrong[] = {
		{.request = UINT32_MAX},                  /* of no request */
		{.request = 1, .generation = UINT32_MAX}, /* of an idle request */
		{.generation = UINT32_MAX},               /* of an older generation */
		{.n_generated = 5},                       /* more tokens than were requested */
		{.status = 1},                            /* positive */
		{.kind = 3 - RING_CQE_FINAL},             /* of a fence that was not requested */
		{.kind = 4 - RING_CQE_FINAL},             /* of no kind */
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct session s;
		struct ring_cqe cqe = broken_start(&s);

		cqe.request += wrong[i].request;
		cqe.generation += wrong[i].generation;
		cqe.n_generated += wrong[i].n_generated;
		cqe.status += wrong[i].status;
		cqe.kind = (uint8_t)(cqe.kind + wrong[i].kind);
		expect_broken_by(&s, &cqe);
	}
}

static void test_token_count_that_goes_back_ends_the_session(void **state)
{
	struct session s;
	struct ring_cqe cqe = broken_start(&s);

	cqe.kind = RING_CQE_TOKENS;
	cqe.n_generated = 3;
	fake_push(&s.fake, &cqe);
	assert_int_equal(session_wait(&s), 1);
	session_seen(&s);
	cqe.n_generated = 2;
	expect_broken_by(&s, &cqe);
}

static void test_completion_tail_that_jumps_ends_the_session(void **state)
{
	struct session s;

	broken_start(&s);
	atomic_store(&s.fake.region.ring.control->cq_tail, 1000);
	expect_gone(&s, 104);
	assert_int_equal(session_wait(&s), MIMEO_E_GONE);
	session_stop(&s);
}

/* One that spins does not look at the tail; now and then it does. */
static void test_completion_tail_that_jumps_ends_a_spinner(void **state)
{
	struct session *s = *state;

	atomic_store(&s->fake.region.ring.control->cq_tail, 1u << 20);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

/* All eight entries published and none taken; a head ahead of the tail frees nothing. */
static void test_submission_head_that_jumps_ends_the_session(void **state)
{
	struct session *s = *state;

	for (int i = 0; i < 8; i++)
		session_generate(s, 4);
	mimeo_submit(s->m);
	struct ring_sqe sqe;
	assert_true(ring_sq_pop(&s->fake.region.ring, &sqe));
	assert_true(fake_answer(&s->fake, &sqe));
	assert_int_equal(session_wait(s), 1);
	session_seen(s);
	session_generate(s, 4);
	atomic_store(&s->fake.region.ring.control->sq_head, 1000);
	mimeo_submit(s->m);
	for (int i = 0; i < 8; i++)
		expect_gone(s, 104);
	assert_int_equal(session_wait(s), MIMEO_E_GONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test(test_wait_without_limit_ends_when_the_daemon_dies),
		session_test_with(test_wait_that_spins_forever_ends_when_the_daemon_dies,
			.spin_us = MIMEO_SPIN_FOREVER),
		session_test(test_peek_spinner_learns_that_the_daemon_died),
		session_test(test_fd_polls_readable_when_the_daemon_dies),
		session_test_with(test_sleeper_learns_of_a_death_before_the_socket_hangs_up,
			.script.lives = true),
		session_test_with(test_spinner_learns_of_a_death_by_either_life,
			.script.lives = true, .spin_us = MIMEO_SPIN_FOREVER),
		session_test_with(test_spinner_learns_of_a_death_by_either_life,
			.script.lives = true, .spin_us = MIMEO_SPIN_FOREVER, .variant = 1),
		session_test_with(test_peeker_learns_of_a_death_by_either_life,
			.script.lives = true),
		session_test_with(test_peeker_learns_of_a_death_by_either_life,
			.script.lives = true, .variant = 1),
		session_test_with(test_poller_learns_of_a_death_by_either_life,
			.script.lives = true),
		session_test_with(test_poller_learns_of_a_death_by_either_life,
			.script.lives = true, .variant = 1),
		session_test_with(test_call_on_the_socket_ends_with_the_daemons_life,
			.script.lives = true),
		session_test_with(test_fence_wait_ends_with_the_daemons_life,
			.script.lives = true),
		session_test_with(test_session_goes_on_while_the_daemon_lives,
			.script.lives = true),
		session_test(test_each_request_in_flight_ends_once_read_or_not),
		session_test(test_what_the_daemon_posted_before_it_died_is_delivered),
		session_test(test_completion_that_comes_after_the_end_is_ignored),
		session_test(test_goodbye_on_the_socket_ends_the_session),
		session_test(test_sequence_calls_in_flight_end_without_events),
		session_test(test_every_call_says_gone_afterwards),
		session_test(test_prepared_request_has_no_event_and_can_be_put_back),
		session_test(test_connecting_again_is_all_it_takes),
		cmocka_unit_test(test_impossible_completion_ends_the_session),
		cmocka_unit_test(test_token_count_that_goes_back_ends_the_session),
		cmocka_unit_test(test_completion_tail_that_jumps_ends_the_session),
		session_test_with(test_completion_tail_that_jumps_ends_a_spinner,
			.spin_us = MIMEO_SPIN_FOREVER),
		session_test(test_submission_head_that_jumps_ends_the_session),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
