/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ACCOUNTING_H
#define MIMEO_DAEMON_ENGINE_ACCOUNTING_H

/* What the requests of all sessions share. Initialised by engine.c; the engine's thread alone uses it. */

#include "daemon/engine/models/runner.h"
#include "daemon/engine/requests/reports.h"
#include "daemon/engine/requests/share.h"
#include "daemon/loop/loop.h"

struct engine_session;
struct request_log;
struct trace;

/* What a new session is made for; the loop thread's. */
struct accounting_limits {
	uint32_t max_seq_len, max_pages; /* of a sequence, over all models ... */
	uint32_t max_sets;               /* ... and the sets of layers that have so many pages each */
	uint32_t adjust_bytes;           /* of a request's payload at most: adjust.h */
	uint32_t models_end;             /* the models have ids below this one */
};

struct accounting {
	const struct engine_options *options;
	struct engine_stats *stats;
	struct reports *reports;
	struct request_log *request_log;
	struct trace *trace;
	struct loop *loop;
	struct msg_codec *codec;
	struct runners *runners;
	struct accounting_limits limits;
	uint64_t seed_state;
	struct engine_session *sessions[ENGINE_SESSIONS_MAX];
	uint32_t n_sessions;
	uint32_t first_session; /* whose submissions are taken first in the next turn */
	struct share_user users[ENGINE_SESSIONS_MAX];
	uint32_t active_weight; /* of users with requests in flight */
	uint64_t last_counter, last_computed; /* of the last of them, when there was none left: share.h */
	uint64_t n_turns, n_rounds;   /* of admission: admit.h */
	struct engine_session *grown; /* whose passes may cost grown_cost in the next admission turn; or NULL */
	uint32_t grown_cost;
	struct engine_buffer *closing; /* buffers that a request or a launched step may still name */
	struct request *ending;        /* ENDING requests of all sessions */
	bool admit;                    /* a change may let a waiting request start */
	bool draining, lost;
	uint64_t pass; /* the last number of an admission pass */
	uint64_t n_submitted;         /* the order of the last request */
	uint32_t n_requests;
	uint32_t n_deadlines;         /* of requests and held entries */
	uint64_t next_deadline_ns;    /* none is earlier */
	uint64_t launched, completed; /* steps of all models; they complete in order */
};

#endif
