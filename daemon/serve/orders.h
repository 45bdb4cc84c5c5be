/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_ORDERS_H
#define MIMEO_DAEMON_SERVE_ORDERS_H

#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

/* The index of the model of that name; ENGINE_ALL for "", engine_n_models for an unknown one. */
uint32_t orders_find_model(const struct engine *engine, const char *name);
/* Post an operator's order about graphs to the engine: capture or drop. model: "" for all; graph: a name,
 * "all" or "idle". */
void orders_answer(struct serve *serve, bool capture, const char *model, const char *graph,
	struct reply *reply);

#endif
