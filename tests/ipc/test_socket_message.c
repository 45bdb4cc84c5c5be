/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/msg.h"
#include "ipc/socket.h"
#include "tests/ipc/socket_fixture.h"

static void pair_open(int ret[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ret), 0);
}

static void pair_close(const int pair[2])
{
	close(pair[0]);
	close(pair[1]);
}

static void test_socket_message_arrives_with_its_fds(void **state)
{
	int pair[2], sent[SOCKET_FDS_MAX], got[SOCKET_FDS_MAX];
	int fds = count_fds();
	char buffer[64];
	size_t n_fds = 99;

	pair_open(pair);
	for (unsigned i = 0; i < SOCKET_FDS_MAX; i++)
		sent[i] = eventfd(100 + i, EFD_CLOEXEC);
	assert_int_equal(socket_send(pair[0], "hello", 5, sent, SOCKET_FDS_MAX), 0);
	assert_int_equal(socket_send(pair[0], "there", 5, NULL, 0), 0);
	assert_int_equal(socket_receive(pair[1], buffer, sizeof(buffer), got, SOCKET_FDS_MAX,
				 &n_fds, LONG_MS),
		5);
	assert_memory_equal(buffer, "hello", 5);
	assert_int_equal(n_fds, SOCKET_FDS_MAX);
	for (unsigned i = 0; i < SOCKET_FDS_MAX; i++) {
		eventfd_t value;

		assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
		assert_int_equal(eventfd_read(got[i], &value), 0);
		assert_int_equal(value, 100 + i);
		close(got[i]);
		close(sent[i]);
	}
	assert_int_equal(socket_receive(pair[1], buffer, 5, NULL, 0, NULL, LONG_MS), 5);
	assert_memory_equal(buffer, "there", 5);
	pair_close(pair);
	assert_int_equal(count_fds(), fds);
}

static void *send_largest(void *data)
{
	uint8_t *bytes = malloc(MSG_SOCKET_MAX);
	int *fd = data;

	if (bytes) {
		for (size_t i = 0; i < MSG_SOCKET_MAX; i++)
			bytes[i] = (uint8_t)(i * 7);
		*fd = socket_send(*fd, bytes, MSG_SOCKET_MAX, NULL, 0);
	}
	free(bytes);
	return NULL;
}

static void test_socket_largest_message_passes_a_small_buffer_in_pieces(void **state)
{
	uint8_t *bytes = malloc(MSG_SOCKET_MAX);
	int pair[2], small = 4096;
	pthread_t thread;

	assert_non_null(bytes);
	pair_open(pair);
	assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	int sender = pair[0];
	assert_int_equal(pthread_create(&thread, NULL, send_largest, &sender), 0);
	ssize_t n = socket_receive(pair[1], bytes, MSG_SOCKET_MAX, NULL, 0, NULL, LONG_MS);
	pthread_join(thread, NULL);
	assert_int_equal(n, MSG_SOCKET_MAX);
	assert_int_equal(sender, 0);
	for (size_t i = 0; i < MSG_SOCKET_MAX; i++)
		assert_int_equal(bytes[i], (uint8_t)(i * 7));
	free(bytes);
	pair_close(pair);
}

static void test_socket_oversize_message_is_refused_on_both_ends(void **state)
{
	static uint8_t bytes[MSG_SOCKET_MAX + 1];
	char buffer[8];
	int pair[2];

	pair_open(pair);
	assert_int_equal(socket_send(pair[0], bytes, sizeof(bytes), NULL, 0), -EMSGSIZE);
	assert_int_equal(socket_send(pair[0], bytes, 9, NULL, 0), 0);
	assert_int_equal(
		socket_receive(pair[1], buffer, sizeof(buffer), NULL, 0, NULL, LONG_MS), -EMSGSIZE);
	pair_close(pair);

	/* a length that lies, with nothing behind it */
	pair_open(pair);
	assert_int_equal(write(pair[0], "\xff\xff\xff\xff", 4), 4);
	assert_int_equal(
		socket_receive(pair[1], bytes, sizeof(bytes), NULL, 0, NULL, LONG_MS), -EMSGSIZE);
	pair_close(pair);
}

static void test_socket_end_of_file_is_told_before_and_within_a_message(void **state)
{
	char buffer[64];
	int pair[2];

	for (size_t cut = 0; cut < 9; cut += 3) {
		pair_open(pair);
		assert_int_equal(write(pair[0], "\x05\0\0\0hello", cut), (ssize_t)cut);
		close(pair[0]);
		assert_int_equal(
			socket_receive(pair[1], buffer, sizeof(buffer), NULL, 0, NULL, LONG_MS),
			-ECONNRESET);
		close(pair[1]);
	}
}

static void test_socket_receive_gives_up_on_half_a_message(void **state)
{
	char buffer[64];
	int pair[2];

	pair_open(pair);
	assert_int_equal(write(pair[0], "\x05\0\0\0he", 6), 6);
	assert_int_equal(
		socket_receive(pair[1], buffer, sizeof(buffer), NULL, 0, NULL, 20), -ETIMEDOUT);
	assert_int_equal(
		socket_receive(pair[1], buffer, sizeof(buffer), NULL, 0, NULL, 0), -ETIMEDOUT);
	pair_close(pair);
}

static void test_socket_send_without_a_reader_raises_no_signal(void **state)
{
	int pair[2];

	pair_open(pair);
	close(pair[1]);
	assert_int_equal(socket_send(pair[0], "x", 1, NULL, 0), -EPIPE);
	close(pair[0]);
}

/* `n` fds in one message of the raw protocol. */
static void send_raw(int socket_fd, const void *data, size_t size, unsigned n)
{
	uint8_t control[CMSG_SPACE(sizeof(int) * 16)] __attribute__((aligned(8))) = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = CMSG_SPACE(sizeof(int) * n)};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	int fds[16];

	for (unsigned i = 0; i < n; i++)
		fds[i] = eventfd(0, EFD_CLOEXEC);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof(int) * n);
	memcpy(CMSG_DATA(rights), fds, sizeof(int) * n);
	assert_int_equal(sendmsg(socket_fd, &message, 0), (ssize_t)size);
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
}

static void test_socket_surplus_fds_are_refused_and_none_leaks(void **state)
{
	static const struct {
		unsigned sent, wanted;
	} cases[] = {{1, 0}, {3, 2}, {4, 3}, {5, 4}, {16, 4}, {16, 0}};
	int fds = count_fds();

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		int pair[2], got[SOCKET_FDS_MAX];
		size_t n_fds = 99;
		char buffer[8];

		pair_open(pair);
		send_raw(pair[0], "\x02\0\0\0hi", 6, cases[i].sent);
		assert_int_equal(socket_receive(pair[1], buffer, sizeof(buffer), got,
					 cases[i].wanted, &n_fds, LONG_MS),
			-EPROTO);
		assert_int_equal(n_fds, 99);
		pair_close(pair);
		assert_int_equal(count_fds(), fds);
	}
}

static void test_socket_fds_spread_over_a_message_count_together(void **state)
{
	int pair[2], got[SOCKET_FDS_MAX];
	int fds = count_fds();
	size_t n_fds = 0;
	char buffer[8];

	pair_open(pair);
	send_raw(pair[0], "\x04\0", 2, 1);
	send_raw(pair[0], "\0\0hi", 4, 1);
	send_raw(pair[0], "ho", 2, 1);
	assert_int_equal(
		socket_receive(pair[1], buffer, sizeof(buffer), got, 3, &n_fds, LONG_MS), 4);
	assert_memory_equal(buffer, "hiho", 4);
	assert_int_equal(n_fds, 3);
	for (size_t i = 0; i < n_fds; i++)
		close(got[i]);

	send_raw(pair[0], "\x04\0", 2, 2);
	send_raw(pair[0], "\0\0hiho", 6, 2);
	assert_int_equal(
		socket_receive(pair[1], buffer, sizeof(buffer), got, 3, &n_fds, LONG_MS), -EPROTO);
	pair_close(pair);
	assert_int_equal(count_fds(), fds);
}

/* The message is received, and descriptors that came are distinguished from those that were lost. */
static void test_socket_fds_without_a_number_here_are_told(void **state)
{
	int pair[2], got[SOCKET_FDS_MAX], sent[2] = {STDIN_FILENO, STDERR_FILENO};
	struct rlimit before, tight;
	size_t n_fds = 0;
	char buffer[8];

	pair_open(pair);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	tight = (struct rlimit){.rlim_cur = (rlim_t)pair[1] + 2, .rlim_max = before.rlim_max};
	assert_int_equal(socket_send(pair[0], "two", 3, sent, 2), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	ssize_t n = socket_receive(pair[1], buffer, sizeof(buffer), got, 3, &n_fds, LONG_MS);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(buffer, "two", 3);
	assert_int_equal(n_fds, 3);
	assert_true(got[0] >= 0);
	assert_int_equal(got[1], -EMFILE);
	assert_int_equal(got[2], -EMFILE);
	close(got[0]);
	pair_close(pair);
}

static void test_socket_errors_close_the_fds_that_came(void **state)
{
	int fds = count_fds();
	int pair[2], got[SOCKET_FDS_MAX];
	size_t n_fds;
	char buffer[8];

	/* too large, cut short by the end of file, and never finished */
	pair_open(pair);
	send_raw(pair[0], "\xff\0\0\0", 4, 4);
	assert_int_equal(socket_receive(pair[1], buffer, sizeof(buffer), got, 4, &n_fds, LONG_MS),
		-EMSGSIZE);
	pair_close(pair);
	pair_open(pair);
	send_raw(pair[0], "\x05\0\0\0", 4, 4);
	close(pair[0]);
	assert_int_equal(socket_receive(pair[1], buffer, sizeof(buffer), got, 4, &n_fds, LONG_MS),
		-ECONNRESET);
	close(pair[1]);
	pair_open(pair);
	send_raw(pair[0], "\x05\0", 2, 4);
	assert_int_equal(
		socket_receive(pair[1], buffer, sizeof(buffer), got, 4, &n_fds, 10), -ETIMEDOUT);
	pair_close(pair);
	assert_int_equal(count_fds(), fds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_socket_message_arrives_with_its_fds),
		cmocka_unit_test(test_socket_largest_message_passes_a_small_buffer_in_pieces),
		cmocka_unit_test(test_socket_oversize_message_is_refused_on_both_ends),
		cmocka_unit_test(test_socket_end_of_file_is_told_before_and_within_a_message),
		cmocka_unit_test(test_socket_receive_gives_up_on_half_a_message),
		cmocka_unit_test(test_socket_send_without_a_reader_raises_no_signal),
		cmocka_unit_test(test_socket_surplus_fds_are_refused_and_none_leaks),
		cmocka_unit_test(test_socket_fds_spread_over_a_message_count_together),
		cmocka_unit_test(test_socket_fds_without_a_number_here_are_told),
		cmocka_unit_test(test_socket_errors_close_the_fds_that_came),
	};

	return cmocka_run_group_tests_name("socket_message", tests, NULL, NULL);
}
