/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_QUERY_H
#define MIMEO_DAEMON_ENGINE_QUERY_H

/*
 * Questions about what the engine's thread alone knows, and commands whose result is wanted: requests one by one,
 * KV pages by user and session, the prefix cache.
 *
 * The loop thread fills a query and posts it; the engine's thread answers it between two steps and gives it back, in
 * any order. An answer takes time in proportion to the sequences and requests of all sessions, and one allocation:
 * it is for operators, not for each request.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/engine.h"

enum engine_query_kind {
	ENGINE_QUERY_REQUESTS,   /* list those in flight */
	ENGINE_QUERY_CANCEL,     /* end the request `id` as its client's cancel does */
	ENGINE_QUERY_PAGES,      /* count pages */
	ENGINE_QUERY_DROP_PAGES, /* drop the unused pages of the prefix cache of `model`, or of all models (ENGINE_ALL);
	                            takes several turns */
};

enum engine_request_state {
	ENGINE_REQUEST_QUEUED,
	ENGINE_REQUEST_RUNNING,
	ENGINE_REQUEST_PREEMPTED, /* it has run, and waits for a slot or pages again */
	ENGINE_REQUEST_ENDING,    /* a launched step names its buffers */
};

struct engine_request_facts {
	uint64_t id; /* of no other request in the daemon's life */
	const char *op, *class;
	enum engine_request_state state;
	uint32_t model; /* ENGINE_ALL: none, as of a sequence call, or not known yet */
	uint32_t session;
	uid_t uid;
	pid_t pid;
	char name[32];     /* the client's */
	uint32_t sequence; /* 0: its own, or several */
	uint32_t n_rows, n_tokens, n_prompt, n_cached; /* tokens: brought; computed; from the prefix cache */
	uint32_t n_generated, max_tokens; /* max_tokens 0: not generate */
	bool has_age;
	uint64_t age_ns, wait_ns; /* since the submission; from there to the first start, or until now */
	bool has_deadline;
	int64_t deadline_ns; /* until the next one */
};

enum engine_pages_of { ENGINE_PAGES_MODEL, ENGINE_PAGES_USER, ENGINE_PAGES_SESSION };

/* Pages of a model; of one user's or session's sequences of it. A page that several of them have counts once in
 * n_pinned of a model or user, and in each sequence otherwise. */
struct engine_pages_facts {
	enum engine_pages_of of;
	uint32_t model, session; /* session: of ENGINE_PAGES_SESSION */
	uid_t uid;               /* not of ENGINE_PAGES_MODEL */
	char name[32];           /* of a session's client */
	uint32_t n_sequences;
	uint64_t n_pages;      /* in sequences; of a model: all there are */
	uint64_t n_pinned;     /* or promised to requests that will pin them */
	uint64_t n_registered; /* leading pages that the prefix cache has; of a model: all that it has */
	uint64_t n_free, n_unused; /* of a model; unused ones count as free */
	uint64_t n_hits, n_evicted; /* of a model: pages taken from the prefix cache, pages that left it for others */
	uint64_t n_left;       /* of a user: how many more it may pin */
};

struct engine_query {
	enum engine_query_kind kind;
	uint64_t id;
	uint32_t model;
	unsigned tag;   /* the loop thread's */
	void *userdata; /* the same */
	/* the answer */
	int rc;         /* 0, -ENOENT (no such request), -EALREADY (it ends already), -ENOMEM */
	uint32_t n;     /* of either list; pages dropped */
	struct engine_request_facts *requests; /* [n]; of a cancel: the one request */
	struct engine_pages_facts *pages;      /* [n] of each model: its own, its users', their sessions' */
	struct engine_query *next;             /* the engine's */
};

/* The query, from malloc, is the engine's until engine_query_take; then free it. -ENOMEM: it is still the caller's. */
int engine_post_query(struct engine *engine, struct engine_query *query);
/* An answered one, or NULL. Rings the same fd as reports. */
struct engine_query *engine_query_take(struct engine *engine);
/* NULL is allowed. */
void engine_query_free(struct engine_query *query);

#endif
