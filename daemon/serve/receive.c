/* SPDX-License-Identifier: MIT */
/*
 * What comes on a session's socket, until it is a whole call.
 *
 * The bytes may bring descriptors. Then it is the closer that receives them, and the session waits: of
 * a client that may not have its memory mapped none is kept, of others one for the call.
 */
#include "daemon/serve/buffers.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utlist.h>

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

/* Bytes, or that there are none now. With descriptors beside them it is the closer that receives. */
static ssize_t receive(struct session *session)
{
	struct session_buffers *buffers = session->buffers;
	struct serve *serve = session->serve;
	uint8_t *bytes = buffers->call + buffers->n_call;
	size_t size = sizeof(buffers->call) - buffers->n_call;

	ssize_t n = closer_peek_receive(session->fd, bytes, size);
	if (n != -EBADMSG)
		return n;
	buffers->clogged |= serve_is_clogged(serve, session->port.uid);
	session->dropping = closer_receive(serve->closer, session->fd, size,
		session_may_import(session) && !buffers->clogged, session->port.uid);
	if (!session->dropping)
		return -ENOMEM;
	serve->n_dropping++;
	return -EAGAIN;
}

/* False when the session is over. */
static bool take(struct session *session, ssize_t n)
{
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
	session->hung_up |= events & (EPOLLRDHUP | EPOLLHUP);
	for (unsigned n_reads = 0; !session->dropping; n_reads++) {
		/* Somebody who is quick to call again has the loop's thread with the others. */
		if (n_reads == CALLS_A_TURN) {
			session->calls_more = session->serve->calls_more = true;
			return;
		}
		ssize_t n = receive(session);
		if (n == -EAGAIN && session->dropping)
			break;
		if (n == -EAGAIN || !take(session, n))
			return;
	}
	/* Its end is not waited for until the descriptors are dropped. */
	if (session->hung_up)
		session_detach(session, "its socket closed");
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

/* The call's descriptor, of which there is one. False when the session is over. */
static bool descriptor_take(struct session *session, const struct closer_result *result)
{
	struct session_buffers *buffers = session->buffers;
	bool surplus = result->surplus || (result->fd >= 0 && buffers->call_fd >= 0);

	if (result->fd >= 0 && buffers->call_fd < 0)
		buffers->call_fd = result->fd;
	else if (result->fd >= 0)
		closer_take(session->serve->closer, result->fd, session->port.uid);
	if (surplus)
		session_break(session, "more than one descriptor with a call");
	/* Without it the call will be refused. */
	if (result->lost)
		serve_complain(session->serve, "session %u: no descriptor is left for what it sent",
			session->port.session);
	return !surplus;
}

void sessions_dropped(struct serve *serve)
{
	struct session *session;

	DL_FOREACH (serve->sessions, session) {
		struct session_buffers *buffers = session->buffers;
		struct closer_result result;

		if (session->detaching || !session->dropping ||
			!closer_received(serve->closer, session->dropping,
				buffers->call + buffers->n_call, &result))
			continue;
		session->dropping = NULL;
		serve->n_dropping--;
		if (descriptor_take(session, &result) &&
			(result.n == -EAGAIN || take(session, result.n)))
			session_on_socket(session, NULL, 0);
	}
}
