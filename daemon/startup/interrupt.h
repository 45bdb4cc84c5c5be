/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_INTERRUPT_H
#define MIMEO_DAEMON_INTERRUPT_H

/*
 * SIGTERM and SIGINT while the daemon starts: it may be in the middle of a read or a capture, has
 * nobody to drain, and ends at once with status 1 and one line in the log.
 */

/* 0 or -errno. */
int interrupt_arm(void);
/* Somebody else handles the signals by now: a signal that came before that still ends the process. */
void interrupt_disarm(void);

#endif
