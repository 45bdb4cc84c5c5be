/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_RECLAIM_H
#define MIMEO_DAEMON_ENGINE_RECLAIM_H

/*
 * Takes back pages and slots that are in use, for a request that needs them. First idle open sequences are
 * evicted, least recently used first; then generate requests are preempted. Both are computed once more later: a
 * position's keys depend on the tokens before it alone, and so does its draw (vLLM's recomputation, Kwon et al. 2023,
 * arXiv:2309.06180, section 4.5).
 *
 * Preempted first are spare batch requests (class.h), then those of the session that is furthest ahead of its share;
 * of one session those of the lower class, then the youngest. Among users the share decides, not the class: a class
 * is the client's own word. An interactive request may take slots and pages of its user's normal ones.
 *
 * The oldest generate request is preempted only for the model's head, and only after it has gained a token,
 * so that every request ends.
 * Hot path: no allocation, no lock, no system call.
 */

#include "daemon/engine/requests/sequence.h"

/* How many pages would be free if all were released except pinned ones and those of idle sequences marked with
 * `claim`. Takes time in proportion to the latter. */
uint32_t reclaim_most(struct runner *runner, uint64_t claim);
/* Evict idle sequences until n_pages are free, except those marked with `claim` (0: none); evict none if that
 * would not suffice and preemption is not allowed. For the model's head, also preempt requests that were
 * submitted after it or have gained a token since they took their slots, until n_pages are free or will be
 * when the launched steps complete. True if they are free now. */
bool reclaim_pages(struct runner *runner, uint32_t n_pages, uint64_t claim, bool head);
/* The same for a running request's next tokens. Of the requests submitted after it, those of its own session
 * and of sessions above their entitlement may be preempted; for the oldest request, as a last resort, any. If
 * its session stays within its entitlement, also as reclaim_pages_of_others. */
bool reclaim_pages_for_decode(struct runner *runner, uint32_t n_pages, const struct sequence *decode);
/* Preempt until n pages or slots are free for the request, or will be when the launched steps complete. If it is
 * not a batch request, spare batch requests are preempted; if its session stays within its entitlement (share.h)
 * with n more, also requests of sessions above theirs, after they have gained a token. True if any was preempted. */
bool reclaim_pages_of_others(struct runner *runner, uint32_t n_pages, const struct request *request);
bool reclaim_slots_of_others(struct runner *runner, uint32_t n_slots, const struct request *request);
/* Preempt for the model's head until n_slots are free, or will be when the launched steps complete. True if
 * they are free now. */
bool reclaim_slots(struct runner *runner, uint32_t n_slots);

#endif
