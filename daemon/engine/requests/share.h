/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_SHARE_H
#define MIMEO_DAEMON_ENGINE_SHARE_H

/*
 * Fair share of what is computed, among users (by uid) and among the sessions of each.
 *
 * Order: virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024,
 * arXiv:2401.00588). A user's counter grows by each token that is computed for it, divided by its weight;
 * of the users who have requests, the one with the lowest counter goes first, and of its sessions the one with
 * the lowest counter of its own. A user who submits after a pause is raised to the lowest counter of the users
 * who have requests, or to that of the last one who had some: an unused share is not saved. Nor is that of a user
 * whose requests need little: whenever it submits, it is raised to SHARE_CREDIT steps of tokens below what was computed
 * for the user who is furthest ahead. The computed part of a prompt is charged when its request
 * starts; a generated token when its step is launched; tokens computed again after a preemption are not charged.
 * Prompts that have started take their turns by what was computed so far: a user who has a long prompt has been
 * charged for all of it, and would else have it computed ahead of those who come later.
 *
 * Entitlement: a session's part of slots and pages, by its user's weight among the users who have requests
 * now, divided by the user's sessions that have some. A session below its entitlement can preempt requests of
 * sessions above theirs; so a new session always gets its part. Where requests of one user need more tokens in a
 * slot than those of another, such parts would not divide the tokens by weight: a user who leads another by
 * SHARE_LEAD steps of tokens has no claim to slots or pages of that one while it leads by so much.
 *
 * The engine's thread alone. Hot path: no allocation, no lock, no system call.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SHARE_UNIT 65536u /* of a counter, for a token at weight 1: above any weight */
#define SHARE_LEAD 16     /* times max_batch_tokens */
#define SHARE_CREDIT 64   /* times max_batch_tokens; above SHARE_LEAD, or nobody would be so far ahead */

struct accounting;
struct engine_session;

struct share_user {
	uid_t uid;
	uint32_t weight;     /* 1 ... ENGINE_WEIGHT_MAX; 0: the entry is not in use */
	uint32_t n_sessions; /* 0: the entry is kept for its counter, until another user needs it */
	uint32_t n_active;   /* of these: with requests in flight */
	uint64_t counter;
	uint64_t computed; /* as counter, of what was computed so far */
	uint64_t last_counter, last_computed; /* of the user's last session that had requests, when it had none left */
};

/* In a session. */
struct share_session {
	struct share_user *user;
	uint64_t counter, computed;
};

/* At attach and at the end of a session, which has no requests then. The port's weight becomes its user's. */
void share_attach(struct accounting *accounting, struct engine_session *session);
void share_detach(struct engine_session *session);
/* The weight of the session's user from now on. */
void share_weigh(struct engine_session *session, uint32_t weight);
/* The session has its first request in flight; its last one has ended. */
void share_begin(struct accounting *accounting, struct engine_session *session);
void share_end(struct engine_session *session);
/* The session, which has requests in flight, submits one more. */
void share_submit(struct engine_session *session);
/* n_tokens are to be computed for the session; were computed for the first time. */
void share_charge(struct engine_session *session, uint64_t n_tokens);
void share_compute(struct engine_session *session, uint64_t n_tokens);
/* Is it a's turn before b's, to start requests; to have prompts computed that started? */
bool share_is_before(const struct engine_session *a, const struct engine_session *b);
bool share_computes_before(const struct engine_session *a, const struct engine_session *b);
/* By what was charged, is a's user so far ahead of b's that a has no claim to what b has? */
bool share_leads(const struct engine_session *a, const struct engine_session *b);
/* The part of n to which a session with requests is entitled, rounded down, at least 1. */
uint32_t share_entitlement(const struct accounting *accounting, const struct engine_session *session, uint32_t n);

#endif
