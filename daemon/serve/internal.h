/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_INTERNAL_H
#define MIMEO_DAEMON_SERVE_INTERNAL_H

/*
 * What the files of this room share. All of it belongs to the loop thread.
 *
 * A client is a `greeting` from accept until its HELLO is answered, then a `session` until the
 * engine has handed its port back and the socket is closed. An operator is an `operator` all along.
 * Each has a bounded number, a bounded buffer and a deadline whenever it is the peer's turn.
 */

#include <stdatomic.h>
#include <time.h>

#include "daemon/output/log.h"
#include "daemon/loop/loop.h"
#include "daemon/serve/admin_wire.h"
#include "daemon/serve/closer.h"
#include "daemon/serve/life.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/serve.h"
#include "ipc/msg.h"
#include "ipc/socket.h"

#define HANDSHAKE_TIMEOUT_MS 5000u
#define GREETINGS_MAX 256u
#define GREETINGS_PER_UID 32u
#define HELLO_BYTES_MAX 1024u /* behind the length; a HELLO has some 60 */
#define OPERATORS_MAX 16u
#define ACCEPTS_A_TURN 64u
#define CALLS_A_TURN 8u /* of one session */
#define OPERATOR_TIMEOUT_MS 10000u /* to send the rest of a request, to take a reply */
#define DETACH_TIMEOUT_MS 5000u    /* for the engine to hand all ports back at the end */
#define COMPLAINTS_PER_SECOND 5u
#define METRICS_TEXT_MAX (256u << 10) /* METRICS_MAX lines, of 32 models' longest names */

struct serve;

struct greeting {
	struct serve *serve;
	struct loop_source *source;
	struct socket_peer peer;
	int fd;
	int64_t deadline_ms;
	uint32_t n_bytes;
	uint8_t bytes[4 + HELLO_BYTES_MAX + 1]; /* one more than allowed, to see that it came */
	struct greeting *prev, *next;
};

struct session {
	struct engine_port port; /* the engine's from attach to DETACHED */
	struct serve *serve;
	struct loop_source *source, *pid_source;
	int fd, pidfd;
	int64_t since_ms;
	bool detaching, posted; /* the engine has been asked for it */
	bool detached; /* ... and has let go; only the builder is waited for */
	struct session_buffers *buffers; /* buffers.c */
	bool calls_more; /* its socket has to be read again after other sessions' turns */
	bool stalled;    /* ... once fewer closes of its user are pending */
	bool hung_up;    /* the client has; there may still be something to read */
	struct session *prev, *next;
};

struct operator {
	struct serve *serve;
	struct loop_source *source;
	int fd;
	pid_t pid;
	uid_t uid;
	int64_t deadline_ms; /* INT64_MAX: it is nobody's turn */
	uint32_t n_bytes;
	uint8_t bytes[4 + ADMIN_REQUEST_MAX + 1];
	struct reply reply;
	size_t n_sent;
	bool replying;
	bool drains; /* asked for it, and is yet to be told what came of it */
	struct operator *prev, *next;
};

enum serve_state { SERVE_STARTING, SERVE_SERVING, SERVE_DRAINING, SERVE_FAILED };

struct serve {
	struct serve_options options;
	char socket[SOCKET_PATH_MAX], admin_socket[SOCKET_PATH_MAX];
	struct loop *loop;
	struct loop_source *listener_source, *admin_source, *report_source, *timer, *drain_timer;
	struct loop_source *builder_source;
	int listener, admin_listener;
	struct closer *closer;
	struct life *life;
	struct msg_codec *codec;
	uint64_t nonce;
	uint32_t last_session;
	enum serve_state state;
	int result;
	/* What came of a drain, for the operators who asked; said once it is known. */
	struct {
		bool known;
		int status;
		char text[96];
	} word;
	bool done;
	bool accept_stalled; /* no fd was left: the timer tries again */
	bool accept_clogged; /* likewise, until the closer has less to do */
	bool accept_more;    /* more may wait than one turn took */
	bool calls_more;     /* likewise, of a session */
	bool calls_stalled;  /* of a session that waits for closes */
	bool ending;         /* all sessions are being detached; done when none is left */
	int64_t started_ms;
	int64_t detach_deadline_ms; /* INT64_MAX: none */
	unsigned signals_seen;
	struct log_limit complaints, clogged;
	struct greeting *greetings;
	struct session *sessions;
	struct operator *operators;
	uint32_t n_greetings, n_sessions, n_operators;
	uint64_t n_sessions_total, n_refused;
	char welcome[4 + MSG_SOCKET_MAX];
};

/* Log a peer's misbehaviour, unless too much of that was logged lately. */
#define serve_complain(serve, ...)                                                                 \
	log_limited(&(serve)->complaints, LOG_LEVEL_WARN, __VA_ARGS__)

/* serve.c */
int64_t serve_now_ms(void);
/* Take no new sessions; done when nothing is in flight, or after the drain timeout. */
void serve_drain(struct serve *serve, const char *why);
void serve_session_gone(struct serve *serve);
/* The next connection (nonblocking, close-on-exec), or -EAGAIN when there is none or the turn's
 * share is taken; notes what is left for later. */
int serve_accept(struct serve *serve, int listener, uint32_t *n_turn);
/* Too many descriptors of this user's wait to be closed: what hangs is nobody's loss but theirs who
 * made it so. */
bool serve_is_clogged(struct serve *serve, uid_t uid);

/* handshake.c */
void greeting_accept(struct serve *serve);
void greeting_free(struct greeting *greeting);
/* Close those that took too long. */
void greetings_expire(struct serve *serve, int64_t now_ms);

/* welcome.c */
/* 0, or a negative status and a text that names the limit. */
int welcome_admit(struct serve *serve, const struct socket_peer *peer,
	const struct msg_hello *hello, char text[static MSG_TEXT_MAX]);
/* Send WELCOME with the session's fds; -EAGAIN if the peer's socket has no room for it. */
int welcome_send(struct serve *serve, const struct session *session);
/* Answer HELLO with a refusal, if there is room for it. */
void welcome_refuse(struct serve *serve, int fd, int status, const char *text);

/* session.c */
/* A session that the engine has, and its WELCOME. 0, with fd and pidfd taken over, or -errno with
 * nothing said to the peer. */
int session_new(struct serve *serve, int fd, const struct socket_peer *peer,
	const struct msg_hello *hello);
/* Ask the engine to let go; the socket closes when it has. */
void session_detach(struct session *session, const char *why);
/* The engine has let go. */
void session_free(struct session *session);
struct session *session_find(struct serve *serve, uint64_t number);
/* Ask again where the engine's mailbox had no room. */
void sessions_retry(struct serve *serve);

/* It broke the protocol, and how. */
void session_break(struct session *session, const char *what);

/* buffers.c */
int session_buffers_new(struct session *session);
/* After the engine has let go, and the builder. */
void session_buffers_free(struct session *session);
/* A job of the session's is with the builder: it cannot be freed yet. */
bool session_buffers_busy(const struct session *session);
uint32_t session_buffers_count(const struct session *session, uint64_t *ret_bytes);
/* Of all sessions: buffers, and buffers and fences that are to be given back: those that wait for the
 * last step that names them, and those in the builder's queue. */
uint32_t serve_buffers(const struct serve *serve, uint32_t *ret_n_closing);
/* Nothing names the closed buffer any more. */
void session_buffer_closed(struct session *session, uint32_t id);

/* receive.c */
void session_on_socket(void *userdata, struct loop_source *source, uint32_t events);
/* Continue with sessions that had their share of a turn, or that wait for closes. */
void sessions_go_on(struct serve *serve);

/* calls.c */
/* Do the call that is whole in session->buffers, of so many bytes behind its length. */
void session_call(struct session *session, uint32_t length);
/* May this client have us map memory of its own? */
bool session_may_import(const struct session *session);
void serve_on_builder(void *userdata, struct loop_source *source, uint32_t events);

/* admin.c */
void operator_accept(struct serve *serve);
void operator_free(struct operator *operator);
void operators_expire(struct serve *serve, int64_t now_ms);
/* It is known what came of the drain: tell those who asked, and who will ask yet. */
void operators_tell(struct serve *serve, int status, const char *text);

struct operator_request {
	char op[16];
	uint64_t session;
	bool has_session;
	char model[64], graph[32]; /* "": not given */
};

/* orders.c */
void answer_order(struct serve *serve, const struct operator_request *request, struct reply *reply);

/* answers.c */
/* Fill the reply to a request. */
void answer_status(struct serve *serve, struct reply *reply);
void answer_sessions(struct serve *serve, struct reply *reply);
void answer_models(struct serve *serve, struct reply *reply);
void answer_graphs(struct serve *serve, struct reply *reply);
const char *serve_state_name(const struct serve *serve);

/* exposition.c */
struct metrics;
/* Every counter of the daemon. */
void exposition_collect(const struct serve *serve, struct metrics *metrics);
void answer_metrics(struct serve *serve, struct reply *reply);
uint32_t count_open_fds(void);
uint64_t resident_bytes(void);

/* notify.c: systemd's readiness protocol; nothing without it */
void notify_ready(const char *status);
void notify_status(const char *status);
void notify_stopping(void);

#endif
