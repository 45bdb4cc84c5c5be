/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_SERVER_H
#define MIMEO_DAEMON_HTTP_SERVER_H

/*
 * The process's event loop: listening sockets, connections, the connection to mimeod, signals.
 *
 * SIGTERM and SIGINT end it when the requests in flight have been replied to, or at the time limit for that; a
 * second one ends it at once. SIGHUP reads the keys again.
 */

#include "daemon/http/http_options.h"

/* Serve until a signal. `sockets` stays the caller's, and is closed when the end begins. HTTP_OK, or HTTP_FAILED after a
 * line in the log. */
int server_run(const struct http_options *options, struct listen_sockets *sockets);

#endif
