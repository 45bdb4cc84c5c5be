/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_SERVE_H
#define MIMEO_DAEMON_SERVE_SERVE_H

/*
 * The loop thread: accepts clients and operators, shakes hands, hands sessions to the engine and
 * takes them back, and ends it all in order.
 *
 * It serves from serve_run on, until a signal (SIGTERM, SIGINT), `drain` from an operator, or the
 * loss of the device ends it. The first signal drains: what runs is finished, new sessions get
 * DRAINING; the second ends at once.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/engine/builder.h"
#include "daemon/engine/engine.h"

/* Whose exported memory the daemon maps: mimeo(7) tells of the risk. */
enum serve_client_ipc { SERVE_CLIENT_IPC_NO, SERVE_CLIENT_IPC_SAME_UID, SERVE_CLIENT_IPC_YES };

struct serve_options {
	struct engine *engine; /* started; stays the caller's, freed after serve */
	struct builder *builder; /* of the engine's device, likewise; NULL: no device buffers */
	const char *device_kind; /* "cpu" or "cuda"; with a builder */
	uint8_t device_uuid[16];
	uint32_t max_client_buffers;      /* open, or not given back yet */
	uint64_t max_client_buffer_bytes;
	uint64_t max_buffer_bytes;        /* of all clients */
	uint64_t buffer_granularity;      /* what is allocated counts in multiples of it; 0: bytes */
	enum serve_client_ipc allow_client_ipc;
	const char *socket;    /* the clients'; the caller holds its lock, and the admin socket's */
	const char *device;    /* for people: "cpu" */
	const char *loop;      /* "auto", "io_uring", "epoll" */
	uint32_t max_sessions, max_sessions_per_uid;
	uint32_t max_entries;     /* a session's ring */
	uint64_t max_arena_bytes; /* a session's arena */
	uint64_t max_shared_bytes; /* all sessions' regions */
	uint32_t max_sequences;   /* a session's; as the engine has it */
	uint32_t max_requests;    /* slots, for the counters */
	uint32_t drain_timeout_s; /* then what still runs is ended with DRAINING; 0: no limit */
	uint32_t handshake_timeout_ms; /* 0: 5000 */
};

struct serve;

/* Makes the loop and takes the signals over; binds nothing yet. 0 or -errno. */
int serve_new(const struct serve_options *options, struct serve **ret);
/* Closes what is open. Sessions that the engine still holds stay allocated: only after
 * SERVE_ABANDONED are there any, and then the engine must not be freed either. */
void serve_free(struct serve *serve);

enum serve_result {
	SERVE_DRAINED = 0,     /* nothing is left, and all that ran has finished */
	SERVE_DEVICE_LOST = 1, /* every request was ended, every session detached */
	SERVE_ABANDONED = 2,   /* a second signal, or an engine that does not let go: the engine may
	                          still hold sessions */
	SERVE_DEVICE_LOST_ABANDONED = 3, /* both */
	SERVE_CUT_OFF = 4, /* beside any of these: the drain timeout ended requests */
};

/* Bind, accept, serve until it ends. Bits of enum serve_result, or -errno if it could not start
 * (-EADDRINUSE: somebody listens on a socket of that name). */
int serve_run(struct serve *serve);

#endif
