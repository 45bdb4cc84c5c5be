/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_HANDSHAKE_H
#define MIMEO_DAEMON_SERVE_HANDSHAKE_H

/* Connections from accept to WELCOME. */

#include "daemon/serve/serve_state.h"

void handshake_accept(struct serve *serve);
/* Admit clients that wait in line for a limit, as far as there are places now. */
void handshake_move_line(struct serve *serve);
/* Milliseconds until the first client in line has waited for its timeout (then call handshake_expire); -1:
 * none waits. */
int handshake_wait_ms(const struct serve *serve);
/* Close handshakes that took too long. */
void handshake_expire(struct serve *serve, int64_t now_ms);
void handshake_free_all(struct serve *serve);

#endif
