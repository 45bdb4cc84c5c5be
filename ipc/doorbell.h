/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_DOORBELL_H
#define MIMEO_IPC_DOORBELL_H

/*
 * Doorbells: eventfds that wake a sleeping peer. Both processes share the file description, so a hostile
 * client can clear its O_NONBLOCK flag, drain the counter or fill it. Hence the daemon never reads a
 * doorbell (it waits edge-triggered) and rings through its loop (daemon/loop), which does not block on a
 * full counter. doorbell_ring and doorbell_clear are for clients and for eventfds of one process.
 */

/* A new eventfd, nonblocking, close-on-exec; or -errno. */
int doorbell_new(void);
/* Add one. A full counter is a wake-up already and no error. */
void doorbell_ring(int fd);
/* Reset to zero. */
void doorbell_clear(int fd);

#endif
