/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_ANSWERS_H
#define MIMEO_DAEMON_SERVE_ANSWERS_H

/* Replies to operators' requests for state. */

#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

void answers_status(struct serve *serve, struct reply *reply);
void answers_sessions(struct serve *serve, struct reply *reply);
void answers_models(struct serve *serve, struct reply *reply);
void answers_graphs(struct serve *serve, struct reply *reply);

#endif
