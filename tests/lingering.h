/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_LINGERING_H
#define MIMEO_TESTS_LINGERING_H

/*
 * A descriptor whose last close takes as long as its peer likes: a TCP socket with unsent data
 * that is told to linger (SO_LINGER), up to LINGER_SECONDS. Needs no privilege. Functions fail the
 * running test (cmocka).
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINGER_SECONDS 300 /* further than any patience of a test */

struct lingering {
	int fd;   /* the one to give away; -1: given */
	int peer; /* the other end, which does not read */
};

static inline void lingering_open(struct lingering *ret)
{
	static const char filling[4096];
	const struct linger linger = {.l_onoff = 1, .l_linger = LINGER_SECONDS};
	const int small = 4096;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(listener >= 0);
	assert_int_equal(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &length), 0);
	ret->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(setsockopt(ret->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	assert_int_equal(setsockopt(ret->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	assert_int_equal(connect(ret->fd, (struct sockaddr *)&address, sizeof(address)), 0);
	ret->peer = accept(listener, NULL, NULL);
	assert_true(ret->peer >= 0);
	close(listener);
	while (send(ret->fd, filling, sizeof(filling), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
	}
}

/* Let the close end: nothing is unsent any more. For one that was given away. */
static inline void lingering_let_go(struct lingering *lingering)
{
	static char bytes[65536];

	while (recv(lingering->peer, bytes, sizeof(bytes), 0) > 0) {
	}
	close(lingering->peer);
}

/* n bytes, and the descriptors in `fds` with the first of them. */
static inline ssize_t send_with_flags_status(int socket, const void *bytes, size_t n, const int *fds,
	size_t n_fds, int flags)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(253 * sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(n_fds * sizeof(int)),
	};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
	memcpy(CMSG_DATA(rights), fds, n_fds * sizeof(int));
	ssize_t sent = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
	return sent < 0 ? -errno : sent;
}

static inline void send_with_flags(int socket, const void *bytes, size_t n, const int *fds,
	size_t n_fds, int flags)
{
	assert_int_equal(
		send_with_flags_status(socket, bytes, n, fds, n_fds, flags), (ssize_t)n);
}

static inline void send_with(int socket, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
	send_with_flags(socket, bytes, n, fds, n_fds, 0);
}

/* Likewise, and the socket's message has the only copy; who reads it must not yet. */
static inline void lingering_give(
	struct lingering *lingering, int socket, const void *bytes, size_t n)
{
	send_with(socket, bytes, n, &lingering->fd, 1);
	close(lingering->fd);
	lingering->fd = -1;
}

#endif
