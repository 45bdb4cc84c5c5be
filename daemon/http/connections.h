/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_CONNECTIONS_H
#define MIMEO_DAEMON_HTTP_CONNECTIONS_H

/*
 * Connections of clients, over libmicrohttpd, which parses requests and writes replies.
 *
 * It runs without threads and without a listening socket: connections are accepted here and handed to it, and its
 * epoll descriptor is one of the loop's. While an endpoint works, libmicrohttpd does not watch the connection; so
 * the loop watches each socket for a hang-up, too.
 *
 * Time is limited in each phase, by lists in the order of their ends:
 *
 *	NEW       until the first request line, as long as a request may take
 *	RECEIVING until the body is complete
 *	WORKING   no limit here: requests have their own at mimeod
 *	SENDING   until the client takes more of the reply
 *	IDLE      between requests
 */

#include "daemon/http/http.h"
#include "daemon/http/keys.h"

struct connections;

/* At most `most` at once. 0 or -errno. */
int connections_new(struct http *http, unsigned most, struct connections **ret);
/* Closes all. NULL is allowed. */
void connections_free(struct connections *connections);
/* The keys to check from now on, of TCP connections: the caller's. NULL: none is valid. */
void connections_set_keys(struct connections *connections, const struct keys *keys);

/* Polls readable when connections_run has something to do. */
int connections_fd(const struct connections *connections);
int64_t connections_wait_ms(struct connections *connections, int64_t now_ms);
void connections_run(struct connections *connections, int64_t now_ms);

/* Accept what waits on a listening socket. False if there is no space for more: a connection is closed for it if
 * one is idle, or has not brought a whole request in a while. The caller tries again when connections_have_space,
 * and after a second. */
bool connections_accept(struct connections *connections, int listener, bool is_unix, int64_t now_ms);
/* Whether a connection ended, or became idle, since there was none. */
bool connections_have_space(const struct connections *connections);
/* No further request on any connection; those in flight go on. */
void connections_drain(struct connections *connections);
/* Requests that have been received and not replied to, or whose reply is being sent. */
unsigned connections_n_busy(const struct connections *connections);

#endif
