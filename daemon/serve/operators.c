/* SPDX-License-Identifier: MIT */
#include "daemon/serve/operators.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include <mimeo/types.h>

#include "daemon/serve/accept.h"
#include "daemon/serve/admin_request.h"
#include "daemon/serve/admin_wire.h"
#include "daemon/serve/answers.h"
#include "daemon/serve/drain.h"
#include "daemon/serve/exposition.h"
#include "daemon/serve/models.h"
#include "daemon/serve/orders.h"
#include "daemon/serve/queries.h"
#include "daemon/serve/reload.h"
#include "daemon/serve/session.h"
#include "daemon/serve/set.h"
#include "daemon/serve/tracing.h"
#include "daemon/serve/welcome.h"
#include "ipc/cleanup.h"

#define OPERATORS_MAX 16u /* and as many monitors */
#define OPERATOR_TIMEOUT_MS 10000u /* to send a request, to take a reply */

struct operator {
	struct serve *serve;
	struct loop_source *source;
	int fd;
	pid_t pid;
	uid_t uid;
	bool monitor; /* may look, and order nothing */
	int64_t deadline_ms; /* INT64_MAX: it has its reply, and there is no deadline */
	int64_t since_ms;    /* of its last message, or of its connect */
	uint32_t n_bytes;
	uint8_t bytes[4 + ADMIN_REQUEST_MAX + 1];
	struct reply reply;
	size_t n_sent;
	bool replying;
	struct engine_query *query; /* the engine's, whose answer the reply waits for; NULL: none */
	bool awaits_model;          /* the reply waits for models.c */
	bool drains; /* asked for a drain whose result has not been sent */
	struct operator *prev, *next;
};

static void operator_free(struct operator *operator)
{
	if (!operator)
		return;
	struct serve *serve = operator->serve;

	loop_remove(serve->loop, operator->source);
	if (operator->query)
		operator->query->userdata = NULL;
	models_forget(serve, operator);
	if (operator->replying)
		reply_deinit(&operator->reply);
	closer_hang_up(serve->closer, operator->fd, operator->uid);
	assert(serve->n_operators > 0);
	DL_DELETE(serve->operators, operator);
	serve->n_operators--;
	free(operator);
}

/* ---- requests ---- */

static void operator_answer_drain(struct operator *operator)
{
	struct serve *serve = operator->serve;
	uint32_t n = drain_n_requests(serve);

	reply_sayf(&operator->reply, 0, "draining: %u request%s in flight", n, n == 1 ? "" : "s");
	REPLY_ROW(&operator->reply, CELL_COUNT("pid", (uint64_t)getpid()),
		CELL_COUNT("passed", serve->operators_socket.passed));
	operator->drains = true;
	drain_begin(serve, "an operator asked for it");
}

static void operator_answer_kill(
	struct serve *serve, const struct admin_request *request, struct reply *reply)
{
	struct session *session = session_find(serve, request->session);

	if (!request->has_session || !session) {
		reply_sayf(reply, MIMEO_E_INVALID, "no session %llu is open: mimeoctl sessions lists those that are",
			(unsigned long long)request->session);
		return;
	}
	reply_sayf(reply, 0, "session %u (%s, pid %d) is being closed", session->port.session,
		session->port.name, (int)session->port.pid);
	log_info("session %u: killed by an operator", session->port.session);
	session_detach(session, "an operator killed it");
}

static bool operator_is_monitored(const char *op)
{
	static const char *const ops[] = {
		"status", "sessions", "models", "graphs", "metrics", "requests", "pages", "limits"};

	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (strcmp(op, ops[i]) == 0)
			return true;
	}
	return false;
}

static void operator_reply_models(void *userdata, int status, const char *text);

static void operator_answer(struct operator *operator, const struct admin_request *request)
{
	static const struct {
		const char *op;
		void (*fill)(struct serve *serve, struct reply *reply);
	} listings[] = {
		{"status", answers_status},
		{"sessions", answers_sessions},
		{"models", answers_models},
		{"graphs", answers_graphs},
		{"metrics", exposition_answer},
		{"reload", reload_answer},
	};

	struct serve *serve = operator->serve;
	struct reply *reply = &operator->reply;

	if (operator->monitor && !operator_is_monitored(request->op)) {
		reply_sayf(reply, MIMEO_E_DENIED, "%s: the monitors' socket takes no orders: be root or the daemon's user",
			request->op);
		return;
	}
	for (size_t i = 0; i < sizeof(listings) / sizeof(listings[0]); i++) {
		if (strcmp(request->op, listings[i].op) == 0) {
			listings[i].fill(serve, reply);
			return;
		}
	}
	if (queries_begin(serve, request, operator, reply, &operator->query) >= 0)
		return;
	if (strcmp(request->op, "drain") == 0)
		operator_answer_drain(operator);
	else if (strcmp(request->op, "trace") == 0)
		tracing_answer(serve, request->setting, request->request, reply);
	else if (strcmp(request->op, "set") == 0)
		set_answer(serve, request->setting, reply);
	else if (strcmp(request->op, "kill") == 0)
		operator_answer_kill(serve, request, reply);
	else if (strcmp(request->op, "load") == 0 || strcmp(request->op, "unload") == 0)
		operator->awaits_model = models_begin(serve, request,
			&(struct models_waiter){operator_reply_models, operator}, reply);
	else if (strcmp(request->op, "capture") == 0 || strcmp(request->op, "drop") == 0)
		orders_answer(serve, request->op[0] == 'c', request->model, request->graph, reply);
	else
		reply_say(reply, MIMEO_E_UNSUPPORTED, "this daemon knows no such operation");
}

/* ---- replies ---- */

/* Send a reply without rows, if the socket has space for it. */
static void operator_say(int fd, int status, const char *text)
{
	struct reply reply;

	reply_init(&reply);
	reply_say(&reply, status, text);
	if (reply_end(&reply) == 0)
		(void)!send(fd, reply.out.data, reply.out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
	reply_deinit(&reply);
}

/* Send the result of the drain to an operator who asked for it and has taken all earlier replies. */
static void operator_report_drain(struct operator *operator)
{
	const struct serve *serve = operator->serve;

	if (!serve->drain_result.known || !operator->drains || operator->replying)
		return;
	operator->drains = false;
	operator_say(operator->fd, serve->drain_result.status, serve->drain_result.text);
}

/* Send what the socket takes of the reply. 0 or -errno. */
static int operator_flush(struct operator *operator)
{
	const msgpack_sbuffer *out = &operator->reply.out;

	while (operator->n_sent < out->size) {
		ssize_t n = send(operator->fd, out->data + operator->n_sent,
			out->size - operator->n_sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		operator->n_sent += (size_t)n;
	}
	assert(operator->replying && operator->n_sent == out->size);
	reply_deinit(&operator->reply);
	operator->replying = false;
	operator->deadline_ms = INT64_MAX;
	operator_report_drain(operator);
	return 0;
}

/* Refuse a client that connected to the operators' socket, in its protocol, with the right socket. False if
 * the peer is no client. */
static bool operator_refuse_client(struct operator *operator, uint32_t length)
{
	struct msg_hello hello;
	struct msg_detail detail;
	char text[MSG_TEXT_MAX];

	if (msg_hello_decode(operator->serve->codec, operator->bytes + 4, length, &hello, &detail) < 0)
		return false;
	snprintf(text, sizeof(text), "this is the operators' socket; clients attach to %s",
		operator->serve->socket);
	welcome_refuse(operator->serve, operator->fd, MIMEO_E_PROTOCOL, text);
	serve_complain(operator->serve, "a client (pid %d) connected to the operators' socket; use %s",
		(int)operator->pid, operator->serve->socket);
	return true;
}

/* The reply is complete. 0, or -errno if the connection has to be closed. */
static int operator_send(struct operator *operator)
{
	operator->deadline_ms = serve_now_ms() + OPERATOR_TIMEOUT_MS;
	int rc = reply_end(&operator->reply);
	return rc < 0 ? rc : operator_flush(operator);
}

/* Answer a complete request, or have the engine answer it. 0, or -errno if the connection has to be closed. */
static int operator_respond(struct operator *operator, uint32_t length)
{
	struct admin_request request;

	if (!admin_request_parse(&request, operator->bytes + 4, length))
		return operator_refuse_client(operator, length) ? -ECONNRESET : -EPROTO;
	assert(!operator->replying);
	reply_init(&operator->reply);
	operator->replying = true;
	operator_answer(operator, &request);
	operator->n_sent = 0;
	operator->n_bytes = 0;
	operator->deadline_ms = INT64_MAX;
	return operator->query || operator->awaits_model ? 0 : operator_send(operator);
}

/* ---- the connection ---- */

/* Receive and answer requests until the socket is empty. 0 or -errno. */
static int operator_receive(struct operator *operator)
{
	for (;;) {
		uint32_t length;
		ssize_t n = closer_receive(operator->fd, operator->bytes + operator->n_bytes,
			sizeof(operator->bytes) - operator->n_bytes, NULL);

		if (n < 0)
			return n == -EAGAIN ? 0 : (int)n;
		if (n == 0)
			return -ECONNRESET;
		if (operator->replying)
			return -EPROTO;
		if (operator->n_bytes == 0)
			operator->deadline_ms = serve_now_ms() + OPERATOR_TIMEOUT_MS;
		operator->n_bytes += (uint32_t)n;
		operator->since_ms = serve_now_ms();
		assert(operator->n_bytes <= sizeof(operator->bytes));
		int rc = socket_parse_length(operator->bytes, operator->n_bytes, ADMIN_REQUEST_MAX,
			&length);
		if (rc < 0)
			return -EPROTO;
		if (rc == 0)
			continue;
		rc = operator_respond(operator, length);
		if (rc < 0)
			return rc;
	}
}

/* 0, or -errno if the connection is to be closed. */
static int operator_advance(struct operator *operator)
{
	if (operator->replying && !operator->query && !operator->awaits_model) {
		int rc = operator_flush(operator);

		if (rc < 0)
			return rc;
	}
	return operator_receive(operator);
}

static void operator_close(struct operator *operator, int rc)
{
	if (rc == -EPROTO)
		serve_complain(operator->serve, "pid %d sent no request to the operators' socket: closed",
			(int)operator->pid);
	else if (rc != -ECONNRESET && rc != -EPIPE)
		serve_complain(operator->serve, "operator with pid %d: %s: closed",
			(int)operator->pid, strerror(-rc));
	operator_free(operator);
}

/* May free the operator. */
static void operator_reply_models(void *userdata, int status, const char *text)
{
	struct operator *operator = userdata;

	assert(operator->replying && operator->awaits_model);
	operator->awaits_model = false;
	reply_say(&operator->reply, status, text);
	int rc = operator_send(operator);
	if (rc < 0)
		operator_close(operator, rc);
}

void operators_take_queries(struct serve *serve)
{
	struct engine_query *query;

	while ((query = engine_query_take(serve->options.engine))) {
		struct operator *operator = query->userdata;
		int rc = 0;

		if (operator) {
			operator->query = NULL;
			queries_answer(serve, query, &operator->reply);
			rc = operator_send(operator);
		}
		engine_query_free(query);
		if (rc < 0)
			operator_close(operator, rc);
	}
}

static void operator_on_socket(void *userdata, struct loop_source *source, uint32_t events)
{
	struct operator *operator = userdata;

	int rc = operator_advance(operator);
	if (rc < 0)
		operator_close(operator, rc);
}

void operators_expire(struct serve *serve, int64_t now_ms)
{
	struct operator *operator, *next;

	DL_FOREACH_SAFE (serve->operators, operator, next) {
		if (now_ms < operator->deadline_ms)
			continue;
		serve_complain(serve, "operator with pid %d: too slow: closed", (int)operator->pid);
		operator_free(operator);
	}
}

void operators_report_drain(struct serve *serve, int status, const char *text)
{
	struct operator *operator;

	serve->drain_result.known = true;
	serve->drain_result.status = status;
	snprintf(serve->drain_result.text, sizeof(serve->drain_result.text), "%s", text);
	DL_FOREACH (serve->operators, operator)
		operator_report_drain(operator);
}

static void operator_turn_away(struct serve *serve, int fd, uid_t uid, int status, const char *text)
{
	serve_complain(serve, "operator refused: %s", text);
	operator_say(fd, status, text);
	closer_hang_up(serve->closer, fd, uid);
}

/* Close the connection that has been idle for longest, for a new one. False if all are busy. */
static bool operator_make_room(struct serve *serve, bool monitor)
{
	struct operator *operator, *idle = NULL;

	DL_FOREACH (serve->operators, operator) {
		if (operator->monitor == monitor && !operator->replying && !operator->drains &&
			(!idle || operator->since_ms < idle->since_ms))
			idle = operator;
	}
	if (!idle)
		return false;
	serve_complain(serve, "operator with pid %d: idle, and others connect: closed", (int)idle->pid);
	operator_free(idle);
	return true;
}

static uint32_t operator_count(const struct serve *serve, bool monitor)
{
	const struct operator *operator;
	uint32_t n = 0;

	DL_FOREACH (serve->operators, operator)
		n += operator->monitor == monitor;
	return n;
}

/* Takes fd over. The mode of the monitors' socket says who may connect there. */
static void operator_admit(struct serve *serve, int fd, bool monitor)
{
	struct socket_peer peer;
	char text[96], limit[32];

	if (socket_peer(fd, &peer) < 0) {
		closer_hang_up(serve->closer, fd, (uid_t)-1);
		return;
	}
	cleanup_close(&peer.pidfd);
	if (!monitor && peer.uid != 0 && peer.uid != geteuid()) {
		snprintf(text, sizeof(text), "uid %u is neither root nor the daemon's own",
			(unsigned)peer.uid);
		operator_turn_away(serve, fd, peer.uid, MIMEO_E_DENIED, text);
		return;
	}
	if (operator_count(serve, monitor) == OPERATORS_MAX && !operator_make_room(serve, monitor)) {
		snprintf(limit, sizeof(limit), "%u at once", OPERATORS_MAX);
		msg_quota_explain(&(struct msg_quota){"connections", "", 1, 0, monitor ? "monitors" : "operators",
			limit}, text, sizeof(text));
		operator_turn_away(serve, fd, peer.uid, MIMEO_E_QUOTA, text);
		return;
	}
	struct operator *operator = calloc(1, sizeof(*operator));
	if (!operator) {
		operator_turn_away(serve, fd, peer.uid, MIMEO_E_NO_MEMORY, "no memory for another operator");
		return;
	}
	operator->serve = serve;
	operator->fd = fd;
	operator->pid = peer.pid;
	operator->uid = peer.uid;
	operator->monitor = monitor;
	operator->since_ms = serve_now_ms();
	operator->deadline_ms = operator->since_ms + OPERATOR_TIMEOUT_MS;
	DL_APPEND(serve->operators, operator);
	serve->n_operators++;
	assert(serve->n_operators <= 2 * OPERATORS_MAX);
	if (loop_add(serve->loop, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, operator_on_socket, operator,
		    &operator->source) < 0)
		operator_free(operator);
}

void operators_accept(struct serve *serve)
{
	uint32_t n_turn = 0;
	int fd;

	while ((fd = accept_next(serve, serve->operators_socket.fd, &n_turn)) >= 0)
		operator_admit(serve, fd, false);
	while ((fd = accept_next(serve, serve->monitors_socket.fd, &n_turn)) >= 0)
		operator_admit(serve, fd, true);
}

void operators_free_all(struct serve *serve)
{
	struct operator *operator, *next;

	DL_FOREACH_SAFE (serve->operators, operator, next)
		operator_free(operator);
}
