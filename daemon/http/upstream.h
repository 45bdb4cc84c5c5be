/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_UPSTREAM_H
#define MIMEO_DAEMON_HTTP_UPSTREAM_H

/*
 * The connection to mimeod: one session for all clients of this process.
 *
 * It is CONNECTED by a thread of its own, because connecting waits for the daemon and opening a tokenizer takes
 * a moment; otherwise the loop's thread alone uses it. When the daemon is gone, each request in flight has its
 * final event, with MIMEO_E_GONE; then models and tokenizers are released, and a new connection is tried, again
 * and again, until the daemon is back. So a request may use a model and its tokenizer until its own final event,
 * and not longer.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/mimeo.h>
#include <mimeo/text.h>

#include "daemon/http/counters.h"

struct upstream_model {
	const struct mimeo_model_info *info;
	uint32_t index;
	struct mimeo_text *text; /* NULL: it has no tokenizer that can be used, and text_message says why */
	char text_message[320];
};

/* A request in flight. Its owner's struct has it as a member, and lives until the final event. */
struct upstream_call {
	/* With an event of the request, which is marked as seen afterwards. */
	void (*on_event)(struct upstream_call *call, const struct mimeo_event *event);
	uint64_t id; /* for mimeo_cancel */
	struct upstream_call *prev, *next; /* of those that are not submitted yet */
};

/* A sequence of the session's. */
struct upstream_sequence {
	uint32_t id;
	struct upstream_sequence *next; /* of those that are to be closed */
};

/* Who waits for a free entry, or for memory of the arena. */
struct upstream_waiter {
	/* After the events of a turn: there may be space now. A status: there is no daemon any more. It may wait
	 * again. */
	void (*on_space)(struct upstream_waiter *waiter, int status);
	bool waits;
	struct upstream_waiter *prev, *next;
};

struct upstream_options {
	const char *socket; /* mimeod's; NULL: the default one */
	uint32_t entries;
	uint64_t arena_bytes;
	struct counters *counters; /* the caller's */
};

struct upstream;

/* Begins to connect. 0 or -errno. */
int upstream_new(const struct upstream_options *options, struct upstream **ret);
/* Waits for the connecting thread. No request is in flight. NULL is allowed. */
void upstream_free(struct upstream *upstream);

/* Polls readable when upstream_run has something to do. */
int upstream_fd(const struct upstream *upstream);
/* Milliseconds until upstream_run has something to do by time: -1 without limit. */
int64_t upstream_wait_ms(const struct upstream *upstream, int64_t now_ms);
/* Take events, notice the daemon's end, connect. Events that it left for the next turn: upstream_wait_ms is
 * 0. */
void upstream_run(struct upstream *upstream, int64_t now_ms);

/* The session, for mimeo_request_get and prepare calls; NULL while there is none, and upstream_message says
 * why. */
struct mimeo *upstream_session(const struct upstream *upstream);
const char *upstream_message(const struct upstream *upstream);
uint32_t upstream_n_models(const struct upstream *upstream);
const struct upstream_model *upstream_model_at(const struct upstream *upstream, uint32_t index);
/* By its name; NULL. */
const struct upstream_model *upstream_model_find(const struct upstream *upstream, const char *name);

/* A request that has been prepared: submitted by the next upstream_submit. Its events go to `call`. */
void upstream_add(struct upstream *upstream, struct mimeo_request *request, struct upstream_call *call);
void upstream_cancel(struct upstream *upstream, const struct upstream_call *call);
/* No request is in flight: what does not fit into the arena now never will. */
bool upstream_is_idle(const struct upstream *upstream);
/* Submit what was added, and sequence calls. */
void upstream_submit(struct upstream *upstream);

/* 0 or a status, as of mimeo_sequence_open. */
int upstream_open_sequence(struct upstream *upstream, uint32_t model, struct upstream_sequence **ret);
/* Close it as soon as there is an entry for that, and release it. */
void upstream_close_sequence(struct upstream *upstream, struct upstream_sequence *sequence);

/* on_space is called once, unless it is forgotten first. One that waits already may wait again. */
void upstream_await_space(struct upstream *upstream, struct upstream_waiter *waiter);
void upstream_forget(struct upstream *upstream, struct upstream_waiter *waiter);

#endif
