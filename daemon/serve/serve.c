/* SPDX-License-Identifier: MIT */
#include "daemon/serve/serve_state.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include <mimeo/types.h>

#include "daemon/serve/buffers.h"
#include "daemon/serve/calls.h"
#include "daemon/serve/drain.h"
#include "daemon/serve/handshake.h"
#include "daemon/serve/models.h"
#include "daemon/serve/notify.h"
#include "daemon/serve/operators.h"
#include "daemon/serve/receive.h"
#include "daemon/serve/reload.h"
#include "daemon/serve/request_lines.h"
#include "daemon/serve/scrape.h"
#include "daemon/serve/session.h"
#include "daemon/serve/watchdog.h"
#include "ipc/cleanup.h"

#define HANDSHAKE_TIMEOUT_MS 5000u
#define COMPLAINTS_PER_SECOND 5u
#define GREETINGS_LEAST 128u
#define GREETINGS_MOST 1024u

/* ---- signals ---- */

/*
 * A handler and not a signalfd: the BLAS library starts threads before main runs, and in them a signal
 * that is only blocked here would still kill the process.
 */
static _Atomic(struct loop *) signal_loop;
static atomic_uint signal_count;
static atomic_int signal_number; /* the latest */
static atomic_uint signal_inside; /* handlers that are running, on any thread */
static atomic_bool signal_hangup;
enum { N_SIGNALS = 4 };
static struct sigaction saved_actions[N_SIGNALS];
static const int handled_signals[N_SIGNALS] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE};

static void serve_on_signal(int number)
{
	int saved = errno;

	atomic_fetch_add(&signal_inside, 1);
	struct loop *loop = atomic_load(&signal_loop);
	if (number == SIGHUP) {
		atomic_store(&signal_hangup, true);
	} else {
		atomic_store(&signal_number, number);
		atomic_fetch_add(&signal_count, 1);
	}
	if (loop)
		loop_wake(loop);
	atomic_fetch_sub(&signal_inside, 1);
	errno = saved;
}

static void serve_take_signals(struct loop *loop)
{
	for (size_t i = 0; i < N_SIGNALS; i++) {
		struct sigaction action = {
			.sa_handler = handled_signals[i] == SIGPIPE ? SIG_IGN : serve_on_signal,
			.sa_flags = SA_RESTART,
		};

		sigemptyset(&action.sa_mask);
		sigaction(handled_signals[i], &action, &saved_actions[i]);
	}
	atomic_store(&signal_loop, loop);
}

static void serve_restore_signals(void)
{
	for (size_t i = 0; i < N_SIGNALS; i++)
		sigaction(handled_signals[i], &saved_actions[i], NULL);
	atomic_store(&signal_loop, NULL);
	/* A handler that has loaded the loop's address may still wake it. */
	while (atomic_load(&signal_inside) > 0)
		sched_yield();
}

static void serve_check_signals(struct serve *serve)
{
	unsigned count = atomic_load(&signal_count);

	if (atomic_exchange(&signal_hangup, false))
		reload_on_signal(serve);
	if (count == serve->signals_seen)
		return;
	bool second = serve->signals_seen > 0 || count > 1;
	const char *name = atomic_load(&signal_number) == SIGINT ? "SIGINT" : "SIGTERM";
	char why[32];

	assert(count > serve->signals_seen);
	serve->signals_seen = count;
	if (!second) {
		snprintf(why, sizeof(why), "received %s", name);
		drain_begin(serve, why);
		return;
	}
	log_warn("received %s again: ending at once, sessions cut off: %u", name,
		serve->n_sessions);
	if (serve->n_sessions > 0)
		serve->result |= SERVE_ABANDONED;
	serve->done = true;
}

/* ---- the end ---- */

/* Every request has ended, finished or cut off. */
static void serve_drained(struct serve *serve)
{
	const struct engine_stats *stats = engine_stats(serve->options.engine);
	uint64_t n = atomic_load(&stats->n_aborted);
	char text[96] = "drained";

	assert(serve->state == SERVE_DRAINING || serve->state == SERVE_FAILED);
	if (n > 0) {
		snprintf(text, sizeof(text), "requests cut off by the drain timeout of %u s: %llu",
			serve->drain_timeout_s, (unsigned long long)n);
		log_warn("%s", text);
		serve->result |= SERVE_CUT_OFF;
	} else {
		log_info("%s", text);
	}
	operators_report_drain(serve, n > 0 ? MIMEO_E_DRAINING : 0, text);
	drain_end_sessions(serve);
}

static void serve_device_lost(struct serve *serve, const char *text)
{
	assert(serve->state != SERVE_FAILED);
	log_error("device lost: %s: every request was ended, the daemon exits", text);
	serve->state = SERVE_FAILED;
	serve->line_moves = true;
	serve->result |= SERVE_DEVICE_LOST;
	operators_report_drain(serve, MIMEO_E_DEVICE_LOST, "device lost: every request was ended");
	notify_status("device lost");
	notify_stopping();
	drain_end_sessions(serve);
}

/* ---- events ---- */

static void serve_handle_report(struct serve *serve, const struct engine_report *report)
{
	struct session *session = report->port ? report->port->userdata : NULL;

	assert(!session || &session->port == report->port);
	switch (report->kind) {
	case ENGINE_DETACHED:
		assert(session && session->detaching);
		session_free(session);
		break;
	case ENGINE_PROTOCOL:
		serve_complain(serve, "session %u (%s, pid %d): %s: detached",
			report->port->session, report->port->name, (int)report->port->pid,
			report->text);
		session_detach(session, "it broke the protocol");
		break;
	case ENGINE_DRAINED:
		serve_drained(serve);
		break;
	case ENGINE_DEVICE_LOST:
		serve_device_lost(serve, report->text);
		break;
	}
}

static void serve_on_report(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;
	struct engine_report report;
	struct engine_port *port;
	uint32_t buffer;

	while (engine_buffer_take(serve->options.engine, &port, &buffer))
		buffers_closed(port->userdata, buffer);
	operators_take_queries(serve);
	models_take(serve);
	while (engine_report_take(serve->options.engine, &report))
		serve_handle_report(serve, &report);
}

/* With io_uring each connect is an event of its own: accepting here would take many budgets in one turn. */
static void serve_on_listener(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;

	serve->accept_more = true;
}

static void serve_on_tick(void *userdata, struct loop_source *source, uint32_t events)
{
	struct serve *serve = userdata;
	int64_t now = serve_now_ms();

	handshake_expire(serve, now);
	operators_expire(serve, now);
	scrape_run(serve->scrape);
	sessions_retry(serve);
	closer_tick(serve->closer);
	if (now >= serve->detach_deadline_ms && !serve->done) {
		log_error("the engine does not release sessions: %u: ending without them",
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

static int serve_add_sources(struct serve *serve)
{
	uint32_t tick = serve->options.handshake_timeout_ms / 4;

	tick = tick < 10 ? 10 : tick > 1000 ? 1000 : tick;
	int rc = loop_add(serve->loop, engine_report_fd(serve->options.engine), EPOLLIN, serve_on_report,
		serve, &serve->report_source);
	if (rc < 0)
		return rc;
	if (serve->options.builder) {
		rc = loop_add(serve->loop, builder_fd(serve->options.builder), EPOLLIN,
			calls_on_builder, serve, &serve->builder_source);
		if (rc < 0)
			return rc;
	}
	rc = loop_add_timer(serve->loop, tick, serve_on_tick, serve, &serve->timer);
	return rc < 0 ? rc : watchdog_start(serve);
}

/* What serve_free releases. 0 or -errno. */
static int serve_init(struct serve *serve)
{
	int rc = socket_path(serve->socket, serve->options.socket);
	if (rc < 0)
		return rc;
	rc = socket_admin_path(serve->admin_socket, serve->socket);
	if (rc < 0)
		return rc;
	rc = serve->options.monitored ? socket_monitor_path(serve->monitor_socket, serve->socket) : 0;
	if (rc < 0)
		return rc;
	if (getrandom(&serve->nonce, sizeof(serve->nonce), 0) < 0)
		return -errno;
	rc = msg_codec_new(&serve->codec);
	if (rc < 0)
		return rc;
	const struct quota_amounts totals = reload_totals(&serve->options);
	rc = quota_new(&totals, &serve->quota);
	if (rc < 0)
		return rc;
	rc = loop_new(&serve->loop, serve->options.loop);
	if (rc < 0)
		return rc;
	rc = closer_new(&serve->closer, serve->loop);
	if (rc < 0)
		return rc;
	rc = life_new(&serve->life);
	if (rc < 0)
		return rc;
	serve_take_signals(serve->loop);
	rc = serve_add_sources(serve);
	if (rc < 0 || !serve->metrics_fd)
		return rc;
	rc = scrape_new(serve, serve->metrics_fd, &serve->scrape);
	serve->metrics_fd = 0;
	return rc;
}

static uint64_t serve_descriptors(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? 1024 : (uint64_t)limit.rlim_cur;
}

/* A greeting has two descriptors. */
static uint32_t serve_max_greetings(void)
{
	uint64_t n = serve_descriptors() / 8;

	return n < GREETINGS_LEAST ? GREETINGS_LEAST : n < GREETINGS_MOST ? (uint32_t)n : GREETINGS_MOST;
}

DEFINE_CLEANUP(serve, struct serve, serve_free)

int serve_new(const struct serve_options *options, struct serve **ret)
{
	CLEANUP(cleanup_serve) struct serve *serve = calloc(1, sizeof(*serve));
	if (!serve)
		return -ENOMEM;

	serve->options = *options;
	if (serve->options.handshake_timeout_ms == 0)
		serve->options.handshake_timeout_ms = HANDSHAKE_TIMEOUT_MS;
	if (serve->options.max_greetings == 0)
		serve->options.max_greetings = serve_max_greetings();
	if (serve->options.max_descriptors == 0)
		serve->options.max_descriptors = serve_descriptors() / 2;
	serve->clients = options->clients ? *options->clients : (struct serve_listener){.fd = -1};
	serve->operators_socket =
		options->operators ? *options->operators : (struct serve_listener){.fd = -1};
	serve->monitors_socket = (struct serve_listener){.fd = -1};
	serve->metrics_fd = options->metrics_fd;
	serve->options.clients = serve->options.operators = NULL;
	serve->detach_deadline_ms = INT64_MAX;
	serve->started_ms = options->started_ms ? options->started_ms : serve_now_ms();
	serve->complaints.per_second = COMPLAINTS_PER_SECOND;
	serve->clogged.per_second = 1;
	atomic_store(&signal_count, 0);

	int rc = serve_init(serve);
	if (rc < 0)
		return rc;
	*ret = STEAL(serve);
	return 0;
}

static void serve_close_listener(struct serve *serve, struct loop_source *source,
	struct serve_listener *listener, const char *path)
{
	loop_remove(serve->loop, source);
	if (listener->fd < 0)
		return;
	serve_listener_remove(listener, path);
	/* Connections that were not accepted are closed with it. */
	if (serve->closer)
		closer_take(serve->closer, listener->fd, (uid_t)-1);
	else
		close(listener->fd);
}

void serve_free(struct serve *serve)
{
	if (!serve)
		return;
	handshake_free_all(serve);
	operators_free_all(serve);
	models_free(serve->models);
	assert(serve->n_greetings == 0 && !serve->greetings);
	assert(serve->n_operators == 0 && !serve->operators);
	serve_close_listener(serve, serve->listener_source, &serve->clients, serve->socket);
	serve_close_listener(
		serve, serve->admin_source, &serve->operators_socket, serve->admin_socket);
	serve_close_listener(
		serve, serve->monitor_source, &serve->monitors_socket, serve->monitor_socket);
	scrape_free(serve->scrape);
	if (serve->metrics_fd)
		close(serve->metrics_fd);
	closer_free(serve->closer);
	if (serve->loop) {
		serve_restore_signals();
		request_lines_end(serve);
		loop_remove(serve->loop, serve->report_source);
		loop_remove(serve->loop, serve->builder_source);
		loop_remove(serve->loop, serve->timer);
		loop_remove(serve->loop, serve->watchdog);
		loop_remove(serve->loop, serve->drain_timer);
		loop_free(serve->loop);
	}
	life_free(serve->life);
	quota_free(serve->quota);
	msg_codec_free(serve->codec);
	free(serve);
}

static int serve_listen(struct serve *serve, struct serve_listener *listener, const char *path,
	struct loop_source **ret_source)
{
	int rc = listener->fd < 0 ? serve_listener_bind(listener, path) : 0;

	return rc < 0 ? rc
		: loop_add(serve->loop, listener->fd, EPOLLIN, serve_on_listener, serve, ret_source);
}

/* 0 or -errno. The group is set before anybody is accepted. */
static int serve_listen_monitors(struct serve *serve)
{
	int rc = serve_listen(serve, &serve->monitors_socket, serve->monitor_socket, &serve->monitor_source);
	if (rc < 0)
		return rc;
	return chown(serve->monitor_socket, (uid_t)-1, serve->options.monitor_gid) < 0 ? -errno : 0;
}

#define MIB(bytes) ((double)(bytes) / 1048576)

static void serve_announce_model(const struct engine_model_facts *facts)
{
	log_info("model %s: %u slots, steps of up to %u tokens; memory in MiB: %.1f of weights, %.1f of KV cache "
		 "(%u pages), %.1f of step inputs and activations, %.1f of graphs; loaded in %.2f s, captured in "
		 "%.2f s",
		facts->name, facts->max_rows, facts->max_batch_tokens, MIB(facts->weights_bytes), MIB(facts->kv_bytes),
		facts->pages_total, MIB(facts->pool_bytes), MIB(facts->graph_bytes), facts->load_seconds,
		facts->capture_seconds);
}

static void serve_announce(struct serve *serve)
{
	struct engine *engine = serve->options.engine;
	uint32_t n_models = engine_n_models(engine);
	uint32_t n_graphs = 0, n_ready = 0;
	double seconds = 0;
	char text[256];

	for (uint32_t i = 0; i < n_models; i++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, i, &facts);
		serve_announce_model(&facts);
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

static int serve_wait_ms(const struct serve *serve)
{
	if (serve->accept_more || serve->calls_more || serve->line_moves)
		return 0;
	return handshake_wait_ms(serve);
}

int serve_run(struct serve *serve)
{
	assert(serve->state == SERVE_STARTING);
	int rc = serve_listen(
		serve, &serve->operators_socket, serve->admin_socket, &serve->admin_source);
	if (rc < 0)
		return rc;
	rc = serve->options.monitored ? serve_listen_monitors(serve) : 0;
	if (rc < 0)
		return rc;
	rc = serve_listen(serve, &serve->clients, serve->socket, &serve->listener_source);
	if (rc < 0)
		return rc;
	assert(serve->clients.fd >= 0 && serve->operators_socket.fd >= 0);
	serve->accept_more = true; /* who has connected before */
	serve->state = SERVE_SERVING;
	request_lines_set(serve);
	serve_announce(serve);

	for (;;) {
		serve_check_signals(serve);
		if (serve->done || (serve->ending && serve->n_sessions == 0))
			break;
		rc = loop_run_once(serve->loop, serve_wait_ms(serve));
		if (rc < 0 && rc != -EINTR) {
			log_error("loop failed: %s", strerror(-rc));
			return rc;
		}
		if (serve->accept_closes_full && closer_n(serve->closer) < CLOSER_MAX) {
			serve->accept_closes_full = false;
			serve->accept_more = true;
		}
		if (serve->calls_more || serve->calls_stalled)
			receive_continue(serve);
		if (serve->line_moves)
			handshake_move_line(serve);
		if (handshake_wait_ms(serve) == 0)
			handshake_expire(serve, serve_now_ms());
		if (serve->accept_more) {
			serve->accept_more = false;
			handshake_accept(serve);
			operators_accept(serve);
		}
	}
	if (models_is_working(serve))
		serve->result |= SERVE_LOADING;
	return serve->result;
}
