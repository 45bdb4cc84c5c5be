/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_STATE_H
#define MIMEO_DAEMON_ENGINE_STATE_H

/*
 * The parts of the engine, for engine.c, mailbox.c, facts.c, check.c and tests. A part knows only those below
 * it:
 *
 *	models/    runner       a model's memory, graphs and slots
 *	requests/  accounting   sessions, their requests and sequences
 *	lane/      lane         steps in flight; idle and late are parts of it
 */

#include "daemon/engine/lane/lane.h"
#include "daemon/engine/mailbox.h"
#include "daemon/engine/request_log.h"
#include "daemon/engine/trace.h"
#include "daemon/engine/requests/engine_session.h"

struct engine {
	struct engine_options options;
	struct device *device;
	struct engine_stats stats;
	struct loop *loop;
	struct runners runners; /* the engine's thread's */
	struct runners served;  /* the loop thread's: those of them that are not being unloaded */
	uint32_t next_id;       /* the loop thread's: of the next model */
	char (*names)[64];      /* the loop thread's: [next_id], of models that are gone, too */
	_Atomic uint32_t n_leaving; /* engine_post_unload was called for them, and they are in `runners` */
	const struct runner *forgotten; /* the engine's thread's: the sessions are forgetting it; NULL: none */
	struct stream *dry;     /* the loader's: where models are warmed up and captured while others serve */
	struct reports reports;
	struct request_log request_log;
	struct trace trace;
	struct accounting accounting;
	struct lane lane;
	struct mailbox mailbox;
	pthread_t thread;
	bool started, stop, drained;
	uint32_t *check_uses, n_check_uses; /* check.c */
};

/* ---- models.c ---- */

/* On the loop thread: what later sessions need for the models served. */
void engine_set_limits(struct engine *engine);
/* The loop thread: show it to new sessions; show it no more. */
/* Keep the next model's name, before it gets its id. 0 or -ENOMEM. */
int models_name(struct engine *engine, const char *name);
void models_show(struct engine *engine, struct runner *runner);
void models_hide(struct engine *engine, uint32_t id);
/* The engine's thread, by the mailbox: a model of engine_post_load joins; one of engine_post_unload begins to leave. */
void models_join(struct engine *engine, struct runner *runner);
void models_leave(struct engine *engine, uint32_t id);
/* Hand back the models that have left, in parts. True if there was anything to do. */
bool models_hand_back(struct engine *engine);
/* When the thread has ended. */
void engine_free_models(struct engine *engine);

/* One turn of the engine's thread, which does nothing else but wait. True if there was anything to do. */
bool engine_turn(struct engine *engine);

#endif
