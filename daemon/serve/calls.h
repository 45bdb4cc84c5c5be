/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_CALLS_H
#define MIMEO_DAEMON_SERVE_CALLS_H

#include "daemon/serve/session.h"

/* Do the call that is whole in session->buffers, of so many bytes behind its length. */
void calls_do(struct session *session, uint32_t length);
/* May this client have its own memory mapped? */
bool calls_may_import(const struct session *session);
/* The loop's callback for finished jobs of the builder. */
void calls_on_builder(void *userdata, struct loop_source *source, uint32_t events);

#endif
