/* SPDX-License-Identifier: MIT */
/*
 * Letters between the loop thread and the engine: attach, detach, drain, abort, stop one way;
 * reports the other. Rare events, so a lock and a list; the engine looks at one flag on its way.
 */
#include "daemon/engine/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ipc/doorbell.h"

enum mail_kind {
	MAIL_ATTACH,
	MAIL_DETACH,
	MAIL_BUFFER_CLOSE,
	MAIL_DRAIN,
	MAIL_ABORT,
	MAIL_STOP,
	MAIL_GRAPHS,
	MAIL_RELIEVE,
};

struct mail {
	struct mail *next;
	enum mail_kind kind;
	int status;
	struct engine_port *port;
	struct session *session;
	uint32_t buffer;
	struct engine_graphs_order graphs;
};

int mailbox_init(struct engine *engine)
{
	pthread_mutex_init(&engine->lock, NULL);
	engine->report_fd = doorbell_new();
	return engine->report_fd < 0 ? engine->report_fd : 0;
}

static void free_list(struct mail *mail)
{
	while (mail) {
		struct mail *next = mail->next;

		free(mail);
		mail = next;
	}
}

void mailbox_deinit(struct engine *engine)
{
	free_list(engine->mail_first);
	if (engine->report_fd >= 0)
		close(engine->report_fd);
	pthread_mutex_destroy(&engine->lock);
}

static int post(struct engine *engine, struct mail mail)
{
	struct mail *copy = malloc(sizeof(*copy));

	if (!copy)
		return -ENOMEM;
	*copy = mail;
	pthread_mutex_lock(&engine->lock);
	if (engine->mail_last)
		engine->mail_last->next = copy;
	else
		engine->mail_first = copy;
	engine->mail_last = copy;
	atomic_store(&engine->mail_waits, true);
	pthread_mutex_unlock(&engine->lock);
	loop_wake(engine->loop);
	return 0;
}

int engine_post_attach(struct engine *engine, struct engine_port *port)
{
	struct session *session;
	int rc;

	if (engine->n_ports == ENGINE_SESSIONS_MAX)
		return -EMFILE;
	rc = engine_session_new(engine, port, &session);
	if (rc)
		return rc;
	rc = post(engine, (struct mail){.kind = MAIL_ATTACH, .port = port, .session = session});
	if (rc)
		engine_session_free(session);
	else
		engine->n_ports++;
	return rc;
}

int engine_post_detach(struct engine *engine, struct engine_port *port)
{
	return post(engine, (struct mail){.kind = MAIL_DETACH, .port = port});
}

int engine_post_buffer_close(struct engine *engine, struct engine_port *port, uint32_t buffer)
{
	return post(engine,
		(struct mail){.kind = MAIL_BUFFER_CLOSE, .port = port, .buffer = buffer});
}

int engine_post_drain(struct engine *engine)
{
	return post(engine, (struct mail){.kind = MAIL_DRAIN});
}

int engine_post_abort(struct engine *engine, int status)
{
	return post(engine, (struct mail){.kind = MAIL_ABORT, .status = status});
}

int engine_post_stop(struct engine *engine)
{
	return post(engine, (struct mail){.kind = MAIL_STOP});
}

int engine_post_graphs(struct engine *engine, const struct engine_graphs_order *order)
{
	atomic_fetch_add(&engine->stats.n_graph_orders, 1);
	int rc = post(engine, (struct mail){.kind = MAIL_GRAPHS, .graphs = *order});
	if (rc)
		atomic_fetch_sub(&engine->stats.n_graph_orders, 1);
	return rc;
}

int engine_post_relieve(struct engine *engine)
{
	return post(engine, (struct mail){.kind = MAIL_RELIEVE});
}

/* The doorbell's only work is to end the wait. */
static void on_doorbell(void *userdata, struct loop_source *source, uint32_t events)
{
	(void)userdata;
	(void)source;
	(void)events;
}

static void attach(struct engine *engine, struct mail *mail)
{
	struct session *session = mail->session;
	int rc;

	mail->port->engine_private = session;
	engine->sessions[engine->n_sessions++] = session;
	atomic_fetch_add(&engine->stats.n_sessions, 1);
	rc = loop_add(engine->loop, mail->port->sq_bell, EPOLLIN, on_doorbell, session,
		&session->source);
	if (rc < 0)
		engine_session_fail(session, "the engine's loop cannot watch the session's doorbell");
}

static void detach(struct engine *engine, struct engine_port *port)
{
	struct session *session = port->engine_private;

	if (session->source)
		loop_remove(engine->loop, session->source);
	session->source = NULL;
	loop_ring_flush(engine->loop); /* the loop thread closes the doorbell after DETACHED */
	engine_session_detach(session);
}

static void handle(struct engine *engine, struct mail *mail)
{
	switch (mail->kind) {
	case MAIL_ATTACH:
		attach(engine, mail);
		break;
	case MAIL_DETACH:
		detach(engine, mail->port);
		break;
	case MAIL_BUFFER_CLOSE:
		buffer_close(mail->port->engine_private, mail->buffer);
		break;
	case MAIL_DRAIN:
		engine->draining = true;
		atomic_store(&engine->stats.draining, true);
		break;
	case MAIL_ABORT:
		count(&engine->stats.n_aborted, engine->n_requests);
		engine_end_all(engine, mail->status);
		break;
	case MAIL_STOP:
		engine->stop = true;
		break;
	case MAIL_GRAPHS:
		late_order(engine, &mail->graphs);
		break;
	case MAIL_RELIEVE:
		late_relieve(engine);
		break;
	}
}

bool mailbox_take(struct engine *engine)
{
	struct mail *mail;

	if (!atomic_load_explicit(&engine->mail_waits, memory_order_acquire))
		return false;
	pthread_mutex_lock(&engine->lock);
	mail = engine->mail_first;
	engine->mail_first = engine->mail_last = NULL;
	atomic_store(&engine->mail_waits, false);
	pthread_mutex_unlock(&engine->lock);
	while (mail) {
		struct mail *next = mail->next;

		handle(engine, mail);
		free(mail);
		mail = next;
	}
	return true;
}

void buffer_post(struct engine *engine, struct engine_buffer *buffer)
{
	pthread_mutex_lock(&engine->lock);
	buffer->next = engine->closed;
	engine->closed = buffer;
	pthread_mutex_unlock(&engine->lock);
	doorbell_ring(engine->report_fd);
}

bool engine_buffer_take(
	struct engine *engine, struct engine_port **ret_port, uint32_t *ret_buffer)
{
	struct engine_buffer *buffer;

	pthread_mutex_lock(&engine->lock);
	buffer = engine->closed;
	if (buffer)
		engine->closed = buffer->next;
	pthread_mutex_unlock(&engine->lock);
	if (!buffer)
		return false;
	*ret_port = buffer->port;
	*ret_buffer = (uint32_t)(buffer - buffer->port->buffers) + 1;
	return true;
}

/* With the lock held: what a port has not taken it gets with all the rest. */
static void closed_forget(struct engine *engine, const struct engine_port *port)
{
	struct engine_buffer **link = &engine->closed;

	while (*link) {
		if ((*link)->port == port)
			*link = (*link)->next;
		else
			link = &(*link)->next;
	}
}

static struct engine_report *report_place(
	struct engine *engine, enum engine_report_kind kind, struct engine_port *port)
{
	switch (kind) {
	case ENGINE_DETACHED:
		return &port->detached;
	case ENGINE_PROTOCOL:
		return &port->protocol;
	case ENGINE_DRAINED:
		return &engine->drained_report;
	case ENGINE_DEVICE_LOST:
		break;
	}
	return &engine->lost_report;
}

void report_post(struct engine *engine, enum engine_report_kind kind, struct engine_port *port,
	const char *text)
{
	struct engine_report *report = report_place(engine, kind, port);

	*report = (struct engine_report){.kind = kind, .port = port};
	snprintf(report->text, sizeof(report->text), "%s", text ? text : "");
	pthread_mutex_lock(&engine->lock);
	if (engine->reports_last)
		engine->reports_last->next = report;
	else
		engine->reports_first = report;
	engine->reports_last = report;
	pthread_mutex_unlock(&engine->lock);
	doorbell_ring(engine->report_fd);
}

int engine_report_fd(const struct engine *engine)
{
	return engine->report_fd;
}

bool engine_report_take(struct engine *engine, struct engine_report *ret)
{
	struct engine_report *report;

	pthread_mutex_lock(&engine->lock);
	report = engine->reports_first;
	if (report)
		engine->reports_first = report->next;
	if (!engine->reports_first)
		engine->reports_last = NULL;
	if (report && report->kind == ENGINE_DETACHED)
		closed_forget(engine, report->port);
	pthread_mutex_unlock(&engine->lock);
	if (!report)
		return false;
	*ret = *report;
	ret->next = NULL;
	if (ret->kind == ENGINE_DETACHED) {
		engine_session_free(ret->port->engine_private);
		ret->port->engine_private = NULL;
		engine->n_ports--;
	}
	return true;
}
