/* SPDX-License-Identifier: MIT */
/* Rare events, so a lock and a list; the engine reads one flag in each turn. */
#include "daemon/engine/mailbox.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <utlist.h>

#include "daemon/engine/query.h"
#include "daemon/engine/query_run.h"
#include "daemon/engine/requests/finish.h"
#include "daemon/engine/requests/place.h"
#include "daemon/engine/state.h"

enum command_kind {
	COMMAND_ATTACH,
	COMMAND_DETACH,
	COMMAND_BUFFER_CLOSE,
	COMMAND_DRAIN,
	COMMAND_ABORT,
	COMMAND_STOP,
	COMMAND_QUERY,
	COMMAND_GRAPHS,
	COMMAND_RELIEVE,
	COMMAND_TUNING,
	COMMAND_WEIGHT,
	COMMAND_PING,
	COMMAND_LOAD,
	COMMAND_UNLOAD,
};

struct command {
	struct command *prev, *next;
	enum command_kind kind;
	struct engine_port *port;
	struct engine_session *session;
	uint32_t buffer;
	struct engine_query *query; /* owned */
	bool again; /* it goes on in the next turn */
	struct engine_graphs_order graphs;
	struct engine_tuning tuning;
	uint32_t weight;
	struct runner *model; /* owned */
	uint32_t id;
};

void mailbox_init(struct mailbox *mailbox)
{
	pthread_mutex_init(&mailbox->lock, NULL);
}

void mailbox_deinit(struct mailbox *mailbox)
{
	struct command *command, *next;

	DL_FOREACH_SAFE (mailbox->commands, command, next) {
		engine_query_free(command->query);
		engine_model_free(command->model);
		free(command);
	}
	pthread_mutex_destroy(&mailbox->lock);
}

static int mailbox_post(struct engine *engine, struct command command)
{
	struct mailbox *mailbox = &engine->mailbox;
	struct command *copy = malloc(sizeof(*copy));

	if (!copy)
		return -ENOMEM;
	*copy = command;
	pthread_mutex_lock(&mailbox->lock);
	DL_APPEND(mailbox->commands, copy);
	atomic_store(&mailbox->waits, true);
	pthread_mutex_unlock(&mailbox->lock);
	loop_wake(engine->loop);
	return 0;
}

int engine_post_attach(struct engine *engine, struct engine_port *port)
{
	struct engine_session *session;
	int rc;

	if (engine->mailbox.n_ports == ENGINE_SESSIONS_MAX)
		return -EMFILE;
	rc = engine_session_new(&engine->accounting, port, &session);
	if (rc)
		return rc;
	rc = mailbox_post(engine, (struct command){.kind = COMMAND_ATTACH, .port = port, .session = session});
	if (rc)
		engine_session_free(session);
	else
		engine->mailbox.n_ports++;
	return rc;
}

int engine_post_detach(struct engine *engine, struct engine_port *port)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_DETACH, .port = port});
}

int engine_post_buffer_close(struct engine *engine, struct engine_port *port, uint32_t buffer)
{
	struct engine_buffer *closed = &port->buffers[buffer - 1];
	int rc;

	assert(buffer >= 1 && buffer <= port->n_buffers && !atomic_load(&closed->ends));
	/* The client published its entries before it asked. A tail that lies delays its own buffer alone. */
	closed->end = atomic_load(&port->region.ring.control->sq_tail);
	atomic_store(&closed->ends, true);
	rc = mailbox_post(engine, (struct command){.kind = COMMAND_BUFFER_CLOSE, .port = port, .buffer = buffer});
	if (rc)
		atomic_store(&closed->ends, false);
	return rc;
}

int engine_post_drain(struct engine *engine)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_DRAIN});
}

int engine_post_abort(struct engine *engine)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_ABORT});
}

int engine_post_stop(struct engine *engine)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_STOP});
}

int engine_post_query(struct engine *engine, struct engine_query *query)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_QUERY, .query = query});
}

int engine_post_graphs(struct engine *engine, const struct engine_graphs_order *order)
{
	atomic_fetch_add(&engine->stats.n_graph_orders, 1);
	int rc = mailbox_post(engine, (struct command){.kind = COMMAND_GRAPHS, .graphs = *order});
	if (rc)
		atomic_fetch_sub(&engine->stats.n_graph_orders, 1);
	return rc;
}

int engine_post_relieve(struct engine *engine)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_RELIEVE});
}

int engine_post_tuning(struct engine *engine, const struct engine_tuning *tuning)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_TUNING, .tuning = *tuning});
}

int engine_post_weight(struct engine *engine, struct engine_port *port, uint32_t weight)
{
	assert(weight >= 1 && weight <= ENGINE_WEIGHT_MAX);
	return mailbox_post(engine, (struct command){.kind = COMMAND_WEIGHT, .port = port, .weight = weight});
}

int engine_post_ping(struct engine *engine)
{
	return mailbox_post(engine, (struct command){.kind = COMMAND_PING});
}

int engine_post_load(struct engine *engine, struct runner *model)
{
	int rc;

	if (!engine_has_room(engine))
		return -ENOSPC;
	rc = models_name(engine, model->options.name);
	if (rc)
		return rc;
	runner_set_id(model, engine->next_id);
	rc = mailbox_post(engine, (struct command){.kind = COMMAND_LOAD, .model = model});
	if (!rc)
		models_show(engine, model);
	return rc;
}

int engine_post_unload(struct engine *engine, uint32_t id)
{
	int rc;

	if (engine_find_model(engine, id) == engine->served.n)
		return -ENOENT;
	atomic_fetch_add(&engine->n_leaving, 1);
	rc = mailbox_post(engine, (struct command){.kind = COMMAND_UNLOAD, .id = id});
	if (rc)
		atomic_fetch_sub(&engine->n_leaving, 1);
	else
		models_hide(engine, id);
	return rc;
}

/* The doorbell's only work is to end the wait. */
static void mailbox_on_doorbell(void *userdata, struct loop_source *source, uint32_t events)
{
}

static void mailbox_attach(struct engine *engine, struct command *command)
{
	struct accounting *accounting = &engine->accounting;
	struct engine_session *session = command->session;
	int rc;

	assert(!command->port->engine_private && session->port == command->port);
	command->port->engine_private = session;
	assert(accounting->n_sessions < ENGINE_SESSIONS_MAX);
	accounting->sessions[accounting->n_sessions++] = session;
	share_attach(accounting, session);
	atomic_fetch_add(&engine->stats.n_sessions, 1);
	rc = loop_add(engine->loop, command->port->sq_bell, EPOLLIN, mailbox_on_doorbell, session,
		&session->source);
	if (rc < 0)
		engine_session_fail(session, "the engine's loop cannot watch the session's doorbell");
}

static void mailbox_detach(struct engine *engine, struct engine_port *port)
{
	struct engine_session *session = port->engine_private;

	assert(session && !session->detached);
	if (session->source)
		loop_remove(engine->loop, session->source);
	session->source = NULL;
	loop_ring_flush(engine->loop); /* the loop thread closes the doorbell after DETACHED */
	finish_session(session);
}

static void mailbox_handle(struct engine *engine, struct command *command)
{
	switch (command->kind) {
	case COMMAND_ATTACH:
		mailbox_attach(engine, command);
		break;
	case COMMAND_DETACH:
		mailbox_detach(engine, command->port);
		break;
	case COMMAND_BUFFER_CLOSE:
		place_close_buffer(command->port->engine_private, command->buffer);
		break;
	case COMMAND_DRAIN:
		engine->accounting.draining = true;
		atomic_store(&engine->stats.draining, true);
		break;
	case COMMAND_ABORT:
		counter_add(&engine->stats.n_aborted, engine->accounting.n_requests);
		finish_all(&engine->accounting, MIMEO_E_DRAINING, &(struct msg_detail){.detail = RING_DETAIL_DRAIN});
		break;
	case COMMAND_STOP:
		engine->stop = true;
		break;
	case COMMAND_QUERY:
		command->again = !query_run(engine, command->query);
		break;
	case COMMAND_GRAPHS:
		late_order(&engine->lane, &command->graphs);
		break;
	case COMMAND_RELIEVE:
		late_relieve(&engine->lane);
		break;
	case COMMAND_TUNING:
		engine->options.token_us = command->tuning.token_us;
		engine->options.spin_us = command->tuning.spin_us;
		break;
	case COMMAND_WEIGHT:
		share_weigh(command->port->engine_private, command->weight);
		break;
	case COMMAND_PING:
		counter_add(&engine->stats.n_pings, 1);
		break;
	case COMMAND_LOAD:
		models_join(engine, command->model);
		break;
	case COMMAND_UNLOAD:
		models_leave(engine, command->id);
		break;
	}
}

static void mailbox_put_back(struct mailbox *mailbox, struct command *command)
{
	pthread_mutex_lock(&mailbox->lock);
	DL_APPEND(mailbox->commands, command);
	atomic_store(&mailbox->waits, true);
	pthread_mutex_unlock(&mailbox->lock);
}

bool mailbox_take(struct engine *engine)
{
	struct mailbox *mailbox = &engine->mailbox;
	struct command *commands, *command, *next;

	if (!atomic_load_explicit(&mailbox->waits, memory_order_acquire))
		return false;
	pthread_mutex_lock(&mailbox->lock);
	commands = mailbox->commands;
	mailbox->commands = NULL;
	atomic_store(&mailbox->waits, false);
	pthread_mutex_unlock(&mailbox->lock);
	DL_FOREACH_SAFE (commands, command, next) {
		mailbox_handle(engine, command);
		if (command->again)
			mailbox_put_back(mailbox, command);
		else
			free(command);
	}
	return true;
}

/* ---- reports: on the loop thread ---- */

int engine_report_fd(const struct engine *engine)
{
	return engine->reports.fd;
}

bool engine_report_take(struct engine *engine, struct engine_report *ret)
{
	if (!reports_take(&engine->reports, ret))
		return false;
	if (ret->kind == ENGINE_DETACHED) {
		engine_session_free(ret->port->engine_private);
		ret->port->engine_private = NULL;
		assert(engine->mailbox.n_ports > 0);
		engine->mailbox.n_ports--;
	}
	return true;
}

bool engine_buffer_take(
	struct engine *engine, struct engine_port **ret_port, uint32_t *ret_buffer)
{
	struct engine_buffer *buffer = reports_take_buffer(&engine->reports);

	if (!buffer)
		return false;
	*ret_port = buffer->port;
	*ret_buffer = (uint32_t)(buffer - buffer->port->buffers) + 1;
	assert(*ret_buffer >= 1 && *ret_buffer <= buffer->port->n_buffers);
	return true;
}
