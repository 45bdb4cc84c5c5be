/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_DRAIN_H
#define MIMEO_DAEMON_SERVE_DRAIN_H

#include "daemon/serve/serve_state.h"

/* Take no new sessions and let the engine finish what runs, until the drain timeout. Once only. */
void drain_begin(struct serve *serve, const char *why);
/* Ask for every port back: the daemon ends when the last one has come. */
void drain_end_sessions(struct serve *serve);
/* Requests that run or wait. */
uint32_t drain_n_requests(const struct serve *serve);

#endif
