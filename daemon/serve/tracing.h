/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_TRACING_H
#define MIMEO_DAEMON_SERVE_TRACING_H

#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

/* The reply to "trace": what: "start", "stop" or "read"; read from the event of this number on. */
void tracing_answer(struct serve *serve, const char *what, uint64_t from, struct reply *reply);

#endif
