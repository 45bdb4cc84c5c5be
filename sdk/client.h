/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_CLIENT_H
#define MIMEO_SDK_CLIENT_H

/*
 * The connection's state, for all sources of the library.
 *
 * Sleeping. `armed` is true while our NEED_WAKEUP is set. mimeo_event_wait sets it before it sleeps.
 * mimeo_event_peek sets it only if the caller has asked for mimeo_fd: otherwise the daemon would ring
 * the doorbell, by a system call, for every completion of a caller that spins on peek. Taking a
 * completion while armed disarms. The doorbell may be rung after its completion was taken: then it is
 * up while the ring is empty, so event_tend clears it and looks at the ring again.
 *
 * Silence. A sequence call that succeeds makes no event, and its entry is free only when its completion
 * is taken. So a call that finds no free entry (or id) takes those at the ring's head itself, and a
 * wait ends when nothing is in flight any more and some calls have ended without an event: a caller
 * that waits for a free entry by waiting for an event would otherwise wait for ever.
 */

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <mimeo/mimeo.h>

#include "ipc/msg.h"
#include "ipc/region.h"
#include "sdk/buddy.h"
#include "sdk/request.h"
#include "sdk/sequence_ids.h"

struct mimeo {
	struct region region;
	struct buddy arena;
	int socket, sq_bell, cq_bell, epoll;
	int lives[MSG_LIFE_FDS]; /* report the daemon's death before the socket does; -1: none */
	struct msg_codec *codec; /* for messages on the socket */
	pid_t pid; /* of the process that connected */
	uint64_t spin_ns; /* UINT64_MAX: forever */

	struct mimeo_request *requests; /* [region.ring.entries] */
	struct mimeo_request *free, *prepared, *committed;
	uint32_t n_in_flight; /* committed ones too */
	bool silence; /* a sequence call has succeeded since the last wait for events */

	struct sequence_id *sequences; /* [max_sequences + 1], 0 is none */
	uint32_t max_sequences, free_sequence;

	struct mimeo_event event; /* peeked, not yet seen */
	struct mimeo_request *event_request;
	bool holding;
	uint32_t event_number;

	bool fd_taken, armed, bell_due;
	bool gone;             /* nothing new goes to or comes from the daemon ... */
	bool drained;          /* ... and what it had posted has been taken */
	uint32_t gone_cursor;  /* requests below it have had their GONE */
	uint64_t tended_ns;    /* when the fds were last checked; 0: the daemon just posted something */

	struct device_buffer *buffers;
	struct mimeo_handle *fences;   /* [entries] by request index, kind 0: not requested so far; or NULL */
	char call_message[MSG_TEXT_MAX]; /* why the last call on the socket was refused */

	char sequence_message[MSG_TEXT_MAX];
	const struct mimeo_request *refused; /* by the last prepare call; NULL: it succeeded */
	char request_message[MSG_TEXT_MAX];

	uint32_t n_models;
	struct mimeo_model_info models[MSG_MODELS_MAX];
	int32_t model_ids[MSG_MODELS_MAX]; /* the daemon's numbers of them */
};

/* Poll the socket for these events, and what reports the daemon's death. */
#define CLIENT_WATCHED (1 + MSG_LIFE_FDS)
static inline void client_watch(
	const struct mimeo *m, short events, struct pollfd ret[static CLIENT_WATCHED])
{
	ret[0] = (struct pollfd){.fd = m->socket, .events = events};
	/* poll ignores fds of -1. */
	for (size_t i = 0; i < MSG_LIFE_FDS; i++)
		ret[1 + i] = (struct pollfd){.fd = m->lives[i], .events = POLLIN};
}

#endif
