/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_DEADLINE_H
#define MIMEO_DAEMON_ENGINE_DEADLINE_H

/*
 * Deadlines of requests and of held entries, which finish_overdue keeps. They count from the submission, whose
 * time the client stamps into the entry: CLOCK_MONOTONIC is the same in all processes of a machine, but for those
 * of another time namespace. So a stamp in the future, or older than DEADLINE_STAMP_MAX_NS, counts as none, and
 * the deadlines count from when the daemon reads the entry. A client that lies moves its own deadlines alone.
 *
 * Each session has its deadlines in a binary heap, the earliest first: one that passes costs the time of those that
 * have passed, whatever else waits. Hot path: no allocation, no lock, no system call.
 */

#include <stdint.h>

#define DEADLINE_STAMP_MAX_NS UINT64_C(3600000000000)

struct engine_session;
struct msg_detail;

/* Whose deadlines: the session's request of an index, or the held entry of that index. */
#define DEADLINE_REQUEST(index) (2 * (index))
#define DEADLINE_HELD(index) (2 * (index) + 1)
#define DEADLINE_NOBODY UINT32_MAX

struct deadlines {
	uint64_t submitted_ns;
	uint64_t end_ns, first_token_ns; /* CLOCK_MONOTONIC; 0: none */
	uint32_t place;                  /* in the session's heap, from 1; 0: not there */
};

/* The time from which an entry's deadlines count, by its stamp. */
uint64_t deadline_submitted(uint64_t stamp_ns);
/* 0 milliseconds: none. owner: DEADLINE_REQUEST or DEADLINE_HELD, which had none so far. */
void deadline_begin(struct engine_session *session, uint32_t owner, uint64_t submitted_ns, uint32_t end_ms,
	uint32_t first_token_ms);
/* The request's first token came. */
void deadline_meet_first_token(struct engine_session *session, struct deadlines *deadlines);
/* The request or held entry has ended. */
void deadline_drop(struct engine_session *session, struct deadlines *deadlines);
/* Whose deadline is the session's earliest; DEADLINE_NOBODY: there is none. */
uint32_t deadline_first(const struct engine_session *session);
struct deadlines *deadline_of(const struct engine_session *session, uint32_t owner);
/* The earlier of the two deadlines; UINT64_MAX: none. */
uint64_t deadline_next(const struct deadlines *deadlines);
/* The error's detail if the earlier deadline has passed. */
struct msg_detail deadline_detail(const struct deadlines *deadlines);

#endif
