/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_EXPOSITION_H
#define MIMEO_DAEMON_SERVE_EXPOSITION_H

/* The daemon's metrics. */

#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

/* The reply to "metrics": Prometheus' text, and a row for each sample. */
void exposition_answer(struct serve *serve, struct reply *reply);
/* The text alone, which the caller frees. 0, -ENOMEM or -ENOSPC. */
int exposition_text(struct serve *serve, char **ret);

#endif
