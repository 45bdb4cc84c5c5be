/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_HANDSHAKE_H
#define MIMEO_DAEMON_SERVE_HANDSHAKE_H

/* Connections from accept to WELCOME. */

#include "daemon/serve/serve_state.h"

void handshake_accept(struct serve *serve);
/* Clients wait in line where a limit is reached: let in those for which there is a place now. */
void handshake_move_line(struct serve *serve);
/* Milliseconds until the first in line has waited long enough (then handshake_expire); -1: none waits. */
int handshake_wait_ms(const struct serve *serve);
/* Close those that took too long. */
void handshake_expire(struct serve *serve, int64_t now_ms);
void handshake_free_all(struct serve *serve);

#endif
