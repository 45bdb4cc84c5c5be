/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_SET_H
#define MIMEO_DAEMON_SERVE_SET_H

#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

/* The reply to "set": "log_level=debug", "request_log=yes". It holds until a reload or the end. */
void set_answer(struct serve *serve, const char *setting, struct reply *reply);

#endif
