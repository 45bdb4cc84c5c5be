/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_INTERRUPT_H
#define MIMEO_DAEMON_INTERRUPT_H

/*
 * SIGTERM and SIGINT while the daemon starts: it has no requests to drain and exits at once, even in
 * the middle of a read or a capture, with status 1 and one line in the log.
 */

/* 0 or -errno. */
int interrupt_arm(void);
/* The serving loop handles signals from now on. A signal that arrived before still ends the process. */
void interrupt_disarm(void);

#endif
