/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_SERVE_STATE_H
#define MIMEO_DAEMON_SERVE_SERVE_STATE_H

/*
 * What the modules of serving share. All of it belongs to the loop thread.
 *
 * A client is a greeting (handshake.c) from accept until its HELLO is answered, then a session
 * (session.h) until the engine has handed its port back and the socket is closed. An operator
 * (operators.c) has no other state. Each has a bounded number, a bounded buffer, and a deadline
 * whenever it is the peer's turn.
 */

#include "daemon/loop/loop.h"
#include "daemon/output/log.h"
#include "daemon/serve/closer.h"
#include "daemon/serve/life.h"
#include "daemon/serve/quota.h"
#include "daemon/serve/serve.h"
#include "daemon/serve/user_totals.h"
#include "ipc/clock.h"
#include "ipc/msg.h"
#include "ipc/socket.h"

enum serve_state { SERVE_STARTING, SERVE_SERVING, SERVE_DRAINING, SERVE_FAILED };

struct serve {
	struct serve_options options;
	char socket[SOCKET_PATH_MAX], admin_socket[SOCKET_PATH_MAX], monitor_socket[SOCKET_PATH_MAX];
	struct loop *loop;
	struct loop_source *listener_source, *admin_source, *monitor_source, *report_source, *timer, *drain_timer;
	uint32_t drain_timeout_s; /* of this drain: a reload changes that of a later one */
	struct loop_source *builder_source, *watchdog;
	struct loop_source *request_lines; /* a timer; NULL: requests are not logged */
	uint64_t n_pings; /* posted for the watchdog */
	struct serve_listener clients, operators_socket, monitors_socket;
	int metrics_fd;        /* until the scrape has it; 0: none */
	struct scrape *scrape; /* NULL: no metrics over HTTP */
	struct closer *closer;
	struct life *life;
	struct quota *quota;
	struct msg_codec *codec;
	uint64_t nonce;
	uint32_t last_session;
	enum serve_state state;
	int result; /* bits of enum serve_result */
	bool done;
	bool accept_stalled; /* no fd was left: the timer tries again */
	bool accept_closes_full; /* nothing is accepted until fewer closes are pending */
	bool accept_more;    /* more may wait than one turn took */
	bool calls_more;     /* a session may have more calls than one turn took */
	bool calls_stalled;  /* of a session that waits for closes */
	bool line_moves;     /* a session has ended, or the state has changed: handshake_move_line */
	bool ending;         /* all sessions are being detached; done when none is left */
	int64_t started_ms;
	int64_t detach_deadline_ms; /* INT64_MAX: none */
	unsigned signals_seen;
	struct log_limit complaints, clogged;
	struct greeting *greetings;
	struct session *sessions;
	struct operator *operators;
	struct models *models; /* NULL: no operator has loaded or unloaded one */
	uint32_t n_greetings, n_in_line, n_sessions, n_operators; /* n_operators: with monitors */
	uint64_t n_sessions_total, n_refused;
	uint64_t n_reclaimed; /* sessions that ended with requests in flight or sequences open */
	uint64_t n_quota_sessions, n_quota_buffers; /* refused for a limit: connections, calls */
	struct user_totals user_totals;
	/* The result of a drain, for the operators who asked for it. */
	struct {
		bool known;
		int status;
		char text[96];
	} drain_result;
	char welcome[MSG_SOCKET_MAX]; /* being encoded */
};

static inline int64_t serve_now_ms(void)
{
	return (int64_t)(clock_ns() / 1000000);
}

/* Log a peer's misbehaviour, unless too much of that was logged lately. */
#define serve_complain(serve, ...)                                                                 \
	log_limited(&(serve)->complaints, LOG_LEVEL_WARN, __VA_ARGS__)

#endif
