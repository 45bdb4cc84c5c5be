/* SPDX-License-Identifier: MIT */
#include "daemon/loop/bells.h"
#include "tests/loop/loop_fixture.h"

static int ring_without_aio(const char *name)
{
	const uint64_t all = UINT64_MAX - 1;
	struct loop *loop = NULL;
	int bell = eventfd(0, EFD_NONBLOCK), full = eventfd(0, EFD_NONBLOCK);

	refuse(SYS_io_setup);
	if (!name)
		refuse(SYS_io_uring_setup);
	if (loop_new(&loop, name ? name : "epoll") != 0 ||
		write(full, &all, sizeof(all)) != sizeof(all) || fcntl(full, F_SETFL, 0) < 0)
		return 1;
	for (int i = 0; i < 100; i++) {
		loop_ring(loop, full);
		loop_ring(loop, bell);
		loop_ring(loop, -1);
		loop_ring_flush(loop);
		if (bell_take(bell) != 1)
			return 2;
	}
	loop_free(loop);
	/* A counter above what write(2) can make it is how the kernel's own signal leaves it. */
	return bell_take(full) >= all ? 0 : 3;
}

static int ring_by_io_uring(void)
{
	return ring_without_aio("io_uring");
}

static int ring_by_write(void)
{
	return ring_without_aio(NULL);
}

static void test_loop_rings_where_aio_is_refused(void **state)
{
	if (strcmp(*state, "io_uring") == 0)
		in_child(ring_by_io_uring);
	else
		in_child(ring_by_write);
}

struct relay {
	struct loop *loop;
	int fd; /* rung by the loop's thread for each event */
	_Atomic bool stop;
	struct counter counter;
};

static void pass_on(void *userdata, struct loop_source *source, uint32_t events)
{
	struct relay *relay = userdata;

	count(&relay->counter, source, events);
	loop_ring(relay->loop, relay->fd);
}

static void *run_relay(void *userdata)
{
	struct relay *relay = userdata;

	while (!relay->stop) {
		assert_true(loop_run_once(relay->loop, -1) >= 0);
		loop_ring_flush(relay->loop);
	}
	return NULL;
}

/* Filled here, run there, ended by a wake, freed here: as the daemon uses it. */
static void test_loop_made_by_one_thread_runs_on_another(void **state)
{
	struct relay relay = { .loop = *state, .fd = bell_new() };
	struct pollfd answer = { .fd = relay.fd, .events = POLLIN };
	int fd = bell_new();
	pthread_t thread;

	assert_int_equal(loop_add(relay.loop, fd, EPOLLIN, pass_on, &relay, &relay.counter.source), 0);
	assert_int_equal(pthread_create(&thread, NULL, run_relay, &relay), 0);
	for (int i = 0; i < 200; i++) {
		bell_add(fd, 1);
		assert_int_equal(poll(&answer, 1, PATIENCE_MS), 1);
		assert_int_not_equal(bell_take(relay.fd), 0);
	}
	relay.stop = true;
	loop_wake(relay.loop);
	assert_int_equal(pthread_join(thread, NULL), 0);
	loop_remove(relay.loop, relay.counter.source);
	close(relay.fd);
	close(fd);
}

static void test_loop_ring_adds_to_every_doorbell_by_the_flush(void **state)
{
	enum { N = 700 }; /* more than any batch */
	struct loop *loop = *state;
	int fds[N];

	for (int i = 0; i < N; i++)
		fds[i] = bell_new();
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < N; i++)
			loop_ring(loop, fds[i]);
		loop_ring_flush(loop);
		for (int i = 0; i < N; i++)
			assert_int_equal(bell_take(fds[i]), 1);
	}
	for (int i = 0; i < N; i++)
		close(fds[i]);
}

static void test_loop_ring_of_a_full_doorbell_does_not_block(void **state)
{
	struct loop *loop = *state;
	int full = bell_new(), other = bell_new();

	bell_add(full, UINT64_MAX - 1);
	set_blocking(full);
	for (int i = 0; i < 1000; i++) {
		loop_ring(loop, full);
		loop_ring(loop, other);
		loop_ring_flush(loop);
		assert_int_equal(bell_take(other), 1);
	}
	close(full);
	close(other);
}

static void test_loop_ring_reaches_a_doorbell_made_blocking(void **state)
{
	struct loop *loop = *state;
	struct pollfd answer = { .fd = bell_new(), .events = POLLIN };

	set_blocking(answer.fd);
	for (int i = 0; i < 100; i++) {
		loop_ring(loop, answer.fd);
		loop_ring_flush(loop);
		assert_int_equal(poll(&answer, 1, PATIENCE_MS), 1);
		bell_take(answer.fd);
	}
	close(answer.fd);
}

/* A client that jams its doorbell and dies must not silence the next one with the same number. */
static void test_loop_ring_of_a_jammed_doorbell_leaves_its_number_to_a_new_one(void **state)
{
	struct loop *loop = *state;
	int fd = bell_new();

	for (int round = 0; round < 20; round++) {
		int again;

		bell_add(fd, UINT64_MAX - 1);
		set_blocking(fd);
		for (int i = 0; i < 12; i++) {
			loop_ring(loop, fd);
			loop_ring_flush(loop);
		}
		close(fd);
		again = bell_new();
		assert_int_equal(again, fd);
		loop_ring(loop, fd);
		loop_ring_flush(loop);
		assert_int_equal(bell_take(fd), 1);
	}
	close(fd);
}

static void test_loop_ring_of_a_closed_fd_spoils_nothing(void **state)
{
	struct loop *loop = *state;
	int closed = bell_new(), other = bell_new();

	close(closed);
	loop_ring(loop, -1);
	loop_ring(loop, closed);
	loop_ring(loop, other);
	loop_ring_flush(loop);
	assert_int_equal(bell_take(other), 1);
	close(other);
}

/* The kernel has no memory for a request. */
static bool kernel_refuses;
long __real_syscall(long number, ...);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	if (number == SYS_io_submit && kernel_refuses) {
		errno = EAGAIN;
		return -1;
	}
	return __real_syscall(number, a, b, c, d, e, f);
}

static void test_loop_ring_that_found_no_memory_is_made_good_by_the_next_flush(void **state)
{
	struct loop *loop = *state;
	int bells[BELLS_BATCH];

	kernel_refuses = true;
	for (uint32_t i = 0; i < BELLS_BATCH; i++) {
		bells[i] = bell_new();
		loop_ring(loop, bells[i]);
	}
	loop_ring_flush(loop);
	loop_ring(loop, bells[0]); /* there is no place for it */
	kernel_refuses = false;
	loop_ring_flush(loop);
	for (uint32_t i = 0; i < BELLS_BATCH; i++) {
		assert_int_equal(bell_take(bells[i]), 1);
		close(bells[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH_NAMES(test_loop_rings_where_aio_is_refused),
		BOTH(test_loop_made_by_one_thread_runs_on_another),
		BOTH(test_loop_ring_adds_to_every_doorbell_by_the_flush),
		BOTH(test_loop_ring_of_a_full_doorbell_does_not_block),
		BOTH(test_loop_ring_reaches_a_doorbell_made_blocking),
		BOTH(test_loop_ring_of_a_jammed_doorbell_leaves_its_number_to_a_new_one),
		BOTH(test_loop_ring_of_a_closed_fd_spoils_nothing),
		BOTH(test_loop_ring_that_found_no_memory_is_made_good_by_the_next_flush),
	};

	return run_loop_tests("doorbells", tests, sizeof(tests) / sizeof(tests[0]));
}
