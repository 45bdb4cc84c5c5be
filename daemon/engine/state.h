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
	struct runner *runners; /* [n_runners] */
	uint32_t n_runners;
	struct reports reports;
	struct request_log request_log;
	struct trace trace;
	struct accounting accounting;
	struct lane lane;
	struct mailbox mailbox;
	pthread_t thread;
	bool started, stop, drained;
	uint32_t *check_uses; /* check.c */
};

/* One turn of the engine's thread, which does nothing else but wait. True if there was anything to do. */
bool engine_turn(struct engine *engine);

#endif
