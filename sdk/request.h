/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_REQUEST_H
#define MIMEO_SDK_REQUEST_H

/*
 * Requests and their states.
 *
 * There are as many request indices as ring entries. Requests of the caller and the library's own
 * sequence calls take one each, so the daemon always has space for each request's final completion.
 *
 *	FREE -get-> HELD -prepare-> PREPARED -submit-> COMMITTED -ring has space-> IN_FLIGHT
 *	  ^           |                |                   |                           |
 *	  +----put----+------put-------+     ... daemon gone, or final event seen -----+
 *
 * A request stays COMMITTED only while the ring is full: the daemon may answer a request before it frees
 * its entry. The next look for events pushes the rest.
 */

#include <mimeo/mimeo.h>

#include "ipc/ring.h"
#include "sdk/buddy.h"

enum request_state {
	REQUEST_FREE,
	REQUEST_HELD,
	REQUEST_PREPARED,
	REQUEST_COMMITTED,
	REQUEST_IN_FLIGHT,
};

struct mimeo_request {
	struct mimeo *m;
	struct mimeo_request *prev, *next; /* in m->prepared or m->committed; next: in m->free */
	enum request_state state;
	uint32_t index;
	struct ring_sqe sqe;      /* as it will be submitted */
	struct buddy_block block; /* header, payload and output */

	/* Bounds for its completions; offsets resolved into the arena. */
	const int32_t *tokens; /* [capacity] or NULL */
	const float *logits, *hidden;
	const struct mimeo_logprob *logprobs, *prompt_logprobs; /* or NULL */
	uint32_t n_logprobs;  /* entries of each token */
	uint32_t n_positions; /* tokens of all rows */
	uint32_t capacity, n_rows;
	uint32_t n_reported; /* tokens reported by events */
	bool fenced;         /* RECORDED is to come */
	bool cancelled;      /* its cancel word is set */
	bool timed;          /* has a deadline, which counts from the submission */
};

/* A held request for one of the library's own calls; or NULL. */
struct mimeo_request *request_take(struct mimeo *m);
/* Append a held request to the prepared ones. */
void request_prepare(struct mimeo_request *request);
/* Give back request and memory, from any state but FREE. */
void request_release(struct mimeo_request *request);
/* Push committed requests while the ring has space, and publish. 0, or -EPROTO. */
int request_flush(struct mimeo *m);

#endif
