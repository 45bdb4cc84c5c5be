/* SPDX-License-Identifier: MIT */
#include "daemon/serve/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/serve/buffers.h"

/* ---- the end of a session ---- */

static void sources_remove(struct session *session)
{
	if (session->source)
		loop_remove(session->serve->loop, session->source);
	if (session->pid_source)
		loop_remove(session->serve->loop, session->pid_source);
	session->source = session->pid_source = NULL;
}

static void detach_post(struct session *session)
{
	int r = engine_post_detach(session->serve->options.engine, &session->port);

	session->posted = r == 0;
	if (r < 0)
		log_warn("session %u: detach has to wait: %s", session->port.session, strerror(-r));
}

void session_detach(struct session *session, const char *why)
{
	if (session->detaching)
		return;
	log_debug("session %u: detached: %s", session->port.session, why);
	session->detaching = true;
	sources_remove(session);
	detach_post(session);
}

void sessions_retry(struct serve *serve)
{
	struct session *session;

	DL_FOREACH (serve->sessions, session) {
		if (session->detaching && !session->posted)
			detach_post(session);
	}
}

void session_deinit(struct session *session)
{
	sources_remove(session);
	session_buffers_free(session);
	if (session->port.cq_bell >= 0)
		close(session->port.cq_bell);
	if (session->port.sq_bell >= 0)
		close(session->port.sq_bell);
	region_deinit(&session->port.region);
}

void session_free(struct session *session)
{
	struct serve *serve = session->serve;

	session->detached = true;
	if (session_buffers_busy(session))
		return; /* calls_on_builder comes back to it */
	session_deinit(session);
	if (session->pidfd >= 0)
		close(session->pidfd);
	closer_hang_up(serve->closer, session->fd, session->port.uid);
	DL_DELETE(serve->sessions, session);
	serve->n_sessions--;
	free(session);
}

void session_break(struct session *session, const char *what)
{
	serve_complain(session->serve, "session %u (%s, pid %d): %s: detached",
		session->port.session, session->port.name, (int)session->port.pid, what);
	session_detach(session, "it broke the protocol");
}

struct session *session_find(struct serve *serve, uint64_t number)
{
	struct session *session;

	DL_FOREACH (serve->sessions, session) {
		if (session->port.session == number && !session->detaching)
			return session;
	}
	return NULL;
}
