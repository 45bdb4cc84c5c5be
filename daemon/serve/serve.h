/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_SERVE_H
#define MIMEO_DAEMON_SERVE_SERVE_H

/*
 * The loop thread: accepts clients and operators, does the handshakes, attaches sessions to the engine and
 * detaches them, and shuts down in order.
 *
 * It serves from serve_run on, until a signal (SIGTERM, SIGINT), `drain` from an operator, or the
 * loss of the device ends it. The first signal drains: requests in flight are finished, new sessions get
 * DRAINING; the second ends at once.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/engine/builder.h"
#include "daemon/engine/engine.h"
#include "daemon/output/log.h"
#include "daemon/serve/listener.h"
#include "daemon/serve/weights.h"

/* Whose exported memory the daemon maps: mimeo(7) describes the risk. */
enum serve_client_ipc { SERVE_CLIENT_IPC_NO, SERVE_CLIENT_IPC_SAME_UID, SERVE_CLIENT_IPC_YES };

#define SERVE_PROGRESS_MAX 256

struct serve_options {
	struct engine *engine; /* started; stays the caller's, freed after serve */
	struct builder *builder; /* of the engine's device, stays the caller's; NULL: no device buffers */
	const char *device_kind; /* "cpu" or "cuda"; with a builder */
	uint8_t device_uuid[16];
	uint32_t max_client_buffers;      /* * of sessions to come; open, or still being released */
	uint64_t max_client_buffer_bytes; /* * */
	uint64_t max_buffer_bytes;        /* * of all clients */
	uint64_t buffer_granularity;      /* of allocations, in bytes; 0: 1 */
	enum serve_client_ipc allow_client_ipc; /* * */
	/* Read the configuration again, on the loop thread: sets in *options, a copy, what may change while the daemon
	 * serves (below: *), and writes to `out` a line for each difference. -errno, with nothing changed: `out` has
	 * the reasons, a line each. NULL: there is no configuration. */
	int (*reload)(void *userdata, struct serve_options *options, FILE *out);
	void *reload_userdata;
	/* Make models for operators' orders (models.h); `begin` NULL: none can be loaded. */
	struct serve_loader {
		/* On the loop thread: what the order asks for. path NULL: the model of that name in the configuration;
		 * settings: "key=value" lines, for this model. *ret_job is for `run`. -errno and a sentence. */
		int (*begin)(void *userdata, const char *name, const char *path, const char *settings, void **ret_job,
			char *text, size_t size);
		/* On the loader's thread: takes the job over. 0 and a model for engine_post_load; or as above. */
		int (*run)(void *userdata, void *job, struct runner **ret, char *text, size_t size);
		/* From any thread: how far `run` is, for people. */
		void (*progress)(char text[static SERVE_PROGRESS_MAX]);
		void *userdata;
	} loader;
	const char *socket;    /* the clients'; the caller holds its lock, and the operators' one */
	/* Bound already, by serve_listener_bind; serve_new takes them over, whatever it returns. NULL: serve_run
	 * binds them. */
	const struct serve_listener *clients, *operators;
	bool monitored; /* the group may connect to the monitors' socket, beside the clients' one */
	gid_t monitor_gid;
	int metrics_fd; /* listens for HTTP; serve_new takes it over, whatever it returns; 0: none */
	const char *device;    /* for people: "cpu" */
	int64_t started_ms;    /* when the process began to load, by CLOCK_MONOTONIC; 0: now */
	const char *loop;      /* "auto", "io_uring", "epoll" */
	uint32_t max_sessions, max_sessions_per_uid; /* * */
	struct weights weights; /* * of users */
	uint32_t max_entries;     /* a session's ring */
	uint64_t max_arena_bytes; /* * a session's arena */
	uint64_t max_shared_bytes; /* * all sessions' regions */
	uint64_t max_sequence_bytes; /* * what all sessions may take in the engine */
	uint64_t max_descriptors; /* all sessions'; 0: half of those that the process may open */
	uint32_t max_sequences;   /* a session's; as the engine has it */
	uint32_t drain_timeout_s; /* * then requests in flight end with DRAINING; 0: no limit */
	enum log_level log_level; /* * in force already, until a reload */
	bool request_log; /* * a line for each request that ends */
	uint32_t handshake_timeout_ms; /* 0: 5000 */
	uint32_t max_greetings; /* connections without a session, a quarter of them one user's; 0: an eighth
	                           of the descriptors that the process may open, 128 to 1024 */
};

struct serve;

/* Makes the loop and handles the signals from now on. 0 or -errno. */
int serve_new(const struct serve_options *options, struct serve **ret);
/* Sessions that the engine still uses, after SERVE_ABANDONED only, and what loads a model, after SERVE_LOADING, stay
 * allocated; then the engine must not be freed either. */
void serve_free(struct serve *serve);

enum serve_result {
	SERVE_DRAINED = 0,     /* every request finished */
	SERVE_DEVICE_LOST = 1, /* every request was ended, every session detached */
	SERVE_ABANDONED = 2,   /* a second signal, or an engine that does not detach: it may still use
	                          sessions */
	SERVE_DEVICE_LOST_ABANDONED = 3, /* both */
	SERVE_CUT_OFF = 4, /* beside any of these: the drain timeout ended requests */
	SERVE_LOADING = 8, /* beside any of these: a model is being loaded or freed, with the engine */
};

/* Accept and serve until it ends. Bits of enum serve_result, or -errno if it could not start
 * (-EADDRINUSE: another process listens on the socket). */
int serve_run(struct serve *serve);

#endif
