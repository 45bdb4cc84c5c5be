/* SPDX-License-Identifier: MIT */
#include "daemon/serve/closer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "daemon/loop/loop.h"
#include "ipc/clock.h"
#include "tests/lingering.h"

#define PATIENCE_MS 60000
#define HERE 1000u /* users */
#define N_CHUNK 1000
#define N_CHUNKS 50
#define THERE 1001u

static struct loop *loop;
static struct closer *group_closer; /* NULL after the last test */

static int setup(void **state)
{
	assert_int_equal(loop_new(&loop, NULL), 0);
	assert_int_equal(closer_new(&group_closer, loop), 0);
	*state = group_closer;
	return 0;
}

static int teardown(void **state)
{
	closer_free(group_closer);
	loop_free(loop);
	return 0;
}

static void await_closed(struct closer *closer, uid_t uid, uint32_t n)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	for (int ms = 0; closer_n_of(closer, uid) != n && ms < PATIENCE_MS; ms++)
		nanosleep(&pause, NULL);
	assert_int_equal(closer_n_of(closer, uid), n);
}

static bool is_hung_up(int fd, int ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLRDHUP};

	return poll(&poll_fd, 1, ms) == 1 && poll_fd.revents & (POLLRDHUP | POLLHUP);
}

static void pair(int ret[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ret), 0);
}

static void test_descriptor_is_closed(void **state)
{
	int fd = memfd_create("memfd", MFD_CLOEXEC);

	assert_true(fd >= 0);
	closer_take(*state, fd, HERE);
	await_closed(*state, HERE, 0);
	assert_int_equal(close(fd), -1);
}

static void test_close_that_takes_long_delays_no_other_thread(void **state)
{
	struct lingering lingering;

	lingering_open(&lingering);
	closer_take(*state, lingering.fd, HERE);
	assert_int_equal(closer_n_of(*state, HERE), 1);
	lingering_let_go(&lingering);
	await_closed(*state, HERE, 0);
}

/* Beyond the threads that one user may have. */
static void test_user_whose_closes_hang_delays_no_other(void **state)
{
	struct lingering hanging[CLOSER_THREADS_PER_UID + 4];
	struct lingering other;
	const size_t n = sizeof(hanging) / sizeof(hanging[0]);
	int sockets[2];

	for (size_t i = 0; i < n; i++) {
		lingering_open(&hanging[i]);
		closer_take(*state, hanging[i].fd, HERE);
	}
	lingering_open(&other);
	closer_take(*state, other.fd, THERE);
	pair(sockets);
	closer_take(*state, sockets[0], THERE);
	assert_true(is_hung_up(sockets[1], PATIENCE_MS));
	await_closed(*state, THERE, 1);
	lingering_let_go(&other);
	await_closed(*state, THERE, 0);
	assert_int_equal(closer_n_of(*state, HERE), n);
	for (size_t i = 0; i < n; i++)
		lingering_let_go(&hanging[i]);
	await_closed(*state, HERE, 0);
	close(sockets[1]);
}

/* A signal ends it, which is not sent before its time. */
static void test_close_that_takes_too_long_is_interrupted(void **state)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	struct lingering lingering;
	int ms = 0;

	lingering_open(&lingering);
	closer_take(*state, lingering.fd, HERE);
	closer_tick(*state);
	nanosleep(&pause, NULL);
	assert_int_equal(closer_n_of(*state, HERE), 1);
	for (; closer_n_of(*state, HERE) > 0 && ms < PATIENCE_MS; ms += 10) {
		nanosleep(&pause, NULL);
		closer_tick(*state);
	}
	assert_int_equal(closer_n_of(*state, HERE), 0);
	lingering_let_go(&lingering);
}

/* Thousands wait behind the threads that one user may have. */
static void test_adding_to_a_long_queue_costs_no_more_than_to_a_short_one(void **state)
{
	struct lingering hanging[CLOSER_THREADS_PER_UID];

	for (size_t i = 0; i < CLOSER_THREADS_PER_UID; i++) {
		lingering_open(&hanging[i]);
		closer_take(*state, hanging[i].fd, HERE);
	}
	uint64_t first = UINT64_MAX, last = UINT64_MAX;
	for (int chunk = 0; chunk < N_CHUNKS; chunk++) {
		uint64_t began = clock_ns(), *least = chunk < N_CHUNKS / 5 ? &first : &last;

		for (int i = 0; i < N_CHUNK; i++)
			closer_take(*state, -1, HERE); /* which close(2) refuses */
		uint64_t took = clock_ns() - began;
		if (chunk < N_CHUNKS / 5 || chunk >= N_CHUNKS - N_CHUNKS / 5)
			*least = took < *least ? took : *least;
	}
	assert_int_equal(closer_n_of(*state, HERE), N_CHUNKS * N_CHUNK + CLOSER_THREADS_PER_UID);
	/* A look at all of them each time would be some hundred times as much. */
	assert_true(last < 10 * first);
	for (size_t i = 0; i < CLOSER_THREADS_PER_UID; i++)
		lingering_let_go(&hanging[i]);
	await_closed(*state, HERE, 0);
}

static void test_connection_with_unread_bytes_is_closed_at_once(void **state)
{
	int sockets[2];

	pair(sockets);
	assert_int_equal(send(sockets[1], "unread", 6, 0), 6);
	closer_hang_up(*state, sockets[0], HERE);
	assert_int_equal(closer_n(*state), 0);
	assert_true(is_hung_up(sockets[1], 0));
	close(sockets[1]);
}

static void test_unread_descriptor_is_closed_by_a_closer_thread(void **state)
{
	struct lingering lingering;
	int sockets[2];

	pair(sockets);
	lingering_open(&lingering);
	assert_int_equal(send(sockets[1], "bytes ahead of it", 17, 0), 17);
	lingering_give(&lingering, sockets[1], "x", 1);
	closer_hang_up(*state, sockets[0], HERE);
	assert_true(is_hung_up(sockets[1], 0)); /* the peer does not wait for it either */
	assert_int_equal(send(sockets[1], "x", 1, MSG_NOSIGNAL), -1);
	assert_int_equal(closer_n(*state), 1);
	lingering_let_go(&lingering);
	await_closed(*state, HERE, 0);
	close(sockets[1]);
}

static void test_bytes_are_received_and_descriptors_are_not(void **state)
{
	struct lingering lingering;
	char bytes[16];
	int sockets[2];

	pair(sockets);
	assert_int_equal(closer_receive(sockets[0], bytes, sizeof(bytes), NULL), -EAGAIN);
	assert_int_equal(send(sockets[1], "hello", 5, 0), 5);
	assert_int_equal(closer_receive(sockets[0], bytes, sizeof(bytes), NULL), 5);
	assert_memory_equal(bytes, "hello", 5);
	lingering_open(&lingering);
	send_with(sockets[1], "fd", 2, &lingering.fd, 1);
	for (int i = 0; i < 2; i++)
		assert_int_equal(closer_receive(sockets[0], bytes, sizeof(bytes), NULL), -EBADMSG);
	/* Ours is the last copy again: it does not linger once it is read. */
	close(sockets[0]);
	assert_int_equal(send(sockets[1], "x", 1, MSG_NOSIGNAL), -1);
	close(sockets[1]);
	shutdown(lingering.fd, SHUT_WR);
	lingering_let_go(&lingering);
	close(lingering.fd);
}

/* The bytes ahead of it come along, and its message may be taken in two halves. */
static void test_one_descriptor_is_received_without_closing_it(void **state)
{
	struct closer *closer = *state;
	struct lingering lingering;
	char bytes[16];
	int sockets[2], fd;

	pair(sockets);
	assert_int_equal(send(sockets[1], "a ", 2, 0), 2);
	lingering_open(&lingering);
	lingering_give(&lingering, sockets[1], "call", 4);
	assert_int_equal(closer_receive(sockets[0], bytes, 4, &fd), 4);
	assert_memory_equal(bytes, "a ca", 4);
	assert_true(fd >= 0);
	closer_take(closer, fd, HERE);
	assert_int_equal(closer_receive(sockets[0], bytes, sizeof(bytes), &fd), 2);
	assert_memory_equal(bytes, "ll", 2);
	assert_int_equal(fd, -1);
	assert_int_equal(closer_receive(sockets[0], bytes, sizeof(bytes), &fd), -EAGAIN);
	/* The connection can end meanwhile. */
	assert_int_equal(closer_n(closer), 1);
	closer_hang_up(closer, sockets[0], HERE);
	assert_int_equal(closer_n(closer), 1);
	assert_true(is_hung_up(sockets[1], 0));
	lingering_let_go(&lingering);
	await_closed(closer, HERE, 0);
	close(sockets[1]);
}

static void test_more_descriptors_than_one_are_left_unread(void **state)
{
	struct lingering lingering;
	char bytes[16];
	int sockets[2], fd = -1;

	pair(sockets);
	lingering_open(&lingering);
	const int fds[] = {sockets[1], lingering.fd};
	send_with(sockets[1], "call", 4, fds, 2);
	close(lingering.fd);
	for (int i = 0; i < 2; i++)
		assert_int_equal(closer_receive(sockets[0], bytes, sizeof(bytes), &fd), -EBADMSG);
	assert_int_equal(fd, -1);
	closer_hang_up(*state, sockets[0], HERE);
	lingering_let_go(&lingering);
	await_closed(*state, HERE, 0);
	close(sockets[1]);
}

static void test_descriptor_without_a_number_is_left_unread(void **state)
{
	struct rlimit before, none;
	char bytes[16];
	int sockets[2], fd = -1;

	pair(sockets);
	send_with(sockets[1], "call", 4, &(int){STDERR_FILENO}, 1);
	getrlimit(RLIMIT_NOFILE, &before);
	none = before;
	none.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &none);
	ssize_t n = closer_receive(sockets[0], bytes, sizeof(bytes), &fd);
	setrlimit(RLIMIT_NOFILE, &before);
	assert_int_equal(n, -EMFILE);
	assert_int_equal(fd, -1);
	assert_int_equal(closer_receive(sockets[0], bytes, sizeof(bytes), &fd), 4);
	assert_true(fd >= 0);
	close(fd);
	close(sockets[0]);
	close(sockets[1]);
}

/* The closer of the group ends here. */
static void test_end_waits_for_hanging_closes_and_interrupts_them(void **state)
{
	struct lingering lingering;

	lingering_open(&lingering);
	closer_take(*state, lingering.fd, HERE);
	uint64_t before = clock_ns();
	closer_free(*state);
	group_closer = NULL;
	uint64_t ms = (clock_ns() - before) / 1000000;
	assert_in_range(ms, CLOSER_STOP_MS - 1, LINGER_SECONDS * 1000 / 2);
	lingering_let_go(&lingering);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_descriptor_is_closed),
		cmocka_unit_test(test_close_that_takes_long_delays_no_other_thread),
		cmocka_unit_test(test_user_whose_closes_hang_delays_no_other),
		cmocka_unit_test(test_close_that_takes_too_long_is_interrupted),
		cmocka_unit_test(test_adding_to_a_long_queue_costs_no_more_than_to_a_short_one),
		cmocka_unit_test(test_connection_with_unread_bytes_is_closed_at_once),
		cmocka_unit_test(test_unread_descriptor_is_closed_by_a_closer_thread),
		cmocka_unit_test(test_bytes_are_received_and_descriptors_are_not),
		cmocka_unit_test(test_one_descriptor_is_received_without_closing_it),
		cmocka_unit_test(test_more_descriptors_than_one_are_left_unread),
		cmocka_unit_test(test_descriptor_without_a_number_is_left_unread),
		cmocka_unit_test(test_end_waits_for_hanging_closes_and_interrupts_them),
	};

	return cmocka_run_group_tests_name("closer", tests, setup, teardown);
}
