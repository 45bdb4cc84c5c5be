/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_RELOAD_H
#define MIMEO_DAEMON_SERVE_RELOAD_H

/* Reading the configuration again while the daemon serves. */

#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

/* An operator asked for it: the answer is what has changed, or why nothing has. */
void reload_answer(struct serve *serve, struct reply *reply);
void reload_on_signal(struct serve *serve);
/* The totals of the quota under these options. */
struct quota_amounts reload_totals(const struct serve_options *options);

#endif
