/* SPDX-License-Identifier: MIT */
#include "daemon/serve/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/output/log.h"
#include "ipc/doorbell.h"

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

static void session_deinit(struct session *session)
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
		return; /* serve_on_builder comes back to it */
	session_deinit(session);
	if (session->pidfd >= 0)
		close(session->pidfd);
	closer_hang_up(serve->closer, session->fd, session->port.uid);
	DL_DELETE(serve->sessions, session);
	serve->n_sessions--;
	free(session);
	serve_session_gone(serve);
}

/* ---- what ends it ---- */

void session_break(struct session *session, const char *what)
{
	serve_complain(session->serve, "session %u (%s, pid %d): %s: detached",
		session->port.session, session->port.name, (int)session->port.pid, what);
	session_detach(session, "it broke the protocol");
}

static void on_pidfd(void *userdata, struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events;
	session_detach(userdata, "its process ended");
}

/* ---- its beginning ---- */

static int port_init(struct engine_port *port, struct serve *serve, const struct socket_peer *peer,
	const struct msg_hello *hello)
{
	int r = region_create(&port->region, hello->entries, hello->arena_bytes);
	if (r < 0)
		return r;
	port->sq_bell = doorbell_new();
	if (port->sq_bell < 0)
		return port->sq_bell;
	port->cq_bell = doorbell_new();
	if (port->cq_bell < 0)
		return port->cq_bell;
	port->session = ++serve->last_session;
	port->pid = peer->pid;
	port->uid = peer->uid;
	snprintf(port->name, sizeof(port->name), "%s", hello->name);
	return 0;
}

static int watch(struct session *session)
{
	struct loop *loop = session->serve->loop;

	int r = loop_add(loop, session->fd, EPOLLIN | EPOLLRDHUP, session_on_socket, session,
		&session->source);
	if (r == 0 && session->pidfd >= 0)
		r = loop_add(loop, session->pidfd, EPOLLIN, on_pidfd, session,
			&session->pid_source);
	return r;
}

int session_new(struct serve *serve, int fd, const struct socket_peer *peer,
	const struct msg_hello *hello)
{
	struct session *session = calloc(1, sizeof(*session));
	if (!session)
		return -ENOMEM;

	session->serve = serve;
	session->fd = fd;
	session->pidfd = peer->pidfd;
	session->since_ms = serve_now_ms();
	session->port.region.fd = session->port.sq_bell = session->port.cq_bell = -1;
	session->port.userdata = session;
	int r = port_init(&session->port, serve, peer, hello);
	if (r == 0)
		r = session_buffers_new(session);
	if (r == 0)
		r = watch(session);
	if (r == 0)
		r = engine_post_attach(serve->options.engine, &session->port);
	if (r < 0) {
		session_deinit(session);
		free(session);
		return r;
	}
	DL_APPEND(serve->sessions, session);
	serve->n_sessions++;
	serve->n_sessions_total++;
	if (session_may_import(session))
		socket_pass_rights(fd, true);
	/* Last: whoever is welcome has a session, and whoever has none gets one answer that says
	 * why. */
	r = welcome_send(serve, session);
	if (r < 0) {
		serve_complain(serve,
			"session %u (%s, pid %d): WELCOME cannot be sent: %s: detached",
			session->port.session, session->port.name, (int)peer->pid, strerror(-r));
		session_detach(session, "it was not to be welcomed");
		return 0;
	}
	log_debug("session %u: attached: %s, pid %d, uid %u, %u entries, %llu bytes of arena",
		session->port.session, session->port.name, (int)peer->pid, (unsigned)peer->uid,
		hello->entries, (unsigned long long)hello->arena_bytes);
	return 0;
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
