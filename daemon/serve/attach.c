/* SPDX-License-Identifier: MIT */
#include "daemon/serve/attach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

#include "daemon/serve/buffers.h"
#include "daemon/serve/calls.h"
#include "daemon/serve/receive.h"
#include "daemon/serve/welcome.h"
#include "ipc/doorbell.h"

static void on_pidfd(void *userdata, struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events;
	session_detach(userdata, "its process ended");
}

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

	int r = loop_add(loop, session->fd, EPOLLIN | EPOLLRDHUP, receive_on_socket, session,
		&session->source);
	if (r == 0 && session->pidfd >= 0)
		r = loop_add(loop, session->pidfd, EPOLLIN, on_pidfd, session,
			&session->pid_source);
	return r;
}

int attach_session(struct serve *serve, int fd, const struct socket_peer *peer,
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
	if (calls_may_import(session))
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
