/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_CHILD_H
#define MIMEO_DAEMON_BENCH_CHILD_H

/*
 * Children under supervision. A child is killed when its parent ends, whatever ends it. A child
 * reports progress by bytes on a pipe, which closes when the child has ended. The parent waits with
 * a deadline and notices SIGINT, SIGTERM and SIGHUP while it waits.
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

/* From now on those signals are taken by child_next and nothing else. 0 or -errno. */
int child_supervise(void);
/* The signal that child_next returned -EINTR for; 0: none yet. */
int child_signal(void);

/* Fork; the child runs `run` and ends with what it returns. `fd` is the pipe's writing end, closed
 * on exec. 0 or -errno. */
int child_start(struct child *ret, int (*run)(void *arg, int fd), void *arg);
/* Wait until clock_ns() reaches the deadline: 1 when a byte came, 0 when the child ended well (it
 * is reaped), -ECHILD when it failed and has said why (the same), -EFAULT when a signal ended it
 * (the same), -ETIMEDOUT, -EINTR on a signal to us. */
int child_next(struct child *child, uint64_t deadline_ns);
/* Wait for its end. As child_next, without the 1. */
int child_wait(struct child *child, uint64_t deadline_ns);
/* Kill and reap what still runs. Zeroed or NULL is fine. */
void child_kill(struct child *child);

/* Start, wait for timeout_s at most, and kill; a failure of `what` is reported on standard error. */
int child_run(const char *what, int (*run)(void *arg, int fd), void *arg, uint32_t timeout_s);

#endif
