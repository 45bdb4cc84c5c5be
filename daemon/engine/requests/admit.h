/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ADMIT_H
#define MIMEO_DAEMON_ENGINE_ADMIT_H

/*
 * Admission gives slots and pages to waiting requests; admit.c explains the order.
 *
 *	pass   over one session's waiting list, for one class
 *	turn   a call of admit: passes over all sessions, until nothing more can start
 *	round  a turn after a change that may let a request start, and the turns up to the next such turn
 *
 * Passes have numbers, as has each other examination of requests: a sequence whose `claim` is the present number is
 * claimed.
 */

#include "daemon/engine/requests/accounting.h"

/* Start the waiting requests that may start. True if any was started or ended. */
bool admit(struct accounting *accounting);
/* The session is about to end. */
void admit_detach(const struct engine_session *session);

#endif
