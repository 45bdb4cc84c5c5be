/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_USER_TOTALS_H
#define MIMEO_DAEMON_SERVE_USER_TOTALS_H

/*
 * What the ended sessions of each user had, so that counters of a user never fall. The first users have a place each;
 * those who come when all places are taken share one: metrics must not grow without bound. The loop thread's.
 */

#include "daemon/engine/engine.h"

#define USER_TOTALS_MAX 64

struct user_total {
	uid_t uid;
	uint64_t n_requests, n_failed, n_deadlines, n_quotas;
	uint64_t n_tokens, n_prompt_tokens, n_cached_tokens;
	/* of open sessions: only in a copy, for the metrics */
	uint64_t n_sessions, n_in_flight, n_pages;
};

struct user_totals {
	uint32_t n;
	struct user_total users[USER_TOTALS_MAX + 1]; /* the last one: all others */
};

/* The user's place, taken now if there is one left. */
struct user_total *user_totals_find(struct user_totals *totals, uid_t uid);
/* Add what the session had so far; open: with what it has now. */
void user_totals_add(struct user_totals *totals, const struct engine_port *port, bool open);

#endif
