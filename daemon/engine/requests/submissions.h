/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_SUBMISSIONS_H
#define MIMEO_DAEMON_ENGINE_SUBMISSIONS_H

/*
 * Takes the entries of a session's submission ring, in order.
 *
 * If the pool has no space for a payload, its entry and those behind it are held, in order, as long as a
 * request of the session runs or admission is pending; else the entry is refused with NO_MEMORY. A payload
 * larger than the pool is refused with TOO_LONG. Cancels are never held; they and deadlines reach held
 * entries, too. At most as many entries are held as a session may have requests in flight.
 *
 * Cancel words (ipc/ring.h) are looked at in each turn in which the client has counted one, also where no entry can
 * be taken because the completion ring is full; an entry whose word is set ends as it is taken.
 *
 * Hot path: no allocation, no lock, no system call.
 */

#include "daemon/engine/requests/engine_session.h"

/* Are there cancel words to look at? For a sleeper: see ring_cancels_wait. */
bool submissions_cancels_wait(const struct engine_session *session);
/* Take what the session submitted. True if there was anything. */
bool submissions_take(struct engine_session *session);

#endif
