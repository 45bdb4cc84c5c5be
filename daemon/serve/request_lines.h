/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_REQUEST_LINES_H
#define MIMEO_DAEMON_SERVE_REQUEST_LINES_H

/* The request log: a line for each request that ended, up to REQUEST_LINES_MS after its end. */

#include "daemon/serve/serve_state.h"

#define REQUEST_LINES_MS 200u

/* Begin or end, as options.request_log says. */
void request_lines_set(struct serve *serve);
/* Write what has ended so far, and no more from now on. */
void request_lines_end(struct serve *serve);

#endif
