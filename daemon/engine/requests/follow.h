/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_FOLLOW_H
#define MIMEO_DAEMON_ENGINE_FOLLOW_H

/*
 * A generate request whose prompt begins as that of a running request, which is still to be computed, waits for it:
 * n requests with one prompt compute it once. It waits until the running one has launched the pages that both have,
 * has ended or was preempted, and in all for a number of steps that is set when it first waits: so the one that it
 * waits for may be anybody's, and as slow as it likes. When that request ends, the first of the waiting ones to start
 * computes for the others. Hot path: no allocation, no lock, no system call.
 */

#include "daemon/engine/requests/engine_session.h"

/* Does the request wait still? */
bool follow_waits(const struct request *request);
/* Let a request that may start, on a sequence with its tokens and n_cached of them from the prefix cache, wait if that
 * saves a page of computing. Returns whether it does; *ret_compared: tokens looked at. */
bool follow_begin(struct request *request, const struct sequence *sequence, uint32_t n_cached, uint32_t *ret_compared);
/* The sequence has launched more tokens: have those that waited for them admitted. */
void follow_launched(struct sequence *sequence);
/* Before a step of the runner: have those admitted that have waited for long enough. */
void follow_expire(struct runner *runner, struct accounting *accounting);

#endif
