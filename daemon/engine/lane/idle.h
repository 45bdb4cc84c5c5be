/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_IDLE_H
#define MIMEO_DAEMON_ENGINE_IDLE_H

/* How the engine waits: idle.c. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct inflight;
struct lane;

struct idle {
	const _Atomic bool *commands_wait; /* the mailbox's: do not sleep */
	_Atomic bool sleeping;             /* other threads read it before they wake the engine */
	bool sleepy;   /* spinning did not suffice for the last step: launches come with a notification */
	bool slept;    /* since the last step was read */
	bool watching; /* the last turn found nothing, and was just now */
	bool lag_known;
	uint64_t since_ns, turns;
	uint64_t lag_ns;        /* the host's clock less the lane's */
	uint64_t lane_since_ns; /* when the oldest step in flight began, on the host's clock */
	uint64_t hold_until_ns; /* no launch into an empty lane before; 0: none is held */
	uint32_t hold_running;  /* nor if so many sequences run */
};

/* On the engine's thread, before all others. */
void idle_init(void);
/* A turn found something to do. */
void idle_reset(struct lane *lane);
/* A turn found nothing: wait for something, or return to look again. */
void idle(struct lane *lane);
/* The step before the oldest one in flight has been read; ended_ns is its end on the lane's clock. */
void idle_follow(struct lane *lane, uint64_t ended_ns);
/* The lane was empty: a step that is launched now runs at once. */
void idle_begin(struct lane *lane);
/* The step has ended and idle_follow was called; its results have not been read. */
void idle_hold(struct lane *lane, const struct inflight *inflight);
/* Is it too early to launch another step? */
bool idle_is_early(const struct lane *lane);
/* Is the engine to be woken behind a step that is expected to take so long? */
bool idle_wants_bell(const struct lane *lane, uint64_t expected_ns);

#endif
