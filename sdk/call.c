/* SPDX-License-Identifier: MIT */
#include "sdk/call.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/cleanup.h"
#include "ipc/socket.h"
#include "sdk/client.h"

#define REPLY_MS 5000u /* for the rest of a reply that has begun */

int call_refuse(struct mimeo *m, int status, const char *text)
{
	snprintf(m->call_message, sizeof(m->call_message), "%s", text);
	return status;
}

int call_lose_daemon(struct mimeo *m)
{
	m->gone = true;
	return MIMEO_E_GONE;
}

/* Wait until the socket has something, or the daemon is dead. */
static bool call_await_reply(const struct mimeo *m)
{
	struct pollfd fds[CLIENT_WATCHED];

	client_watch(m, POLLIN, fds);
	while (poll(fds, CLIENT_WATCHED, -1) < 0) {
		if (errno != EINTR)
			return false;
	}
	return fds[0].revents & POLLIN;
}

/* The status of a send that failed because of the descriptor, which the kernel refuses before it sends any
 * byte; else 0. */
static int call_send_status(struct mimeo *m, int error)
{
	if (error == -EBADF || error == -EINVAL)
		return call_refuse(m, MIMEO_E_INVALID, "the handle's descriptor cannot be sent");
	/* SO_PASSRIGHTS is off. */
	if (error == -EPERM)
		return call_refuse(m, MIMEO_E_DENIED,
			"the daemon accepts no descriptors from clients: see allow_client_ipc");
	if (error == -ETOOMANYREFS)
		return call_refuse(m, MIMEO_E_NO_MEMORY,
			"too many descriptors of this user are in flight");
	return 0;
}

/* The reply, as it came: 0 or a status. ret_fds[i] are -1, descriptors, or -EMFILE. */
static int call_receive(struct mimeo *m, struct msg_reply *ret, int *ret_fds, size_t fds_max)
{
	uint8_t bytes[MSG_CALL_MAX];
	struct msg_detail detail;
	size_t n_fds = 0;
	ssize_t n = socket_receive(m->socket, bytes, sizeof(bytes), ret_fds, fds_max, &n_fds, REPLY_MS);

	if (n < 0)
		return call_lose_daemon(m);
	assert(n_fds <= fds_max);
	if (msg_reply_decode(m->codec, bytes, (size_t)n, ret, &detail) < 0)
		return call_lose_daemon(m);
	if (ret->status < 0)
		return call_refuse(m, ret->status, ret->text);
	for (size_t i = 0; i < n_fds; i++) {
		if (ret_fds[i] == -EMFILE)
			return call_refuse(m, MIMEO_E_NO_MEMORY, "this process has no descriptor left");
	}
	return 0;
}

static void call_close(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		cleanup_close(&fds[i]);
		fds[i] = -1;
	}
}

int call_daemon(struct mimeo *m, const struct msg_call *msg, int fd, struct msg_reply *ret, int *ret_fds,
	size_t fds_max)
{
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_call_encode(msg, bytes, sizeof(bytes));

	memset(ret_fds, -1, fds_max * sizeof(*ret_fds));
	m->call_message[0] = '\0';
	if (m->gone)
		return MIMEO_E_GONE;
	if (n < 0)
		return call_refuse(m, MIMEO_E_INVALID, "a value out of range");
	int rc = socket_send(m->socket, bytes, (size_t)n, &fd, fd >= 0);
	int status = fd >= 0 ? call_send_status(m, rc) : 0;
	if (status < 0)
		return status;
	if (rc < 0 || !call_await_reply(m))
		return call_lose_daemon(m);
	rc = call_receive(m, ret, ret_fds, fds_max);
	if (rc < 0)
		call_close(ret_fds, fds_max);
	return rc;
}
