/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_HANDSHAKE_H
#define MIMEO_DAEMON_SERVE_HANDSHAKE_H

/* Connections from accept to WELCOME. */

#include "daemon/serve/serve_state.h"

void handshake_accept(struct serve *serve);
/* Close those that took too long. */
void handshake_expire(struct serve *serve, int64_t now_ms);
void handshake_free_all(struct serve *serve);

#endif
