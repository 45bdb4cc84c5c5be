/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_TRACE_JSON_H
#define MIMEO_DAEMON_SERVE_TRACE_JSON_H

/*
 * Events of the trace in the JSON of Chrome's trace viewer, which Perfetto reads: objects separated by commas, of the
 * array "traceEvents". Process 1 is the daemon, with a thread for the device's steps and one for the engine; each
 * session is a process, and each of its requests two threads, for its phases and for its rows.
 */

#include <stdio.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/trace.h"

/* The names of process 1 and its threads. */
void trace_json_begin(FILE *out);
/* One event, with a comma before it. The engine has the names of models. */
void trace_json_event(FILE *out, const struct engine *engine, const struct trace_event *event);

#endif
