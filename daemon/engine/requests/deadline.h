/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_DEADLINE_H
#define MIMEO_DAEMON_ENGINE_DEADLINE_H

/*
 * Deadlines of requests and of held entries, which finish_overdue keeps. They count from the submission, whose
 * time the client stamps into the entry: CLOCK_MONOTONIC is the same in all processes of a machine, but for those
 * of another time namespace. So a stamp in the future, or older than DEADLINE_STAMP_MAX_NS, counts as none, and
 * the deadlines count from when the daemon reads the entry. A client that lies moves its own deadlines alone.
 */

#include <stdint.h>

#define DEADLINE_STAMP_MAX_NS UINT64_C(3600000000000)

struct accounting;
struct msg_detail;

struct deadlines {
	uint64_t submitted_ns;
	uint64_t end_ns, first_token_ns; /* CLOCK_MONOTONIC; 0: none */
};

/* The time from which an entry's deadlines count, by its stamp. */
uint64_t deadline_submitted(uint64_t stamp_ns);
/* 0 milliseconds: none. */
void deadline_begin(struct accounting *accounting, struct deadlines *deadlines, uint64_t submitted_ns,
	uint32_t end_ms, uint32_t first_token_ms);
/* The first token came. */
void deadline_meet_first_token(struct accounting *accounting, struct deadlines *deadlines);
/* The request or held entry has ended. */
void deadline_drop(struct accounting *accounting, struct deadlines *deadlines);
/* The earlier of the two deadlines; UINT64_MAX: none. */
uint64_t deadline_next(const struct deadlines *deadlines);
/* The error's detail if the earlier deadline has passed. */
struct msg_detail deadline_detail(const struct deadlines *deadlines);

#endif
