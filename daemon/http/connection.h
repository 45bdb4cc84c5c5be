/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_CONNECTION_H
#define MIMEO_DAEMON_HTTP_CONNECTION_H

/* One connection of a client, in its phase (connections.h). For connections.c and connection_request.c. */

#include "daemon/http/exchange.h"
#include "daemon/http/http.h"
#include "daemon/http/keys.h"
#include "daemon/http/routes.h"

enum phase { PHASE_NEW, PHASE_RECEIVING, PHASE_WORKING, PHASE_SENDING, PHASE_IDLE, N_PHASES };

struct connection {
	struct connections *owner;
	int fd;
	bool is_unix;
	uint32_t request_class; /* of its requests */
	uint32_t serial; /* tells an event of this connection from one of the descriptor's last user */
	bool started;    /* libmicrohttpd has it */
	bool served;     /* it brought a whole request */
	bool hung_up;
	uint64_t n_read; /* of a reply, when its time to send began */
	const struct route *route; /* of the exchange */
	struct exchange *exchange; /* being received, worked on or replied to */
	enum phase phase;
	int64_t deadline_ms;
	struct connection *prev, *next; /* of the phase */
};

struct connections {
	struct http *http;
	const struct keys *keys;
	struct MHD_Daemon *daemon;
	unsigned most; /* connections */
	bool has_space; /* for a further one, perhaps */
	int epoll; /* of libmicrohttpd's descriptor and of all connections */
	struct connection **by_fd; /* [n_fds] */
	uint32_t n_fds;
	uint32_t last_serial;
	struct connection *phases[N_PHASES];
	int64_t now_ms; /* of this turn */
	unsigned n_busy;
	bool draining;
	bool losing; /* a client had hung up when its request began to wait */
};

/* Begin a phase and its time. */
void connection_enter(struct connection *connection, enum phase phase);
/* Has the client of a reply taken some of it in this phase, or is there nothing to take? */
bool connection_is_read(const struct connection *connection);
/* End it: libmicrohttpd finds the socket closed. */
void connection_cut(struct connection *connection);

#endif
