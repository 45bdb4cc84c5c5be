/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_SESSION_H
#define MIMEO_DAEMON_SERVE_SESSION_H

/* A client's session, from WELCOME until the engine and the builder have released it. */

#include "daemon/serve/serve_state.h"

struct session {
	struct engine_port port; /* the engine's from attach to DETACHED */
	struct serve *serve;
	struct loop_source *source, *pid_source;
	int fd, pidfd;
	int64_t since_ms;
	uint32_t weight; /* of the last reload */
	bool detaching; /* the engine is to release it */
	bool posted;    /* the command for that is posted to the engine */
	bool detached;  /* the engine has released it; the builder has not finished */
	bool calls_more; /* its socket has to be read again after other sessions' turns */
	bool stalled;    /* its socket is read again when fewer closes of its user are pending */
	bool hung_up;    /* the client closed its end; there may still be something to read */
	struct session_buffers *buffers;
	struct quota_amounts charged;
	struct session *prev, *next;
};

/* Remove the session from the loop and ask the engine to release it; the socket closes after that. */
void session_detach(struct session *session, const char *why);
/* Log how the client broke the protocol, and detach. */
void session_break(struct session *session, const char *what);
/* Count it among serve->sessions, with its user; the other way round. */
void session_join(struct session *session);
void session_leave(struct session *session);
/* Release what the session holds, except its socket and the peer's pidfd. */
void session_deinit(struct session *session);
/* The engine has released it: free it, or leave that to the builder's last job. */
void session_free(struct session *session);
/* The open session of that number, or NULL. */
struct session *session_find(struct serve *serve, uint64_t number);
/* Post the detach commands again for which the engine's mailbox was full. */
void sessions_retry(struct serve *serve);

#endif
