/* SPDX-License-Identifier: MIT */
#include "daemon/serve/session.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/serve/buffers.h"
#include "ipc/cleanup.h"

static void session_remove_sources(struct session *session)
{
	loop_remove(session->serve->loop, session->source);
	loop_remove(session->serve->loop, session->pid_source);
	session->source = session->pid_source = NULL;
}

static void session_post_detach(struct session *session)
{
	assert(session->detaching && !session->posted);
	int rc = engine_post_detach(session->serve->options.engine, &session->port);

	session->posted = rc == 0;
	if (rc < 0)
		log_warn("session %u: cannot detach now, trying again: %s", session->port.session,
			strerror(-rc));
}

void session_detach(struct session *session, const char *why)
{
	if (session->detaching)
		return;
	log_debug("session %u: detached: %s", session->port.session, why);
	session->serve->n_reclaimed +=
		atomic_load(&session->port.n_in_flight) || atomic_load(&session->port.n_sequences);
	session->detaching = true;
	session_remove_sources(session);
	session_post_detach(session);
}

void sessions_retry(struct serve *serve)
{
	struct session *session;

	DL_FOREACH (serve->sessions, session) {
		if (session->detaching && !session->posted)
			session_post_detach(session);
	}
}

void session_join(struct session *session)
{
	struct serve *serve = session->serve;

	(void)user_totals_find(&serve->user_totals, session->port.uid); /* by the order in which users attach */
	DL_APPEND(serve->sessions, session);
	serve->n_sessions++;
	serve->n_sessions_total++;
}

void session_leave(struct session *session)
{
	struct serve *serve = session->serve;

	assert(serve->n_sessions > 0);
	user_totals_add(&serve->user_totals, &session->port, false);
	DL_DELETE(serve->sessions, session);
	serve->n_sessions--;
}

void session_deinit(struct session *session)
{
	assert(!buffers_busy(session));
	session_remove_sources(session);
	buffers_free(session);
	cleanup_close(&session->port.cq_bell);
	cleanup_close(&session->port.sq_bell);
	region_deinit(&session->port.region);
	quota_release(session->serve->quota, session->port.uid, &session->charged);
	session->charged = (struct quota_amounts){0};
}

void session_free(struct session *session)
{
	struct serve *serve = session->serve;

	assert(session->detaching && session->posted);
	assert(!session->source && !session->pid_source);
	session->detached = true;
	if (buffers_busy(session))
		return; /* until calls_on_builder */
	session_leave(session);
	session_deinit(session);
	cleanup_close(&session->pidfd);
	closer_hang_up(serve->closer, session->fd, session->port.uid);
	serve->line_moves = true;
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
