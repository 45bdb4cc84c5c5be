/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_QUERY_RUN_H
#define MIMEO_DAEMON_ENGINE_QUERY_RUN_H

struct engine;
struct engine_query;

/* On the engine's thread: answer the query, and give it back to the loop thread. */
void query_run(struct engine *engine, struct engine_query *query);

#endif
