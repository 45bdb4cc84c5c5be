/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_REPORTS_H
#define MIMEO_DAEMON_ENGINE_REPORTS_H

/*
 * Reports, closed buffers, answered queries and unloaded models on their way to the loop thread. Each has its place in
 * its port, its buffer, the query, the model or here, so posting cannot fail. Rare events: a lock and a list. Posted by
 * the engine's thread, taken by the loop thread.
 */

#include <pthread.h>

#include "daemon/engine/engine.h"

struct engine_query;
struct runner;

struct reports {
	pthread_mutex_t lock;
	struct engine_report *posted; /* oldest first */
	struct engine_report drained, lost;
	struct engine_buffer *closed;
	struct engine_query *answered;
	struct runner *models; /* unloaded */
	int fd; /* rung after each */
};

/* 0 or -errno; then reports_deinit. */
int reports_init(struct reports *reports);
void reports_deinit(struct reports *reports);
/* At most once of each kind for its port or engine. text: NULL for none. */
void reports_post(struct reports *reports, enum engine_report_kind kind, struct engine_port *port,
	const char *text);
/* Hand a model that was unloaded to the loop thread. */
void reports_post_model(struct reports *reports, struct runner *model);
/* Take one, or NULL. */
struct runner *reports_take_model(struct reports *reports);
/* Hand a closed buffer, that no request and no launched step names, to the loop thread. */
void reports_post_buffer(struct reports *reports, struct engine_buffer *buffer);
/* Hand an answered query to the loop thread. */
void reports_post_query(struct reports *reports, struct engine_query *query);
/* Take one, or NULL. */
struct engine_query *reports_take_query(struct reports *reports);
/* Take the oldest: true and *ret. A port's DETACHED takes its closed buffers with it. */
bool reports_take(struct reports *reports, struct engine_report *ret);
/* Take a closed buffer, or NULL. */
struct engine_buffer *reports_take_buffer(struct reports *reports);

#endif
