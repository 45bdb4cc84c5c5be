/* SPDX-License-Identifier: MIT */
#include "ipc/socket.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/cleanup.h"
#include "ipc/clock.h"
#include "ipc/msg.h"
#include "ipc/socket_address.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* ---- paths ---- */

static const char *socket_environment(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/* Copy what snprintf wrote, `length` being its result. */
static int socket_path_copy(char ret[static SOCKET_PATH_MAX], const char *path, int length)
{
	if (length < 0 || length >= SOCKET_PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(ret, path, (size_t)length + 1);
	return 0;
}

/* As snprintf. */
static int socket_path_print(char *buffer, size_t size, const char *path)
{
	const char *runtime = socket_environment("XDG_RUNTIME_DIR");

	if (!path)
		path = socket_environment("MIMEO_SOCKET");
	if (path)
		return snprintf(buffer, size, "%s", path);
	if (runtime)
		return snprintf(buffer, size, "%s/mimeo/mimeod.sock", runtime);
	return snprintf(buffer, size, "/run/mimeo/mimeod.sock");
}

int socket_path(char ret[static SOCKET_PATH_MAX], const char *path)
{
	char buffer[SOCKET_PATH_MAX];

	return socket_path_copy(ret, buffer, socket_path_print(buffer, sizeof(buffer), path));
}

size_t socket_path_bytes(const char *path)
{
	int n = socket_path_print(NULL, 0, path);

	return n > 0 ? (size_t)n : 0;
}

/* "x.sock" -> "x-WHAT.sock" */
static int socket_beside(char ret[static SOCKET_PATH_MAX], const char *client_path, const char *what)
{
	static const char suffix[] = ".sock";
	size_t stem = strlen(client_path);
	const char *tail = "";
	char buffer[SOCKET_PATH_MAX];

	if (stem >= SOCKET_PATH_MAX)
		return -ENAMETOOLONG;
	if (stem >= strlen(suffix) && strcmp(client_path + stem - strlen(suffix), suffix) == 0) {
		stem -= strlen(suffix);
		tail = suffix;
	}
	int n = snprintf(buffer, sizeof(buffer), "%.*s-%s%s", (int)stem, client_path, what, tail);
	return socket_path_copy(ret, buffer, n);
}

int socket_admin_path(char ret[static SOCKET_PATH_MAX], const char *client_path)
{
	return socket_beside(ret, client_path, "admin");
}

int socket_monitor_path(char ret[static SOCKET_PATH_MAX], const char *client_path)
{
	return socket_beside(ret, client_path, "monitor");
}

int socket_folder_make(const char *path)
{
	char folder[SOCKET_PATH_MAX];

	if (socket_environment("MIMEO_SOCKET"))
		return 0;
	int rc = socket_path(folder, NULL);
	if (rc < 0 || strcmp(path, folder) != 0)
		return 0;
	*strrchr(folder, '/') = '\0';
	if (mkdir(folder, 0755) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

int socket_address(struct sockaddr_un *ret, const char *path)
{
	size_t length = strlen(path);

	_Static_assert(sizeof(ret->sun_path) == SOCKET_PATH_MAX, "sun_path");
	if (length == 0)
		return -EINVAL;
	if (length >= sizeof(ret->sun_path))
		return -ENAMETOOLONG;
	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(ret->sun_path, path, length);
	return 0;
}

/* ---- time ---- */

static int64_t socket_now_ms(void)
{
	return (int64_t)(clock_ns() / 1000000);
}

/* Milliseconds until `deadline`, 0 if it has passed. */
static int socket_left_ms(int64_t deadline)
{
	int64_t left = deadline - socket_now_ms();

	if (left < 0)
		return 0;
	return left > INT_MAX ? INT_MAX : (int)left;
}

/* ---- connecting ---- */

/* Only a send timeout bounds the wait for a place in a full backlog; 0 would be no bound. */
static int socket_limit_sends(int fd, int ms)
{
	struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000L};

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)) < 0 ? -errno : 0;
}

static int socket_connect_until(int fd, const struct sockaddr_un *address, int64_t deadline)
{
	for (;;) {
		int ms = socket_left_ms(deadline);
		int rc = socket_limit_sends(fd, ms > 0 ? ms : 1);

		if (rc < 0)
			return rc;
		if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
			return socket_limit_sends(fd, 0);
		if (errno == EAGAIN || (errno == EINTR && ms == 0))
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

int socket_connect(const char *path, unsigned timeout_ms)
{
	struct sockaddr_un address;
	int rc = socket_address(&address, path);
	if (rc < 0)
		return rc;

	CLEANUP(cleanup_close) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	rc = socket_connect_until(fd, &address, socket_now_ms() + timeout_ms);
	if (rc < 0)
		return rc;
	return STEAL_FD(fd);
}

/* ---- what untrusted peers may send ---- */

void socket_keep_order(int fd)
{
	const int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
}

void socket_pass_rights(int fd, bool pass)
{
	const int value = pass;

	setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value));
}

/* ---- the peer ---- */

static int socket_peer_pidfd(int fd, pid_t pid)
{
	int pidfd = -1;
	socklen_t length = sizeof(pidfd);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
		return pidfd;
	/* Only if the kernel lacks the option: with any other error the peer is gone, and its pid may belong
	 * to another process. */
	if (errno != ENOPROTOOPT || pid <= 0)
		return -1;
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

int socket_peer(int fd, struct socket_peer *ret)
{
	struct ucred credentials;
	socklen_t length = sizeof(credentials);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0)
		return -errno;
	*ret = (struct socket_peer){
		.uid = credentials.uid,
		.pid = credentials.pid,
		.pidfd = socket_peer_pidfd(fd, credentials.pid),
	};
	return 0;
}

/* ---- messages ---- */

/* Write length and data; the first bytes carry all fds. As sendmsg, or -errno. */
static ssize_t socket_send_parts(
	int fd, struct iovec parts[static 2], const int *fds, size_t n_fds, int flags)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int) * SOCKET_FDS_MAX)];
	} control = {0};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

	assert(n_fds <= SOCKET_FDS_MAX);
	if (n_fds > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(rights), fds, sizeof(int) * n_fds);
	}
	ssize_t n;
	do
		n = sendmsg(fd, &message, MSG_NOSIGNAL | flags);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static int socket_send_flags(
	int fd, const void *data, size_t size, const int *fds, size_t n_fds, int flags)
{
	uint32_t length = htole32((uint32_t)size);
	struct iovec parts[] = {
		{.iov_base = &length, .iov_len = sizeof(length)},
		{.iov_base = (void *)(uintptr_t)data, .iov_len = size},
	};

	if (size > MSG_SOCKET_MAX)
		return -EMSGSIZE;
	if (n_fds > SOCKET_FDS_MAX)
		return -EINVAL;
	while (parts[0].iov_len + parts[1].iov_len > 0) {
		ssize_t n = socket_send_parts(fd, parts, fds, n_fds, flags);

		if (n < 0)
			return (int)n;
		n_fds = 0;
		assert((size_t)n <= parts[0].iov_len + parts[1].iov_len);
		for (size_t i = 0; i < 2; i++) {
			size_t sent = (size_t)n < parts[i].iov_len ? (size_t)n : parts[i].iov_len;

			parts[i].iov_base = (uint8_t *)parts[i].iov_base + sent;
			parts[i].iov_len -= sent;
			n -= (ssize_t)sent;
		}
	}
	return 0;
}

int socket_send(int fd, const void *data, size_t size, const int *fds, size_t n_fds)
{
	return socket_send_flags(fd, data, size, fds, n_fds, 0);
}

int socket_send_now(int fd, const void *data, size_t size, const int *fds, size_t n_fds)
{
	return socket_send_flags(fd, data, size, fds, n_fds, MSG_DONTWAIT);
}

int socket_parse_length(const uint8_t *bytes, size_t n, uint32_t most, uint32_t *ret_length)
{
	uint32_t length;

	if (n < sizeof(length))
		return 0;
	memcpy(&length, bytes, sizeof(length));
	length = *ret_length = le32toh(length);
	if (length == 0 || length > most)
		return -EMSGSIZE;
	if (n > sizeof(length) + length)
		return -EPROTO;
	return n == sizeof(length) + length;
}

/* The descriptors of one message, as far as it has arrived. */
struct socket_delivery {
	int fds[SOCKET_FDS_MAX];
	size_t n_fds, fds_max;
	bool surplus;
	bool lost; /* this process had no descriptor left for one */
};

static void socket_delivery_close(struct socket_delivery *delivery)
{
	while (delivery->n_fds > 0)
		close(delivery->fds[--delivery->n_fds]);
}

/* -EMFILE in the place of each descriptor that was lost. */
static void socket_delivery_fill(struct socket_delivery *delivery)
{
	while (delivery->lost && delivery->n_fds < delivery->fds_max)
		delivery->fds[delivery->n_fds++] = -EMFILE;
}

/* Keep or close every fd that the kernel installed, even if the message is refused. */
static void socket_delivery_take(struct socket_delivery *delivery, struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
			int fd;

			memcpy(&fd, (const uint8_t *)c + at, sizeof(fd));
			assert(fd >= 0 && delivery->fds_max <= SOCKET_FDS_MAX);
			if (delivery->n_fds < delivery->fds_max) {
				delivery->fds[delivery->n_fds++] = fd;
			} else {
				close(fd);
				delivery->surplus = true;
			}
		}
	}
}

static int socket_wait_readable(int fd, int64_t deadline)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	for (;;) {
		int left = socket_left_ms(deadline);
		int n = poll(&poll_fd, 1, left);

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0 || left == 0)
			return -ETIMEDOUT;
	}
}

/* Fill buffer[size]. 0 or -errno. */
static int socket_receive_all(
	int fd, void *buffer, size_t size, struct socket_delivery *delivery, int64_t deadline)
{
	for (size_t got = 0; got < size;) {
		union {
			struct cmsghdr align;
			uint8_t bytes[CMSG_SPACE(sizeof(int) * SOCKET_FDS_MAX)];
		} control;
		struct iovec rest = {.iov_base = (uint8_t *)buffer + got, .iov_len = size - got};
		struct msghdr message = {
			.msg_iov = &rest,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = sizeof(control),
		};

		int rc = socket_wait_readable(fd, deadline);
		if (rc < 0)
			return rc;
		ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			return -errno;
		socket_delivery_take(delivery, &message);
		delivery->lost |= message.msg_flags & MSG_CTRUNC;
		if (delivery->surplus || (delivery->lost && delivery->n_fds == delivery->fds_max))
			return -EPROTO;
		if (n == 0)
			return -ECONNRESET;
		got += (size_t)n;
		assert(got <= size);
	}
	return 0;
}

/* The length or -errno. */
static ssize_t socket_receive_message(
	int fd, void *buffer, size_t size, struct socket_delivery *delivery, int64_t deadline)
{
	uint32_t length;

	int rc = socket_receive_all(fd, &length, sizeof(length), delivery, deadline);
	if (rc < 0)
		return rc;
	length = le32toh(length);
	if (length > size)
		return -EMSGSIZE;
	rc = socket_receive_all(fd, buffer, length, delivery, deadline);
	return rc < 0 ? rc : (ssize_t)length;
}

ssize_t socket_receive(int fd, void *buffer, size_t size, int *ret_fds, size_t fds_max,
	size_t *ret_n_fds, unsigned timeout_ms)
{
	struct socket_delivery delivery = {
		.fds_max = fds_max < SOCKET_FDS_MAX ? fds_max : SOCKET_FDS_MAX};
	int64_t deadline = socket_now_ms() + timeout_ms;

	ssize_t length = socket_receive_message(fd, buffer, size, &delivery, deadline);
	if (length < 0) {
		socket_delivery_close(&delivery);
		return length;
	}
	socket_delivery_fill(&delivery);
	assert(delivery.n_fds <= fds_max);
	if (delivery.n_fds > 0)
		memcpy(ret_fds, delivery.fds, delivery.n_fds * sizeof(int));
	if (ret_n_fds)
		*ret_n_fds = delivery.n_fds;
	return length;
}
