/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_QUERY_RUN_H
#define MIMEO_DAEMON_ENGINE_QUERY_RUN_H

#include <stdbool.h>

struct engine;
struct engine_query;

/* On the engine's thread: answer the query, and give it back to the loop thread. False: it has to go on in a later
 * turn. */
bool query_run(struct engine *engine, struct engine_query *query);

#endif
