/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_ORDERS_H
#define MIMEO_DAEMON_SERVE_ORDERS_H

#include <stdbool.h>

#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

/* The id of the model of that name; ENGINE_ALL for "". False: no model has it. */
bool orders_find_model(const struct engine *engine, const char *name, uint32_t *ret);
/* Post an operator's order about graphs to the engine: capture or drop. model: "" for all; graph: a name,
 * "all" or "idle". */
void orders_answer(struct serve *serve, bool capture, const char *model, const char *graph,
	struct reply *reply);

#endif
