/* SPDX-License-Identifier: MIT */
#include "daemon/serve/attach.h"

#include <assert.h>
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

static void attach_on_pidfd(void *userdata, struct loop_source *source, uint32_t events)
{
	session_detach(userdata, "its process ended");
}

static int attach_init_port(struct engine_port *port, struct serve *serve,
	const struct socket_peer *peer, const struct msg_hello *hello)
{
	int rc = region_create(&port->region, hello->entries, hello->arena_bytes);
	if (rc < 0)
		return rc;
	port->sq_bell = doorbell_new();
	if (port->sq_bell < 0)
		return port->sq_bell;
	port->cq_bell = doorbell_new();
	if (port->cq_bell < 0)
		return port->cq_bell;
	port->session = ++serve->last_session;
	port->pid = peer->pid;
	port->weight = weights_of(&serve->options.weights, peer->uid);
	snprintf(port->name, sizeof(port->name), "%s", hello->name);
	return 0;
}

static int attach_watch(struct session *session)
{
	struct loop *loop = session->serve->loop;

	int rc = loop_add(loop, session->fd, EPOLLIN | EPOLLRDHUP, receive_on_socket, session,
		&session->source);
	if (rc < 0 || session->pidfd < 0)
		return rc;
	return loop_add(loop, session->pidfd, EPOLLIN, attach_on_pidfd, session,
		&session->pid_source);
}

/* What session_deinit releases. 0 or -errno. */
static int attach_init(
	struct session *session, const struct socket_peer *peer, const struct msg_hello *hello)
{
	struct serve *serve = session->serve;
	struct quota_amounts amounts = welcome_charges(serve, hello);

	session->port.uid = peer->uid;
	int rc = quota_charge(serve->quota, peer->uid, &amounts);
	if (rc < 0)
		return rc;
	session->charged = amounts;
	rc = attach_init_port(&session->port, serve, peer, hello);
	if (rc < 0)
		return rc;
	rc = buffers_new(session);
	if (rc < 0)
		return rc;
	rc = attach_watch(session);
	if (rc < 0)
		return rc;
	return engine_post_attach(serve->options.engine, &session->port);
}

static struct session *attach_new(struct serve *serve, int fd, const struct socket_peer *peer)
{
	struct session *session = calloc(1, sizeof(*session));
	if (!session)
		return NULL;
	session->serve = serve;
	session->fd = fd;
	session->pidfd = peer->pidfd;
	session->since_ms = serve_now_ms();
	session->port.region.fd = session->port.sq_bell = session->port.cq_bell = -1;
	session->port.userdata = session;
	return session;
}

int attach_session(struct serve *serve, int fd, const struct socket_peer *peer,
	const struct msg_hello *hello)
{
	struct session *session = attach_new(serve, fd, peer);
	if (!session)
		return -ENOMEM;
	int rc = attach_init(session, peer, hello);
	if (rc < 0) {
		session_deinit(session);
		free(session);
		return rc;
	}
	assert(session->source && !session->detaching);
	session_join(session);
	if (calls_may_import(session))
		socket_pass_rights(fd, true);
	/* WELCOME comes last: a client that gets it has a session, and one that has none gets exactly one
	 * answer, with the reason. */
	rc = welcome_send(serve, session);
	if (rc < 0) {
		serve_complain(serve,
			"session %u (%s, pid %d): WELCOME cannot be sent: %s: detached",
			session->port.session, session->port.name, (int)peer->pid, strerror(-rc));
		session_detach(session, "WELCOME could not be sent");
		return 0;
	}
	log_debug("session %u: attached: %s, pid %d, uid %u, %u entries, %llu bytes of arena",
		session->port.session, session->port.name, (int)peer->pid, (unsigned)peer->uid,
		hello->entries, (unsigned long long)hello->arena_bytes);
	return 0;
}
