/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_COUNTERS_H
#define MIMEO_DAEMON_HTTP_COUNTERS_H

/* What GET /metrics shows, as Prometheus reads it. */

#include <stdint.h>

#include "daemon/http/bytes.h"

#define COUNTERS_ENDPOINTS_MAX 16
#define COUNTERS_STATUSES_MAX 16

struct counters {
	const char *endpoints[COUNTERS_ENDPOINTS_MAX]; /* their names, static */
	unsigned n_endpoints;
	/* Replies, by the endpoint's index and the index of the status in counters.c. */
	uint64_t replies[COUNTERS_ENDPOINTS_MAX][COUNTERS_STATUSES_MAX];
	uint64_t connections_accepted, connections_refused, connections_timed_out;
	uint64_t cancelled;         /* requests whose client disconnected */
	uint64_t slow;              /* of these: streams whose client did not read */
	uint64_t tokens_prompt, tokens_cached, tokens_generated;
	uint64_t reconnects;        /* connections to mimeod that were made */
	uint64_t first_tokens;      /* requests that had one, */
	uint64_t first_token_us;    /* and the time from the body to it, together */
	uint32_t n_connections, n_requests; /* now; n_requests: at mimeod */
	uint64_t body_bytes;        /* now, of all requests that are received */
};

/* `status` is one of HTTP's; one that is not listed counts as "other". */
void counters_add_reply(struct counters *counters, unsigned endpoint, unsigned status);
/* The exposition. 0 or -ENOMEM. */
int counters_expose(const struct counters *counters, bool connected, struct bytes *ret);

#endif
