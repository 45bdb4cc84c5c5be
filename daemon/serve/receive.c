/* SPDX-License-Identifier: MIT */
/*
 * Receives calls on a session's socket.
 *
 * A call carries at most one descriptor. If the client may not import memory, or its user has too many
 * pending closes, the descriptor is closed and the call refused with the reason.
 */
#include "daemon/serve/receive.h"

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utlist.h>

#include "daemon/output/log.h"
#include "daemon/serve/buffers.h"
#include "daemon/serve/calls.h"

#define CALLS_A_TURN 8u /* of one session */

/* Do the call once it is whole. False if the session is over. */
static bool receive_call(struct session *session)
{
	struct session_buffers *buffers = session->buffers;
	uint32_t length;

	if (buffers->busy) {
		session_break(session, "a call before the reply to the previous call");
		return false;
	}
	int rc = socket_parse_length(buffers->call, buffers->n_call, MSG_CALL_MAX, &length);
	if (rc < 0) {
		session_break(session, "bytes on the socket that are not a call");
		return false;
	}
	if (rc > 0)
		calls_do(session, length);
	return !session->detaching;
}

/* Keep the call's descriptor, or close it. False if it broke the protocol. */
static bool receive_keep(struct session *session, int fd)
{
	struct session_buffers *buffers = session->buffers;
	bool wanted = calls_may_import(session) && !buffers->clogged;

	assert(fd >= 0);
	if (wanted && buffers->call_fd < 0) {
		buffers->call_fd = fd;
		return true;
	}
	closer_take(session->serve->closer, fd, session->port.uid);
	if (wanted)
		session_break(session, "more than one descriptor with a call");
	return !wanted;
}

/* Bytes of a call; 0 at the end of the connection; -EAGAIN if there are none now, or none that may be
 * taken now; another error if the session is over. */
static ssize_t receive_some(struct session *session)
{
	struct session_buffers *buffers = session->buffers;
	uint8_t *bytes = buffers->call + buffers->n_call;
	size_t size = sizeof(buffers->call) - buffers->n_call;
	int fd = -1;

	assert(buffers->n_call < sizeof(buffers->call));
	ssize_t n = closer_receive(session->fd, bytes, size, NULL);
	if (n != -EBADMSG)
		return n;
	if (closer_is_full(session->serve->closer, session->port.uid)) {
		buffers->clogged = true;
		session->stalled = session->serve->calls_stalled = true;
		return -EAGAIN;
	}
	n = closer_receive(session->fd, bytes, size, &fd);
	if (n == -EBADMSG)
		session_break(session, "more than one descriptor with a call");
	if (n == -EMFILE) { /* the message stays in the socket, and is read again */
		log_limited(&session->serve->complaints, LOG_LEVEL_WARN,
			"calls with descriptors wait: the daemon has no free file descriptor; see RLIMIT_NOFILE");
		session->stalled = session->serve->calls_stalled = true;
		return -EAGAIN;
	}
	if (n >= 0 && fd >= 0 && !receive_keep(session, fd))
		return -EBADMSG;
	return n;
}

void receive_on_socket(void *userdata, struct loop_source *source, uint32_t events)
{
	struct session *session = userdata;

	assert(!session->detaching);
	session->hung_up |= events & (EPOLLRDHUP | EPOLLHUP);
	/* Bound the calls of a turn so that no client monopolises the loop thread. */
	for (unsigned n_reads = 0; n_reads < CALLS_A_TURN; n_reads++) {
		ssize_t n = receive_some(session);

		/* The client is gone and would not receive the reply of a call that cannot be read now. */
		if (n == -EAGAIN && !(session->stalled && session->hung_up))
			return;
		if (n <= 0) {
			session_detach(session, "its socket closed");
			return;
		}
		session->buffers->n_call += (uint32_t)n;
		if (!receive_call(session))
			return;
	}
	session->calls_more = session->serve->calls_more = true;
}

void receive_continue(struct serve *serve)
{
	struct session *session;

	serve->calls_more = serve->calls_stalled = false;
	DL_FOREACH (serve->sessions, session) {
		if (!(session->calls_more || session->stalled) || session->detaching)
			continue;
		session->calls_more = session->stalled = false;
		receive_on_socket(session, NULL, 0);
	}
}
