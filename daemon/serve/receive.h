/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_RECEIVE_H
#define MIMEO_DAEMON_SERVE_RECEIVE_H

#include "daemon/serve/session.h"

/* The loop's callback for a session's socket: receive calls and do them. */
void receive_on_socket(void *userdata, struct loop_source *source, uint32_t events);
/* Continue with sessions that had their share of a turn, or that wait for closes. */
void receive_continue(struct serve *serve);

#endif
