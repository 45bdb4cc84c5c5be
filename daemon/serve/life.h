/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_LIFE_H
#define MIMEO_DAEMON_SERVE_LIFE_H

/*
 * What tells clients at once that the daemon is dead.
 *
 * A killed process takes its memory apart before it closes its files, and its pidfd tells last of
 * all: with a gigabyte mapped, or what CUDA maps, that is 100 ms. But each of its threads ends on
 * its own, and only the last that does takes the memory apart; the others just let go of it. So a
 * thread that does nothing is dead within a millisecond or so, and a pidfd of that thread
 * (PIDFD_THREAD) polls readable then. Two such threads, because one may be the last: then the other
 * was not.
 *
 * Each client gets pidfds that were opened for it alone: of one that all share, the kernel lets so many
 * epolls look (500 that are looked at themselves), and one client could use that up for the others. A
 * pidfd cannot be written, shut down, made readable or kept from becoming so by those who have it;
 * signals through it take the right to kill the daemon.
 */

#include <stddef.h>

#include "ipc/msg.h"

struct life;

#define LIFE_THREAD_NAME "mimeo-life" /* in /proc/PID/task/TID/comm */

/* Starts the threads. 0 or -errno. */
int life_new(struct life **ret);
/* Ends them: the pidfds that clients hold tell that. */
void life_free(struct life *life);

/* New pidfds, the caller's; either tells of the daemon's death. How many: MSG_LIFE_FDS, or 0 where the
 * kernel has none of threads (before Linux 6.9) or this process may have no more descriptors. */
size_t life_open(const struct life *life, int ret[static MSG_LIFE_FDS]);

#endif
