/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_PLACE_H
#define MIMEO_DAEMON_ENGINE_PLACE_H

/*
 * Device buffers as requests name them. A buffer is held by each request that names it, and such a request
 * ends only when its last launched step has completed: the loop thread gets the buffer back after that. Hot
 * path: no allocation, no lock, no system call; handing back takes a lock.
 */

#include "daemon/engine/requests/engine_session.h"

/* Find the place of `bytes` and hold its buffer; buffer 0 is none. 0, or a status and why in *ret_detail. */
int place_take(struct request *request, const struct mimeo_place *place, uint64_t bytes,
	struct request_place *ret, struct msg_detail *ret_detail);
/* Release the request's buffers. */
void place_drop_all(struct request *request);
/* The last launched step names the request's buffers. */
void place_launched(struct request *request);
/* Hand the buffer back as soon as nothing names it. id: 1 ... n_buffers. */
void place_close_buffer(struct engine_session *session, uint32_t id);
/* The session is being detached: its buffers are returned with it, not one by one. */
void place_forget_buffers(struct engine_session *session);
/* Hand back the closed buffers that nothing names any more. */
void place_release_buffers(struct accounting *accounting);

#endif
