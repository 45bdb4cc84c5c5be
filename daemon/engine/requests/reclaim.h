/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_RECLAIM_H
#define MIMEO_DAEMON_ENGINE_RECLAIM_H

/*
 * Pages and slots that are in use, for a request that needs them. First idle open sequences are evicted,
 * least recently used first; then generate requests are preempted, the youngest first. Both are computed
 * once more later: a position's keys depend on the tokens before it alone, and so does its draw
 * (vLLM's recomputation, Kwon et al. 2023, arXiv:2309.06180, section 4.5).
 *
 * Spare batch requests (class.h) are preempted before all others.
 *
 * The oldest generate request is preempted by the model's head alone, and behind a token that it has gained:
 * so every request ends.
 * Hot path: no allocation, no lock, no system call.
 */

#include "daemon/engine/requests/sequence.h"

/* How many pages would be free if all were given back but those of fixed idle sequences, and of the idle
 * ones whose claim is `claim`. In the time of these pages. */
uint32_t reclaim_most(struct runner *runner, uint64_t claim);
/* Have n_pages free; for the model's head also on their way back from launched steps, by preemption of requests
 * that were submitted after it, or have gained a token since they took their slots. Idle sequences whose claim is
 * `claim` (0: none) are not evicted, and none is where that would not suffice and nothing may be preempted. True
 * if the pages are free now. */
bool reclaim_pages(struct runner *runner, uint32_t n_pages, uint64_t claim, bool head);
/* The same for a running request's next tokens: of those submitted after it, requests of its own session and
 * of sessions above their entitlement are preempted, for the oldest request in the end any; and if its session
 * stays within its own entitlement, as below. */
bool reclaim_pages_for_decode(struct runner *runner, uint32_t n_pages, const struct sequence *decode);
/* Have pages or slots free, or on their way back, for a request: from spare batch requests, if it is no batch request; and
 * from sessions above their entitlement (share.h), if its own stays within its own with so many more, behind a token
 * that their requests gained. True if any gives some. */
bool reclaim_pages_of_others(struct runner *runner, uint32_t n_pages, const struct request *request);
bool reclaim_slots_of_others(struct runner *runner, uint32_t n_slots, const struct request *request);
/* Have n_slots free for the model's head, or on their way back. True if they are free now. */
bool reclaim_slots(struct runner *runner, uint32_t n_slots);

#endif
