/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_CLIENT_H
#define MIMEO_SDK_CLIENT_H

/*
 * What the rooms of the library share.
 *
 * A request index is a credit: as many as the rings have entries. Requests of the caller's and the
 * library's own sequence calls take one each; so the daemon always finds room for every request's
 * final completion. The life of a request:
 *
 *	FREE -get-> HELD -prep-> PREPARED -submit-> COMMITTED -ring has room-> IN_FLIGHT
 *	  ^           |             |                    |                        |
 *	  +----put----+-----put-----+      ... daemon gone, final event seen -----+
 *
 * COMMITTED lasts only if the daemon answered a request before it shared the submission head that
 * makes the request's entry free: whoever looks for events pushes the rest.
 *
 * Sleeping. `armed` is true while our NEED_WAKEUP is set. mimeo_event_wait sets it before it
 * sleeps; mimeo_event_peek sets it only if the caller has asked for mimeo_fd: otherwise a caller
 * who spins on peek would make the daemon ring the doorbell, by a system call, for every
 * completion. Taking a completion while armed disarms. A ring may come late, after its completion
 * was taken: then the doorbell is up and nothing waits, so `tend` clears it, and looks at the ring
 * again afterwards.
 *
 * Silence. A sequence call that succeeds makes no event, and the entry it took is free only when its
 * completion is taken. So a call that finds no entry (or no id) free takes those at the ring's head
 * itself, and a wait ends when nothing is left in flight and some of it has ended in silence:
 * otherwise who waits for entries by waiting for an event would wait for good.
 */

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <mimeo/mimeo.h>

#include "ipc/msg.h"
#include "ipc/region.h"
#include "sdk/arena.h"

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
	struct ring_sqe sqe; /* as it will be submitted */
	struct arena_block block; /* header, payload and output */

	/* what its completions are checked against; offsets resolved into the arena */
	const int32_t *tokens; /* [capacity] or NULL */
	const float *logits, *hidden;
	uint32_t capacity, n_rows;
	uint32_t n_reported; /* tokens that events have told of */
	bool fenced; /* RECORDED is to come */
};

enum sequence_state {
	SEQUENCE_FREE,
	SEQUENCE_OPEN,
	SEQUENCE_ENDED, /* closed or refused; free once no call in flight names it */
};

struct sequence {
	enum sequence_state state;
	uint32_t model;
	uint32_t n_calls; /* in flight or prepared, naming it */
	uint32_t next;    /* in the list of free ids */
};

struct mimeo {
	struct region region;
	struct arena arena;
	int socket, sq_bell, cq_bell, epoll;
	int lives[MSG_LIFE_FDS]; /* tell of the daemon's death before the socket does; -1: none */
	pid_t pid; /* of the process that connected */
	uint64_t spin_ns; /* UINT64_MAX: forever */

	struct mimeo_request *requests; /* [region.ring.entries] */
	struct mimeo_request *free, *prepared, *committed;
	uint32_t n_in_flight; /* committed ones too */
	bool silence; /* a sequence call has succeeded since the last wait for events */

	struct sequence *sequences; /* [max_sequences + 1], 0 is none */
	uint32_t max_sequences, free_sequence;

	struct mimeo_event event; /* peeked, not yet seen */
	struct mimeo_request *event_request;
	bool holding;
	uint32_t event_number;

	bool fd_taken, armed, bell_due;
	bool gone;             /* nothing new goes to or comes from the daemon ... */
	bool drained;          /* ... and what it had posted has been taken */
	uint32_t gone_cursor;  /* requests below it have had their GONE */
	uint64_t tended_ns;    /* the fds were looked at; 0: the daemon just showed life */

	struct device_buffer *buffers; /* buffer.c */
	struct mimeo_handle *fences;   /* [entries] by request index, kind 0: not asked for yet; or NULL */
	char buffer_message[MSG_TEXT_MAX];

	uint32_t n_models;
	struct mimeo_model_info models[MSG_MODELS_MAX];
};

/* Copy a caller's struct of `size` bytes, as its first field says, into known[known_size], the rest
 * zero. False if it is smaller than `least` or has something where this library knows no field. */
bool config_copy(void *known, size_t known_size, const void *given, size_t least);
/* The other way: as much of known[known_size] as the caller's struct has room for by its first field,
 * the rest of it zero. False if it is NULL or its size is impossible. */
bool config_answer(void *given, const void *known, size_t known_size);

/* ---- client.c ---- */

/* Poll the socket for these events, and what else tells of the daemon's death. */
#define WATCHED (1 + MSG_LIFE_FDS)
void client_watch(const struct mimeo *m, short events, struct pollfd ret[static WATCHED]);

/* ---- submit.c ---- */

/* A request for one of the library's own calls, held; or NULL. */
struct mimeo_request *request_take(struct mimeo *m);
/* Put a held request behind the prepared ones. */
void request_prepare(struct mimeo_request *request);
/* Give back request and memory, whatever its state. */
void request_release(struct mimeo_request *request);
/* Push what is committed as far as the ring has room, and publish. 0, or -EPROTO. */
int submit_flush(struct mimeo *m);

/* ---- event.c ---- */

/* Take the completions at the ring's head that make no event. Hot path: does not block, allocate or
 * call the system. */
void events_take_silent(struct mimeo *m);

/* ---- buffer.c ---- */

/* Give back what this process has of them; the daemon has its own. */
void buffers_deinit(struct mimeo *m);

/* ---- sequence.c ---- */

/* Whether the sequence is open and of that model: 0, UNKNOWN_SEQUENCE or INVALID. */
int sequence_check(const struct mimeo *m, uint32_t sequence, uint32_t model);
/* A sequence call has ended with that status. Returns the sequence to tell the caller of. */
uint32_t sequence_completed(struct mimeo *m, const struct ring_sqe *sqe, int32_t status);

#endif
