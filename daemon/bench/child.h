/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_CHILD_H
#define MIMEO_DAEMON_BENCH_CHILD_H

/*
 * Supervised child processes. A child is killed when its parent ends for any reason. It reports progress by
 * bytes on a pipe, which closes when it ends. The parent waits with a deadline and notices SIGINT, SIGTERM
 * and SIGHUP while it waits.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct child {
	pid_t pid; /* 0: none */
	int fd;    /* the pipe's reading end */
};

/* Zeroed memory that children share; NULL: there is none. */
void *child_memory(size_t bytes);
void child_memory_free(void *memory, size_t bytes);

/* From now on only child_next takes these signals. 0 or -errno. */
int child_supervise(void);
/* The signal for which child_next returned -EINTR; 0: none so far. */
int child_signal(void);

/* Fork; the child runs `run` and ends with what it returns. `fd` is the pipe's writing end, closed
 * on exec. 0 or -errno. */
int child_start(struct child *ret, int (*run)(void *arg, int fd), void *arg);
/* Wait until clock_ns() reaches the deadline. 1: a byte came; 0: the child ended successfully; -ECHILD: it
 * failed and has reported why; -EFAULT: a signal ended it (in these three cases it was reaped); -ETIMEDOUT;
 * -EINTR: a signal to this process. */
int child_next(struct child *child, uint64_t deadline_ns);
/* Wait until the child ends. Returns as child_next, but never 1. */
int child_wait(struct child *child, uint64_t deadline_ns);
/* Kill and reap the child if it still runs. Accepts NULL and a zeroed child. */
void child_kill(struct child *child);

/* Start, wait for timeout_s at most, and kill; a failure of `what` is reported on standard error. */
int child_run(const char *what, int (*run)(void *arg, int fd), void *arg, uint32_t timeout_s);

#endif
