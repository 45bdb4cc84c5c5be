/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_MODELS_H
#define MIMEO_DAEMON_SERVE_MODELS_H

/*
 * Models that operators load and unload. Reading and uploading weights, capturing graphs and freeing memory are the
 * loader's thread's, one order at a time; the loop thread waits for nothing. An operator's reply comes when the order
 * is carried out: a model that was loaded is served, and the memory of one that was unloaded is free.
 *
 *	load    loader: make the model --> loop: engine_post_load, reply
 *	unload  loop: engine_post_unload --> engine: no step names it --> loader: free it --> loop: reply
 */

#include "daemon/serve/admin_request.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/serve_state.h"

struct models_waiter {
	void (*reply)(void *userdata, int status, const char *text); /* once, and not from models_begin */
	void *userdata;
};

/* Begin the order, "load" or "unload": true, and the waiter gets its reply; false, and `reply` says why not. */
bool models_begin(struct serve *serve, const struct admin_request *request, const struct models_waiter *waiter,
	struct reply *reply);
/* Who waits with this userdata gets no reply any more; the order goes on. */
void models_forget(struct serve *serve, const void *userdata);
/* How far an order is, for people; "": there is none. Returns text. */
const char *models_progress(const struct serve *serve, char text[static SERVE_PROGRESS_MAX]);
/* Take the models that the engine hands back. */
void models_take(struct serve *serve);
/* Does the loader's thread work on an order? It cannot be stopped. */
bool models_is_working(const struct serve *serve);
/* If the loader's thread works, it goes on with what it uses: the process has to end without freeing that. */
void models_free(struct models *models);

#endif
