/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_OPERATORS_H
#define MIMEO_DAEMON_SERVE_OPERATORS_H

/* Connections to the operators' socket: daemon/serve/admin_wire.h describes the protocol. */

#include "daemon/serve/serve_state.h"

void operators_accept(struct serve *serve);
/* Close those that took too long. */
void operators_expire(struct serve *serve, int64_t now_ms);
/* Send the replies that waited for the engine. */
void operators_take_queries(struct serve *serve);
/* Send the result of the drain to operators who asked for it, or ask for it from now on. */
void operators_report_drain(struct serve *serve, int status, const char *text);
void operators_free_all(struct serve *serve);

#endif
