/* SPDX-License-Identifier: MIT */
#include "tests/loop/loop_fixture.h"

#include "ipc/clock.h"

/* ---- choice ---- */

static void test_loop_has_the_name_asked_for(void **state)
{
	struct loop *loop = loop_by_name(state);

	assert_string_equal(loop_name(loop), *state);
	if (strcmp(*state, "io_uring") == 0)
		assert_string_equal(loop_fallback_reason(loop), "");
	else
		assert_string_not_equal(loop_fallback_reason(loop), "");
	loop_free(loop);
}

static void test_loop_environment_names_the_default(void **state)
{
	struct loop *loop = loop_by_name(state);
	char *before = getenv("MIMEO_LOOP") ? strdup(getenv("MIMEO_LOOP")) : NULL;

	loop_free(loop);
	setenv("MIMEO_LOOP", *state, 1);
	assert_int_equal(loop_new(&loop, NULL), 0);
	assert_string_equal(loop_name(loop), *state);
	loop_free(loop);
	if (before)
		setenv("MIMEO_LOOP", before, 1);
	else
		unsetenv("MIMEO_LOOP");
	free(before);
}

static void test_loop_refuses_unknown_names(void **state)
{
	struct loop *loop = NULL;

	assert_int_equal(loop_new(&loop, "kqueue"), -EINVAL);
	assert_null(loop);
}

static int auto_without_io_uring(void)
{
	struct loop *loop = NULL;

	refuse(SYS_io_uring_setup);
	if (loop_new(&loop, "io_uring") != -ENOTSUP || loop)
		return 1;
	if (loop_new(&loop, "auto") != 0)
		return 2;
	if (strcmp(loop_name(loop), "epoll") != 0)
		return 3;
	if (strcmp(loop_fallback_reason(loop), "io_uring_setup: Operation not permitted") != 0)
		return 4;
	loop_free(loop);
	return 0;
}

static void test_loop_auto_falls_back_where_io_uring_is_refused(void **state)
{
	in_child(auto_without_io_uring);
}

/* Any system call but the last one kills the child. */
static int look_in_silence(void)
{
	struct loop *loop = NULL;

	if (loop_new(&loop, "io_uring") != 0)
		return 1;
	settle(loop);
	filter(SYS_exit_group, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
	for (int i = 0; i < 1000; i++) {
		if (loop_run_once(loop, 0) != 0)
			return 2;
	}
	return 0;
}

static void test_loop_look_at_io_uring_makes_no_system_call(void **state)
{
	in_child(look_in_silence);
}

/* ---- polls ---- */

static void test_loop_reports_readiness_from_before_the_add(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	int fd = bell_new();

	bell_add(fd, 1);
	assert_int_equal(loop_add(loop, fd, EPOLLIN, count, &counter, &counter.source), 0);
	run_until(loop, &counter, 1);
	assert_true(counter.events & EPOLLIN);
	bell_end(loop, &counter, fd);
}

static void test_loop_each_ring_of_an_unread_doorbell_is_an_event(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	int fd = bell_watch(loop, &counter);

	settle(loop);
	for (unsigned i = 0; i < 100; i++) {
		unsigned before = counter.n;

		bell_add(fd, 1);
		run_until(loop, &counter, before + 1);
		settle(loop);
	}
	assert_int_equal(bell_take(fd), 100);
	bell_end(loop, &counter, fd);
}

static void test_loop_is_quiet_without_news(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	int fd = bell_watch(loop, &counter);

	bell_add(fd, 1);
	run_until(loop, &counter, 1);
	settle(loop);
	assert_int_equal(loop_run_once(loop, 20), 0);
	bell_end(loop, &counter, fd);
}

static void *arm_and_end(void *loop)
{
	return (void *)(intptr_t)loop_run_once(loop, 0);
}

/* The kernel cancels the polls of a thread that ends. */
static void test_loop_watches_on_when_the_thread_that_armed_has_ended(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	int fd = bell_watch(loop, &counter);
	pthread_t thread;
	void *rc;

	assert_int_equal(pthread_create(&thread, NULL, arm_and_end, loop), 0);
	assert_int_equal(pthread_join(thread, &rc), 0);
	assert_null(rc);
	settle(loop);
	assert_int_equal(counter.n, 0);
	bell_add(fd, 1);
	run_until(loop, &counter, 1);
	assert_true(counter.events & EPOLLIN);
	bell_end(loop, &counter, fd);
}

static void test_loop_reports_hang_up(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(loop_add(loop, pair[0], EPOLLIN | EPOLLRDHUP, count, &counter,
				 &counter.source), 0);
	settle(loop);
	close(pair[1]);
	run_until(loop, &counter, 1);
	assert_true(counter.events & EPOLLHUP);
	loop_remove(loop, counter.source);
	close(pair[0]);
}

static void test_loop_refuses_a_closed_fd(void **state)
{
	struct loop *loop = *state;
	struct loop_source *source = NULL;
	int fd = bell_new();

	close(fd);
	assert_int_equal(loop_add(loop, fd, EPOLLIN, count, NULL, &source), -EBADF);
	assert_null(source);
}

static void test_loop_serves_thousands_of_sources(void **state)
{
	enum { N = 3000 };
	static struct counter counters[N];
	static int fds[N];
	struct loop *loop = *state;
	struct rlimit limit;
	int n = N;

	/* As many as this process may have. */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_cur < N + 64)
		n = (int)limit.rlim_cur - 64;
	assert_true(n > 100);
	for (int i = 0; i < n; i++) {
		counters[i] = (struct counter){ 0 };
		fds[i] = bell_watch(loop, &counters[i]);
	}
	for (unsigned round = 0; round < 3; round++) {
		unsigned before[N];

		settle(loop);
		for (int i = 0; i < n; i++) {
			before[i] = counters[i].n;
			bell_add(fds[i], 1);
		}
		for (int i = 0; i < n; i++)
			run_until(loop, &counters[i], before[i] + 1);
	}
	for (int i = 0; i < n; i++)
		bell_end(loop, &counters[i], fds[i]);
	assert_int_equal(loop_run_once(loop, 0), 0);
}

/* ---- removal ---- */

static void test_loop_removed_source_is_silent(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	int fd = bell_watch(loop, &counter);

	settle(loop);
	bell_add(fd, 1);
	loop_remove(loop, counter.source);
	assert_int_equal(loop_run_once(loop, 20), 0);
	assert_int_equal(counter.n, 0);
	close(fd);
}

static void test_loop_callback_may_remove_itself(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { .loop = loop };
	int fd = bell_new();

	assert_int_equal(loop_add(loop, fd, EPOLLIN, count_and_remove, &counter, &counter.victim), 0);
	bell_add(fd, 1);
	run_until(loop, &counter, 1);
	bell_add(fd, 1);
	assert_int_equal(loop_run_once(loop, 20), 0);
	assert_int_equal(counter.n, 1);
	close(fd);
}

/* Two sources ready in one turn, each removing the other: one callback runs, whichever comes first. */
static void test_loop_callback_may_remove_a_source_of_the_same_batch(void **state)
{
	struct loop *loop = *state;
	struct counter a = { .loop = loop }, b = { .loop = loop };
	int fds[2] = { bell_new(), bell_new() };

	assert_int_equal(loop_add(loop, fds[0], EPOLLIN, count_and_remove, &a, &b.victim), 0);
	assert_int_equal(loop_add(loop, fds[1], EPOLLIN, count_and_remove, &b, &a.victim), 0);
	bell_add(fds[0], 1);
	bell_add(fds[1], 1);
	while (a.n + b.n == 0)
		assert_true(loop_run_once(loop, PATIENCE_MS) >= 0);
	settle(loop);
	assert_int_equal(a.n + b.n, 1);
	close(fds[0]);
	close(fds[1]);
}

static void test_loop_reused_fd_belongs_to_its_new_source_only(void **state)
{
	struct loop *loop = *state;
	struct counter old = { 0 }, new = { 0 };
	int fd = bell_new();

	for (unsigned i = 0; i < 50; i++) {
		unsigned old_before, new_before = new.n;

		assert_int_equal(loop_add(loop, fd, EPOLLIN, count, &old, &old.source), 0);
		settle(loop);
		bell_add(fd, 1);
		old_before = old.n;
		bell_end(loop, &old, fd);
		assert_int_equal(bell_watch(loop, &new), fd);
		settle(loop);
		assert_int_equal(new.n, new_before);
		bell_add(fd, 1);
		run_until(loop, &new, new_before + 1);
		assert_int_equal(old.n, old_before);
		loop_remove(loop, new.source);
		bell_take(fd);
	}
	close(fd);
}

static void test_loop_removal_lets_go_of_the_file(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	struct pollfd peer = { .events = POLLIN };
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(loop_add(loop, pair[0], EPOLLIN, count, &counter, &counter.source), 0);
	settle(loop);
	loop_remove(loop, counter.source);
	close(pair[0]);
	peer.fd = pair[1];
	assert_int_equal(poll(&peer, 1, PATIENCE_MS), 1);
	assert_true(peer.revents & POLLHUP);
	close(pair[1]);
}

static void reenter(void *userdata, struct loop_source *source, uint32_t events)
{
	struct counter *counter = userdata;

	count(userdata, source, events);
	assert_int_equal(loop_run_once(counter->loop, 0), -EBUSY);
}

static void test_loop_refuses_to_run_inside_a_callback(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { .loop = loop };
	int fd = bell_new();

	bell_add(fd, 1);
	assert_int_equal(loop_add(loop, fd, EPOLLIN, reenter, &counter, &counter.source), 0);
	run_until(loop, &counter, 1);
	close(fd);
}

/* ---- timers and waiting ---- */

static void test_loop_timer_ticks_on_its_grid(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	uint64_t start = now_ms();

	assert_int_equal(loop_add_timer(loop, 10, count, &counter, &counter.source), 0);
	for (unsigned i = 1; i <= 5; i++) {
		run_until(loop, &counter, i);
		assert_true(now_ms() - start + 1 >= 10 * i);
	}
	assert_int_equal(counter.events, 0);
}

static void test_loop_timer_ticks_while_a_source_is_busy(void **state)
{
	struct loop *loop = *state;
	struct counter ticks = { 0 }, rings = { 0 };
	int fd = bell_watch(loop, &rings);

	assert_int_equal(loop_add_timer(loop, 1, count, &ticks, &ticks.source), 0);
	for (uint64_t start = now_ms(); ticks.n < 3 && now_ms() - start < PATIENCE_MS;) {
		bell_add(fd, 1);
		assert_true(loop_run_once(loop, -1) > 0);
	}
	assert_true(ticks.n >= 3);
	close(fd);
}

static void test_loop_late_timer_ticks_once(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };

	assert_int_equal(loop_add_timer(loop, 50, count, &counter, &counter.source), 0);
	for (uint64_t start = now_ms(); now_ms() - start < 120;)
		;
	assert_int_equal(loop_run_once(loop, 0), 1);
	assert_int_equal(counter.n, 1);
}

static void test_loop_timer_may_remove_itself_and_others(void **state)
{
	struct loop *loop = *state;
	struct counter first = { .loop = loop }, second = { .loop = loop };

	assert_int_equal(loop_add_timer(loop, 1, count_and_remove, &first, &second.victim), 0);
	assert_int_equal(loop_add_timer(loop, 1, count_and_remove, &second, &first.victim), 0);
	while (first.n + second.n == 0)
		assert_true(loop_run_once(loop, PATIENCE_MS) >= 0);
	assert_int_equal(first.n + second.n, 1);
	if (first.n)
		loop_remove(loop, second.victim);
	else
		loop_remove(loop, first.victim);
	assert_int_equal(loop_run_once(loop, 10), 0);
	assert_int_equal(first.n + second.n, 1);
}

static void test_loop_refuses_impossible_periods(void **state)
{
	struct loop *loop = *state;
	struct loop_source *source = NULL;

	assert_int_equal(loop_add_timer(loop, 0, count, NULL, &source), -EINVAL);
	assert_int_equal(loop_add_timer(loop, UINT64_MAX, count, NULL, &source), -EINVAL);
	assert_null(source);
}

static void test_loop_wait_ends_in_time(void **state)
{
	struct loop *loop = *state;
	uint64_t waited = 0;

	/* The kernel may interrupt a wait for work of its own, seldom twice. */
	for (int i = 0; i < 5 && waited + 1 < 30; i++) {
		uint64_t start = now_ms();

		assert_int_equal(loop_run_once(loop, 30), 0);
		waited = now_ms() - start;
	}
	assert_true(waited + 1 >= 30);
}

/* On a busy machine some of them end late. */
static void test_loop_wait_below_a_millisecond_is_not_rounded_up(void **state)
{
	struct loop *loop = *state;
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 50; i++) {
		uint64_t start = clock_ns(), waited;

		assert_int_equal(loop_run_for(loop, 200000), 0);
		waited = clock_ns() - start;
		least = waited < least ? waited : least;
	}
	assert_in_range(least, 100000, 999999);
}

static void test_loop_wait_below_a_millisecond_ends_with_an_event(void **state)
{
	struct loop *loop = *state;
	struct counter counter = { 0 };
	int fd = bell_watch(loop, &counter);

	settle(loop);
	bell_add(fd, 1);
	for (uint64_t end = clock_ns() + PATIENCE_MS * 1000000ull; counter.n == 0;) {
		assert_true(clock_ns() < end);
		assert_true(loop_run_for(loop, 500000) >= 0);
	}
	assert_int_equal(counter.n, 1);
	bell_end(loop, &counter, fd);
}

static void test_loop_wake_before_the_wait_ends_it(void **state)
{
	struct loop *loop = *state;

	for (int i = 0; i < 10; i++) {
		loop_wake(loop);
		assert_int_equal(loop_run_once(loop, -1), 0);
	}
}

static struct loop *signalled;

static void on_signal(int number)
{
	loop_wake(signalled);
}

static void test_loop_wake_works_from_a_signal_handler(void **state)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, before;

	signalled = *state;
	assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
	settle(signalled);
	errno = E2BIG;
	raise(SIGUSR1);
	assert_int_equal(errno, E2BIG);
	assert_int_equal(loop_run_once(signalled, -1), 0);
	sigaction(SIGUSR1, &before, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH_NAMES(test_loop_has_the_name_asked_for),
		BOTH_NAMES(test_loop_environment_names_the_default),
		cmocka_unit_test(test_loop_refuses_unknown_names),
		cmocka_unit_test(test_loop_auto_falls_back_where_io_uring_is_refused),
		{ "test_loop_look_at_io_uring_makes_no_system_call",
			test_loop_look_at_io_uring_makes_no_system_call, NULL, NULL,
			(void *)"io_uring" },
		BOTH(test_loop_reports_readiness_from_before_the_add),
		BOTH(test_loop_each_ring_of_an_unread_doorbell_is_an_event),
		BOTH(test_loop_is_quiet_without_news),
		BOTH(test_loop_watches_on_when_the_thread_that_armed_has_ended),
		BOTH(test_loop_reports_hang_up),
		BOTH(test_loop_refuses_a_closed_fd),
		BOTH(test_loop_serves_thousands_of_sources),
		BOTH(test_loop_removed_source_is_silent),
		BOTH(test_loop_callback_may_remove_itself),
		BOTH(test_loop_callback_may_remove_a_source_of_the_same_batch),
		BOTH(test_loop_reused_fd_belongs_to_its_new_source_only),
		BOTH(test_loop_removal_lets_go_of_the_file),
		BOTH(test_loop_refuses_to_run_inside_a_callback),
		BOTH(test_loop_timer_ticks_on_its_grid),
		BOTH(test_loop_timer_ticks_while_a_source_is_busy),
		BOTH(test_loop_late_timer_ticks_once),
		BOTH(test_loop_timer_may_remove_itself_and_others),
		BOTH(test_loop_refuses_impossible_periods),
		BOTH(test_loop_wait_ends_in_time),
		BOTH(test_loop_wait_below_a_millisecond_is_not_rounded_up),
		BOTH(test_loop_wait_below_a_millisecond_ends_with_an_event),
		BOTH(test_loop_wake_before_the_wait_ends_it),
		BOTH(test_loop_wake_works_from_a_signal_handler),
	};

	return run_loop_tests("loop", tests, sizeof(tests) / sizeof(tests[0]));
}
