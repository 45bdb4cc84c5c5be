/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_ACCEPT_H
#define MIMEO_DAEMON_SERVE_ACCEPT_H

#include "daemon/serve/serve_state.h"

/* The next connection (nonblocking, close-on-exec), or -EAGAIN if there is none now or the turn's share
 * is taken; records in `serve` what remains to be accepted. *n_turn starts at 0 and counts the share. */
int accept_next(struct serve *serve, int listener, uint32_t *n_turn);

#endif
