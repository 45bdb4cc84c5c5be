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
 * A turn of the engine's thread takes a bounded part: SUBMISSIONS_SESSION_BYTES of a session and
 * SUBMISSIONS_TURN_BYTES of all, and at most one entry more (PAYLOAD_BYTES_MAX). Counted are the bytes of headers
 * and payloads that are copied and checked, and SUBMISSIONS_ENTRY_BYTES for each entry. The next turn goes on with
 * the session behind the last one. So what a client submits, or is refused, delays others' steps by one such part.
 *
 * Hot path: no allocation, no lock, no system call.
 */

#include "daemon/engine/requests/engine_session.h"

#define SUBMISSIONS_TURN_BYTES (1u << 20)
#define SUBMISSIONS_SESSION_BYTES (256u << 10)
#define SUBMISSIONS_ENTRY_BYTES 1024u

/* Are there cancel words to look at? For a sleeper: see ring_cancels_wait. */
bool submissions_cancels_wait(const struct engine_session *session);
/* Take what sessions submitted. True if there was anything. */
bool submissions_take(struct accounting *accounting);

#endif
