/* SPDX-License-Identifier: MIT */
#include "daemon/serve/serve_state.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include <mimeo/types.h>

#include "daemon/serve/buffers.h"
#include "daemon/serve/calls.h"
#include "daemon/serve/drain.h"
#include "daemon/serve/handshake.h"
#include "daemon/serve/notify.h"
#include "daemon/serve/operators.h"
#include "daemon/serve/receive.h"

#define HANDSHAKE_TIMEOUT_MS 5000u
#define COMPLAINTS_PER_SECOND 5u

/* ---- signals ---- */

/*
 * A handler and not a signalfd: the BLAS library starts threads before main does, in which a signal
 * that is only blocked here would still kill the process.
 */
static _Atomic(struct loop *) signal_loop;
static atomic_uint signal_count;
static atomic_uint signal_inside; /* handlers that run, on whatever thread */
static struct sigaction saved_actions[3];
static const int handled_signals[3] = {SIGTERM, SIGINT, SIGPIPE};

static void on_signal(int number)
{
	int saved = errno;

	(void)number;
	atomic_fetch_add(&signal_inside, 1);
	struct loop *loop = atomic_load(&signal_loop);
	atomic_fetch_add(&signal_count, 1);
	if (loop)
		loop_wake(loop);
	atomic_fetch_sub(&signal_inside, 1);
	errno = saved;
}

static void signals_take(struct loop *loop)
{
	for (size_t i = 0; i < 3; i++) {
		struct sigaction action = {
			.sa_handler = handled_signals[i] == SIGPIPE ? SIG_IGN : on_signal,
			.sa_flags = SA_RESTART,
		};

		sigemptyset(&action.sa_mask);
		sigaction(handled_signals[i], &action, &saved_actions[i]);
	}
	atomic_store(&signal_loop, loop);
}

static void signals_give_back(void)
{
	for (size_t i = 0; i < 3; i++)
		sigaction(handled_signals[i], &saved_actions[i], NULL);
	atomic_store(&signal_loop, NULL);
	/* One that has the loop's address yet may wake it yet. */
	while (atomic_load(&signal_inside) > 0)
		sched_yield();
}

static void signals_look(struct serve *serve)
{
	unsigned count = atomic_load(&signal_count);

	if (count == serve->signals_seen)
		return;
	bool second = serve->signals_seen > 0 || count > 1;
	serve->signals_seen = count;
	if (!second) {
		drain_begin(serve, "a signal came");
		return;
	}
	log_warn("a second signal came: ending at once, sessions cut off: %u",
		serve->n_sessions);
	if (serve->n_sessions > 0)
		serve->result |= SERVE_ABANDONED;
	serve->done = true;
}

/* ---- the end ---- */

/* Every request has ended, well or cut off. */
static void drained(struct serve *serve)
{
	const struct engine_stats *stats = engine_stats(serve->options.engine);
	uint64_t n = atomic_load(&stats->n_aborted);
	char text[96] = "drained";

	if (n > 0) {
		snprintf(text, sizeof(text), "requests cut off by the drain timeout of %u s: %llu",
			serve->options.drain_timeout_s, (unsigned long long)n);
		log_warn("%s", text);
		serve->result |= SERVE_CUT_OFF;
	} else {
		log_info("%s", text);
	}
	operators_report_drain(serve, n > 0 ? MIMEO_E_DRAINING : 0, text);
	drain_end_sessions(serve);
}

static void device_lost(struct serve *serve, const char *text)
{
	log_error("device lost: %s: every request was ended, the daemon exits", text);
	serve->state = SERVE_FAILED;
	serve->result |= SERVE_DEVICE_LOST;
	operators_report_drain(serve, MIMEO_E_DEVICE_LOST, "device lost: every request was ended");
	notify_status("device lost");
	notify_stopping();
	drain_end_sessions(serve);
}

/* ---- what happens ---- */

static void report_handle(struct serve *serve, const struct engine_report *report)
{
	struct session *session = report->port ? report->port->userdata : NULL;

	switch (report->kind) {
	case ENGINE_DETACHED:
		session_free(session);
		break;
	case ENGINE_PROTOCOL:
		serve_complain(serve, "session %u (%s, pid %d): %s: detached",
			report->port->session, report->port->name, (int)report->port->pid,
			report->text);
		session_detach(session, "it broke the protocol");
		break;
	case ENGINE_DRAINED:
		drained(serve);
		break;
	case ENGINE_DEVICE_LOST:
		device_lost(serve, report->text);
		break;
	}
}

static void on_report(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;
	struct engine_report report;
	struct engine_port *port;
	uint32_t buffer;

	(void)source;
	(void)events;
	while (engine_buffer_take(serve->options.engine, &port, &buffer))
		session_buffer_closed(port->userdata, buffer);
	while (engine_report_take(serve->options.engine, &report))
		report_handle(serve, &report);
}

static void on_client(void *userdata, struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events;
	handshake_accept(userdata);
}

static void on_operator(void *userdata, struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events;
	operators_accept(userdata);
}

static void on_tick(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;
	int64_t now = serve_now_ms();

	(void)source;
	(void)events;
	handshake_expire(serve, now);
	operators_expire(serve, now);
	sessions_retry(serve);
	closer_tick(serve->closer);
	if (now >= serve->detach_deadline_ms && !serve->done) {
		log_error("sessions that the engine does not let go: %u: giving up on them",
			serve->n_sessions);
		serve->result |= SERVE_ABANDONED;
		serve->done = true;
	}
	if (serve->accept_stalled) {
		serve->accept_stalled = false;
		serve->accept_more = true;
	}
}

/* ---- life ---- */

static int sources_add(struct serve *serve)
{
	uint32_t tick = serve->options.handshake_timeout_ms / 4;

	tick = tick < 10 ? 10 : tick > 1000 ? 1000 : tick;
	int r = loop_add(serve->loop, engine_report_fd(serve->options.engine), EPOLLIN, on_report,
		serve, &serve->report_source);
	if (r == 0 && serve->options.builder)
		r = loop_add(serve->loop, builder_fd(serve->options.builder), EPOLLIN,
			calls_on_builder, serve, &serve->builder_source);
	if (r < 0)
		return r;
	return loop_add_timer(serve->loop, tick, on_tick, serve, &serve->timer);
}

int serve_new(const struct serve_options *options, struct serve **ret)
{
	struct serve *serve = calloc(1, sizeof(*serve));
	if (!serve)
		return -ENOMEM;

	serve->options = *options;
	if (serve->options.handshake_timeout_ms == 0)
		serve->options.handshake_timeout_ms = HANDSHAKE_TIMEOUT_MS;
	serve->listener = serve->admin_listener = -1;
	serve->detach_deadline_ms = INT64_MAX;
	serve->started_ms = serve_now_ms();
	serve->complaints.per_second = COMPLAINTS_PER_SECOND;
	serve->clogged.per_second = 1;
	atomic_store(&signal_count, 0);

	int r = socket_path(serve->socket, options->socket);
	if (r == 0)
		r = socket_admin_path(serve->admin_socket, serve->socket);
	if (r == 0 && getrandom(&serve->nonce, sizeof(serve->nonce), 0) < 0)
		r = -errno;
	if (r == 0)
		r = msg_codec_new(&serve->codec);
	if (r == 0)
		r = loop_new(&serve->loop, options->loop);
	if (r == 0)
		r = closer_new(&serve->closer, serve->loop);
	if (r == 0)
		r = life_new(&serve->life);
	if (r < 0)
		goto fail;
	signals_take(serve->loop);
	r = sources_add(serve);
	if (r < 0)
		goto fail;
	*ret = serve;
	return 0;
fail:
	serve_free(serve);
	return r;
}

static void listener_close(
	struct serve *serve, struct loop_source *source, int fd, const char *path)
{
	if (source)
		loop_remove(serve->loop, source);
	if (fd >= 0) {
		unlink(path);
		/* With the connections that nobody accepted. */
		closer_take(serve->closer, fd, (uid_t)-1);
	}
}

void serve_free(struct serve *serve)
{
	if (!serve)
		return;
	handshake_free_all(serve);
	operators_free_all(serve);
	listener_close(serve, serve->listener_source, serve->listener, serve->socket);
	listener_close(serve, serve->admin_source, serve->admin_listener, serve->admin_socket);
	closer_free(serve->closer);
	if (serve->loop) {
		signals_give_back();
		if (serve->report_source)
			loop_remove(serve->loop, serve->report_source);
		if (serve->builder_source)
			loop_remove(serve->loop, serve->builder_source);
		if (serve->timer)
			loop_remove(serve->loop, serve->timer);
		if (serve->drain_timer)
			loop_remove(serve->loop, serve->drain_timer);
		loop_free(serve->loop);
	}
	life_free(serve->life);
	msg_codec_free(serve->codec);
	free(serve);
}

static int listen_on(struct serve *serve, const char *path, loop_callback callback, int *ret_fd,
	struct loop_source **ret_source)
{
	int fd = socket_bind(path);
	if (fd < 0)
		return fd;
	*ret_fd = fd;
	return loop_add(serve->loop, fd, EPOLLIN, callback, serve, ret_source);
}

static void announce(struct serve *serve)
{
	struct engine *engine = serve->options.engine;
	uint32_t n_models = engine_n_models(engine);
	uint32_t n_graphs = 0, n_ready = 0;
	double seconds = 0;
	char text[256];

	for (uint32_t i = 0; i < n_models; i++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, i, &facts);
		seconds += facts.capture_seconds;
		n_graphs += facts.n_graphs;
		n_ready += facts.n_ready;
	}
	snprintf(text, sizeof(text),
		"serving %u model%s on %s (device %s, loop %s, %u of %u graphs captured in %.2f s)",
		n_models, n_models == 1 ? "" : "s", serve->socket, serve->options.device,
		loop_name(serve->loop), n_ready, n_graphs, seconds);
	log_info("ready: %s", text);
	notify_ready(text);
}

int serve_run(struct serve *serve)
{
	int r = listen_on(serve, serve->admin_socket, on_operator, &serve->admin_listener,
		&serve->admin_source);
	if (r == 0)
		r = listen_on(serve, serve->socket, on_client, &serve->listener,
			&serve->listener_source);
	if (r < 0)
		return r;
	serve->state = SERVE_SERVING;
	announce(serve);

	for (;;) {
		signals_look(serve);
		if (serve->done || (serve->ending && serve->n_sessions == 0))
			break;
		r = loop_run_once(
			serve->loop, serve->accept_more || serve->calls_more ? 0 : -1);
		if (r < 0 && r != -EINTR) {
			log_error("loop failed: %s", strerror(-r));
			return r;
		}
		if (serve->accept_clogged && closer_n(serve->closer) < CLOSER_MAX) {
			serve->accept_clogged = false;
			serve->accept_more = true;
		}
		if (serve->calls_more || serve->calls_stalled)
			receive_continue(serve);
		if (serve->accept_more) {
			serve->accept_more = false;
			handshake_accept(serve);
			operators_accept(serve);
		}
	}
	return serve->result;
}
