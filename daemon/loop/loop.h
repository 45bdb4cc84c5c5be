/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_LOOP_LOOP_H
#define MIMEO_DAEMON_LOOP_LOOP_H

/*
 * An event loop with two backends: io_uring (liburing), and epoll where io_uring is refused (a
 * container's seccomp filter, the sysctl) or MIMEO_LOOP=epoll asks for it. Both behave alike.
 *
 * Sources are added with a callback. A poll source is edge-triggered: its callback runs once per
 * wake-up and must take everything that is there, unless the source is never read (a doorbell).
 * Threads: a loop belongs to one thread, except for loop_wake. Another thread may make and fill it
 * before that thread's first loop_run_once, and another may free it after its last.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;
struct loop_source;

/* events: the EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR bits that the kernel reports; 0 for a
 * timer. */
typedef void (*loop_callback)(void *userdata, struct loop_source *source, uint32_t events);

/* `name`: "auto", "io_uring" or "epoll"; NULL or "": $MIMEO_LOOP, else auto. -ENOTSUP if the one
 * asked for is refused, -EINVAL for other names; auto falls back to epoll. */
int loop_new(struct loop **ret, const char *name);
void loop_free(struct loop *loop);
/* "io_uring" or "epoll", and why it is not io_uring ("io_uring_setup: Operation not permitted"),
 * else "". */
const char *loop_name(const struct loop *loop);
const char *loop_fallback_reason(const struct loop *loop);

/* Watch fd (the caller's, pollable; -EBADF if it is not open) for events, edge-triggered: what is
 * ready already counts as the first edge, and a callback may run although nothing changed. Sources
 * are freed by loop_remove (or loop_free); a source may be removed from within any callback, and gets
 * no callback afterwards. Remove first, then close the fd. */
int loop_add(struct loop *loop, int fd, uint32_t events, loop_callback callback, void *userdata,
	struct loop_source **ret);
void loop_remove(struct loop *loop, struct loop_source *source);
/* A periodic timer (period_ms > 0, else -EINVAL); the first tick after period_ms. A late loop gets one
 * tick for all that it missed, and later ticks stay on the grid. */
int loop_add_timer(struct loop *loop, uint64_t period_ms, loop_callback callback, void *userdata,
	struct loop_source **ret);

/* Wait up to timeout_ms (-1: without limit, 0: only look), then run the callbacks of what is ready.
 * Returns the number of callbacks run (0: timeout, a signal or a loop_wake), or -errno: -EBUSY from
 * within a callback. With io_uring a look that finds nothing makes no system call. */
int loop_run_once(struct loop *loop, int timeout_ms);
/* The same with a time in nanoseconds (UINT64_MAX: without limit), which is not rounded up: how late
 * it ends depends on the kernel and the thread's timer slack (prctl(2)). */
int loop_run_for(struct loop *loop, uint64_t timeout_ns);
/* End the current or next wait at once. Any thread may call it; async-signal-safe. */
void loop_wake(struct loop *loop);

/* Ring a doorbell without ever blocking, whatever the peer that holds it did to its counter or its
 * flags (daemon/loop/bells.h). Effective by loop_ring_flush at the latest; the fd stays open until
 * then. What is no eventfd is ignored. */
void loop_ring(struct loop *loop, int eventfd);
void loop_ring_flush(struct loop *loop);

#endif
