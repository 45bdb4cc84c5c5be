/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ENGINE_SESSION_H
#define MIMEO_DAEMON_ENGINE_ENGINE_SESSION_H

/* One client: its ring, its requests by index, its sequences by id. */

#include "daemon/engine/requests/accounting.h"
#include "daemon/engine/requests/payload.h"
#include "daemon/engine/requests/request.h"
#include "daemon/engine/requests/sequence.h"

/* held.h */
struct held_entry {
	struct held_entry *prev, *next; /* in order of submission */
	bool held;
	struct ring_sqe sqe;
	uint64_t order; /* that its request will have */
	struct deadlines deadlines;
};

struct engine_session {
	struct accounting *accounting;
	struct engine_port *port;
	struct loop_source *source;
	bool failed;   /* broke the protocol: its ring is not read any more */
	bool detached; /* being taken apart */
	bool publish;  /* completions were pushed */
	bool cq_full;  /* no space for another final completion: its ring is not read */
	struct share_session share;
	/* Admission (admit.h). */
	uint64_t tried;       /* the last turn in which nothing more of it could start */
	uint64_t tried_batch; /* the same of its batch requests, spare ones included */
	uint64_t looked;      /* the last turn that had a pass of it */
	uint32_t costs[MIMEO_CLASS_BATCH + 2]; /* of that turn's passes: of each class; then of those for spare requests */
	uint32_t cost;  /* the present pass's entry of these */
	bool started;   /* a request of it started or ended in that turn */
	bool cut;       /* a pass of that turn left requests that it did not examine */
	uint64_t whole; /* the last round in which its list was examined to the end */
	uint32_t n_in_flight, n_waiting, n_open;
	uint32_t n_busy;    /* sequences that are not IDLE */
	uint32_t n_running; /* scratch of reclaim.c: slots, or pages, of running sequences of a model */
	uint64_t last_step; /* the last launched step, of any model, that had a row of it */
	uint64_t n_copied;  /* bytes of headers and payloads that this turn copied */
	uint32_t max_sequences, n_requests;
	struct accounting_limits limits; /* as it was made: it has no memory for later models */
	uint32_t n_forgotten; /* sequences, then requests, that forgot engine.forgotten */
	struct sequence *sequences; /* [max_sequences] by id - 1, then [n_requests] ephemeral ones */
	struct request *requests;   /* [n_requests] */
	struct request *waiting;    /* in order of submission ... */
	uint32_t n_waiting_of[MIMEO_CLASS_BATCH + 1]; /* ... and how many of each class */
	struct payload_pool payloads;
	struct held_entry *entries; /* [n_requests] by request index */
	struct held_entry *held;    /* those held, in order: the first waits for space in the pool */
	uint32_t n_held;
	uint32_t *deadlines; /* [n_requests + 2] the heap of deadline.c: owners, from place 1 */
	uint32_t n_deadlines;
	void *memory;
	size_t memory_bytes;
};

/* Called on the loop thread; allocates all that the session will ever need. The port outlives it.
 * 0 or -errno. */
int engine_session_new(struct accounting *accounting, struct engine_port *port,
	struct engine_session **ret);
void engine_session_free(struct engine_session *session);
/* The bytes that a session with a ring and an arena of these sizes takes if its client uses all of them;
 * UINT64_MAX: they overflow. */
uint64_t engine_session_bytes(
	const struct accounting *accounting, uint32_t entries, uint64_t arena_bytes);
/* All sequences, ephemeral ones included. */
static inline uint32_t engine_session_n_sequences(const struct engine_session *session)
{
	return session->max_sequences + session->n_requests;
}
/* The model of that id. NULL, and the reason in *ret_detail: the session was made before it was loaded, or it is
 * unloaded. */
struct runner *engine_session_model(
	const struct engine_session *session, uint32_t id, struct msg_detail *ret_detail);
/* NULL if there is no such id. */
struct sequence *engine_session_sequence(struct engine_session *session, uint32_t id);
/* The sequence that a generate request runs on: an open one or its own; NULL if there is no such id. */
struct sequence *engine_session_request_sequence(const struct request *request);
/* The client broke the ring protocol: report it once, and stop reading its ring. */
void engine_session_fail(struct engine_session *session, const char *text);
/* True if no launched step names anything of the session. */
bool engine_session_is_idle(const struct engine_session *session);
/* Add the request to the waiting list; remove it. */
void engine_session_wait_push(struct engine_session *session, struct request *request);
/* Put a preempted request back, ahead of requests that were submitted after it. */
void engine_session_wait_return(struct engine_session *session, struct request *request);
/* The request stops being its model's head or oldest blocked request. */
void engine_session_wait_beside(struct request *request);
void engine_session_wait_remove(struct engine_session *session, struct request *request);

#endif
