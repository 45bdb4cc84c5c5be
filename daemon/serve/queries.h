/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_QUERIES_H
#define MIMEO_DAEMON_SERVE_QUERIES_H

/* Operators' requests that the engine's thread answers: daemon/engine/query.h. */

#include "daemon/engine/query.h"
#include "daemon/serve/admin_request.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

/* 1: the query was posted, and its userdata will come back with it; 0: the reply is a refusal;
 * -ENOTSUP: the engine is not asked for that operation. */
int queries_begin(struct serve *serve, const struct admin_request *request, void *userdata,
	struct reply *reply, struct engine_query **ret);
/* Fill the reply from the answered query. */
void queries_answer(struct serve *serve, const struct engine_query *query, struct reply *reply);

#endif
