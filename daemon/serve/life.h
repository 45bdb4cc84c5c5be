/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_LIFE_H
#define MIMEO_DAEMON_SERVE_LIFE_H

/*
 * Reports the daemon's death to clients at once.
 *
 * The kernel releases a killed process's memory before it closes its files, and reports the exit on its
 * pidfd last: with a gigabyte mapped, or CUDA's mappings, that takes 100 ms. But each of its threads exits
 * on its own, and only the last one to exit releases the memory. So an idle thread is dead within a
 * millisecond or so, and then a pidfd of that thread (PIDFD_THREAD) polls readable. There are two such
 * threads, because one of them may be the last.
 *
 * Each client gets pidfds opened for it alone: the kernel limits the epolls that watch one file (500 if they
 * are nested), and one client could exhaust that limit for the others. Those who have a pidfd cannot write
 * it, shut it down, make it readable or prevent that; signals through it need the permission to kill the
 * daemon.
 */

#include <stddef.h>

#include "ipc/msg.h"

struct life;

#define LIFE_THREAD_NAME "mimeo-life" /* in /proc/PID/task/TID/comm */

/* Starts the threads. 0 or -errno. */
int life_new(struct life **ret);
/* Ends the threads: the clients' pidfds become readable. */
void life_free(struct life *life);

/* New pidfds, the caller's; each reports the daemon's death. MSG_LIFE_FDS, or 0 if the kernel has no
 * pidfds of threads (before Linux 6.9) or this process may have no more descriptors. */
size_t life_open(const struct life *life, int ret[static MSG_LIFE_FDS]);

#endif
