/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_HELD_H
#define MIMEO_DAEMON_ENGINE_HELD_H

/* Held entries: read, and not yet made requests (submissions.h). In order; at most one for each request index. */

#include "daemon/engine/requests/engine_session.h"

/* Behind the others. */
void held_push(struct engine_session *session, const struct ring_sqe *sqe);
void held_remove(struct engine_session *session, struct held_entry *entry);
/* End it with a final completion. detail: NULL for none. */
void held_end(struct engine_session *session, struct held_entry *entry, int status, const struct msg_detail *detail);

#endif
