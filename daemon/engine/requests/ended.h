/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ENDED_H
#define MIMEO_DAEMON_ENGINE_ENDED_H

/* What is counted and recorded of requests when they end. */

#include "daemon/engine/requests/engine_session.h"

/* The request has ended, as request->end says. */
void ended_request(const struct request *request);
/* A held entry has ended without becoming a request. */
void ended_held(struct engine_session *session, const struct ring_sqe *sqe, uint64_t order, int status);
/* A submission was refused. */
void ended_refused(struct engine_session *session, const struct ring_sqe *sqe, int status);

#endif
