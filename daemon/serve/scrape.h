/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_SCRAPE_H
#define MIMEO_DAEMON_SERVE_SCRAPE_H

/*
 * GET /metrics over HTTP for Prometheus, by libmicrohttpd on the loop thread. There is no authentication: any process
 * that can connect to the port can read, and the daemon listens on the loopback address only. At most
 * SCRAPE_CONNECTIONS connections, each with a time limit.
 */

#include "daemon/serve/serve_state.h"

#define SCRAPE_CONNECTIONS 16

struct scrape;

/* Takes the listening socket over, whatever it returns. 0 or -errno: -ENOTSUP without libmicrohttpd. */
int scrape_new(struct serve *serve, int listener, struct scrape **ret);
void scrape_free(struct scrape *scrape);
/* Time has passed: close connections that were idle for too long. NULL is fine. */
void scrape_run(struct scrape *scrape);

#endif
