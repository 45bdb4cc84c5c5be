/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_PINNED_H
#define MIMEO_DAEMON_ENGINE_PINNED_H

/*
 * Pinned pages: those of open sequences that can be neither evicted nor preempted (sequence.h). They come back
 * only when their client closes or truncates the sequences, so each user may have a part of a model's pages pinned,
 * by the rule of quota_rule.h: the others always find pages to wait for.
 *
 * A page that several sequences share counts once. A request that pins pages is charged, when admission looks at it
 * first, for as many as it can take (its promise); what it has not taken is released at its end. So a request that
 * has started is not ended for its user's quota.
 *
 * Users can share pages if prefix_sharing is `all`. Such a page is charged to the user who pinned it first, until no
 * pinned sequence has it, or the user's last session has ended.
 *
 * The engine's thread alone. Hot path: no allocation, no lock, no system call.
 */

#include "daemon/engine/models/runner.h"

struct engine_session;

#define PINNED_NOBODY UINT16_MAX /* the holder of a page whose user has left */

/* All pages of the sequence's table are pinned, once more, or those that it did not have before; its request's promise
 * covers them. */
void pinned_add(struct sequence *sequence);
void pinned_add_behind(struct sequence *sequence, const struct kv_table *before);
/* These pages of the sequence are not pinned by it any more. */
void pinned_drop(struct sequence *sequence, const uint32_t *pages, uint32_t n);
void pinned_drop_all(struct sequence *sequence);
/* A page that the sequence had was replaced by a copy. */
void pinned_replace(struct sequence *sequence, uint32_t page, uint32_t copy);

/* Clear the marks. pinned_mark then counts each page once, also if several sequences share it. */
void pinned_begin_marks(struct slots *slots, uint32_t max_pages);
/* How many pages of the sequence are neither pinned nor marked; they are marked now. */
uint32_t pinned_mark(struct slots *slots, const struct sequence *sequence);

/* The pages that would be pinned in addition if the sequence had n_total tokens, less those marked; what it has is
 * marked now. */
uint64_t pinned_asked(const struct sequence *sequence, uint32_t n_total);
/* How many more the user, of an index in accounting.users, may have of the model's pages. */
uint32_t pinned_left_of(const struct runner *runner, uint16_t user);
/* How many more the request's user may have. */
uint32_t pinned_left(const struct request *request);
/* Charge the request's user for n pages that it will pin. */
void pinned_promise(struct request *request, uint32_t n);
/* The request has ended. */
void pinned_end(struct request *request);
/* The session ends, and has neither sequences nor requests; no page is charged to its user if the user has no other session. */
void pinned_detach(const struct engine_session *session);

#endif
