/* SPDX-License-Identifier: MIT */
#include "daemon/serve/drain.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <mimeo/types.h>
#include <utlist.h>

#include "daemon/serve/notify.h"
#include "daemon/serve/session.h"

#define DETACH_TIMEOUT_MS 5000u /* for the engine to hand all ports back */

static void drain_stop_timer(struct serve *serve)
{
	loop_remove(serve->loop, serve->drain_timer);
	serve->drain_timer = NULL;
}

void drain_end_sessions(struct serve *serve)
{
	struct session *session, *next;

	assert(serve->state == SERVE_DRAINING || serve->state == SERVE_FAILED);
	serve->ending = true;
	drain_stop_timer(serve);
	serve->detach_deadline_ms = serve_now_ms() + DETACH_TIMEOUT_MS;
	DL_FOREACH_SAFE (serve->sessions, session, next)
		session_detach(session, "the daemon ends");
}

uint32_t drain_n_requests(const struct serve *serve)
{
	const struct engine_stats *stats = engine_stats(serve->options.engine);

	return atomic_load(&stats->n_running) + atomic_load(&stats->n_waiting);
}

static void drain_on_timeout(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;

	assert(serve->state == SERVE_DRAINING && !serve->ending);
	drain_stop_timer(serve);
	serve->detach_deadline_ms = serve_now_ms() + DETACH_TIMEOUT_MS;
	log_warn("drain took longer than %u s: ending the requests in flight",
		serve->drain_timeout_s);
	int rc = engine_post_abort(serve->options.engine);
	if (rc < 0) {
		log_error("engine does not abort: %s", strerror(-rc));
		drain_end_sessions(serve);
	}
}

void drain_begin(struct serve *serve, const char *why)
{
	uint32_t n = drain_n_requests(serve);
	char status[96];

	if (serve->state != SERVE_SERVING)
		return;
	serve->state = SERVE_DRAINING;
	serve->line_moves = true; /* to be refused */
	assert(!serve->drain_timer && !serve->ending);
	log_info("%s, draining: requests in flight: %u, sessions: %u", why, n, serve->n_sessions);
	notify_stopping();
	snprintf(status, sizeof(status), "draining: %u request%s in flight", n, n == 1 ? "" : "s");
	notify_status(status);
	int rc = engine_post_drain(serve->options.engine);
	serve->drain_timeout_s = serve->options.drain_timeout_s;
	if (rc == 0 && serve->drain_timeout_s > 0)
		rc = loop_add_timer(serve->loop, (uint64_t)serve->drain_timeout_s * 1000,
			drain_on_timeout, serve, &serve->drain_timer);
	if (rc < 0) {
		log_error("engine does not drain: %s", strerror(-rc));
		drain_end_sessions(serve);
	}
}
