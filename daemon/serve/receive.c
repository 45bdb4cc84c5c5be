/* SPDX-License-Identifier: MIT */
/*
 * What comes on a session's socket, until it is a whole call.
 *
 * The bytes may bring descriptors. Of a client that may not have its memory mapped none is taken: the
 * closer drops them. Of others one is kept for the call, and the closer has the rest.
 */
#include "daemon/serve/buffers.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utlist.h>

#include "ipc/status.h"

#define RIGHTS_MAX 253 /* SCM_MAX_FD: the kernel brings no more at a time, and so drops none */

/* Look at what has come. False if it broke the protocol. */
static bool call_advance(struct session *session)
{
	struct session_buffers *buffers = session->buffers;
	uint32_t length;

	if (buffers->busy) {
		session_break(session, "a call before the reply to the one before");
		return false;
	}
	if (buffers->n_call < sizeof(length))
		return true;
	memcpy(&length, buffers->call, sizeof(length));
	length = le32toh(length);
	if (length == 0 || length > MSG_CALL_MAX ||
		buffers->n_call > sizeof(length) + length) {
		session_break(session, "bytes on the socket that are no call");
		return false;
	}
	if (buffers->n_call == sizeof(length) + length)
		session_call(session, length);
	return !session->detaching;
}

/* Its user may send descriptors no more, before some have closed. */
static bool is_clogged(struct session *session)
{
	if (!serve_is_clogged(session->serve, session->port.uid))
		return false;
	session_break(session, "descriptors that its user sent do not close");
	return true;
}

/* Keep the first descriptor of the call. */
static bool rights_take(struct session *session, struct msghdr *message)
{
	struct session_buffers *buffers = session->buffers;
	struct closer *closer = session->serve->closer;
	bool surplus = false;
	uint32_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
			int fd;

			memcpy(&fd, (const uint8_t *)c + at, sizeof(fd));
			if (buffers->call_fd < 0) {
				buffers->call_fd = fd;
			} else {
				closer_take(closer, fd, session->port.uid);
				surplus = true;
			}
			n++;
		}
	}
	if (surplus)
		session_break(session, "more than one descriptor with a call");
	return !surplus && (n == 0 || !is_clogged(session));
}

static ssize_t receive_rights(struct session *session, void *bytes, size_t size)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(RIGHTS_MAX * sizeof(int))];
	} control;
	struct iovec part = {.iov_base = bytes, .iov_len = size};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n;

	do
		n = recvmsg(session->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (!rights_take(session, &message))
		return -EPROTO;
	/* There was room: the kernel had no number for it. Without it the call will be refused. */
	if (message.msg_flags & MSG_CTRUNC)
		serve_complain(session->serve, "session %u: no descriptor is left for what it sent",
			session->port.session);
	return n;
}

/* Bytes and descriptors, or that there are none now. */
static ssize_t receive(struct session *session)
{
	struct session_buffers *buffers = session->buffers;
	struct serve *serve = session->serve;
	uint8_t *bytes = buffers->call + buffers->n_call;
	size_t size = sizeof(buffers->call) - buffers->n_call;

	if (session_may_import(session))
		return receive_rights(session, bytes, size);
	ssize_t n = closer_peek_receive(session->fd, bytes, size);
	if (n != -EBADMSG)
		return n;
	if (is_clogged(session))
		return -EPROTO;
	session->dropping = closer_receive(serve->closer, session->fd, size, session->port.uid);
	if (!session->dropping)
		return -ENOMEM;
	serve->n_dropping++;
	return -EAGAIN;
}

/* False when the session is over. */
static bool take(struct session *session, ssize_t n)
{
	if (n == -EPROTO)
		return false;
	if (n <= 0) {
		session_detach(session, "its socket closed");
		return false;
	}
	session->buffers->n_call += (uint32_t)n;
	return call_advance(session);
}

void session_on_socket(void *userdata, struct loop_source *source, uint32_t events)
{
	struct session *session = userdata;

	(void)source;
	/* It need not be read for that. */
	if (session->dropping && events & (EPOLLRDHUP | EPOLLHUP))
		session_detach(session, "its socket closed");
	for (unsigned n_reads = 0; !session->dropping; n_reads++) {
		/* Somebody who is quick to call again has the loop's thread with the others. */
		if (n_reads == CALLS_A_TURN) {
			session->calls_more = session->serve->calls_more = true;
			return;
		}
		ssize_t n = receive(session);
		if (n == -EAGAIN || !take(session, n))
			return;
	}
}

void sessions_go_on(struct serve *serve)
{
	struct session *session;

	serve->calls_more = false;
	DL_FOREACH (serve->sessions, session) {
		if (!session->calls_more || session->detaching)
			continue;
		session->calls_more = false;
		session_on_socket(session, NULL, 0);
	}
}

void sessions_dropped(struct serve *serve)
{
	struct session *session;

	DL_FOREACH (serve->sessions, session) {
		struct session_buffers *buffers = session->buffers;
		ssize_t n;

		if (session->detaching || !session->dropping ||
			!closer_received(serve->closer, session->dropping,
				buffers->call + buffers->n_call, &n))
			continue;
		session->dropping = NULL;
		serve->n_dropping--;
		if (n == -EAGAIN || take(session, n))
			session_on_socket(session, NULL, 0);
	}
}
