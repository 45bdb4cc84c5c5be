/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_LOOP_LOOP_H
#define MIMEO_DAEMON_LOOP_LOOP_H

/*
 * An event loop with two fillings: io_uring (liburing), and epoll where io_uring is refused (a
 * container's seccomp filter, the sysctl) or MIMEO_LOOP=epoll asks for it. Both behave alike.
 *
 * Sources are added with a callback. A poll source is edge-triggered: its callback runs once per
 * wake-up and must take everything that is there, or not care (doorbells are never read).
 * Threads: a loop belongs to one thread, but for loop_wake. It may be made and filled by another
 * one before that thread's first loop_run_once, and freed by another one after its last.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;
struct loop_source;

/* events: EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR bits; the kernel's answer; 0 of a
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
 * ready already counts as the first edge, and a callback may come without news. Sources are freed
 * by loop_remove (or loop_free); a source may be removed from within any callback, and gets no
 * callback afterwards. Remove first, then close the fd. */
int loop_add(struct loop *loop, int fd, uint32_t events, loop_callback callback, void *userdata,
	struct loop_source **ret);
void loop_remove(struct loop *loop, struct loop_source *source);
/* A periodic timer (period_ms > 0, else -EINVAL); the first tick after period_ms. A loop that comes
 * late gets one tick for all that it missed, and the later ones stay on the grid. */
int loop_add_timer(struct loop *loop, uint64_t period_ms, loop_callback callback, void *userdata,
	struct loop_source **ret);

/* Wait up to timeout_ms (-1: without limit, 0: only look), then run the callbacks of what is ready.
 * Number of callbacks run (0: the time is up, a signal or a loop_wake came), or -errno: -EBUSY from
 * within a callback. With io_uring a look that finds nothing makes no system call. */
int loop_run_once(struct loop *loop, int timeout_ms);
/* The same with a time in nanoseconds (UINT64_MAX: without limit), which is not rounded up: how late
 * it ends is the kernel's affair, and of the thread's timer slack (prctl(2)). */
int loop_run_for(struct loop *loop, uint64_t timeout_ns);
/* End the current or next wait at once; from any thread, and async-signal-safe. */
void loop_wake(struct loop *loop);

/*
 * Ring a doorbell without ever blocking, whatever its holder did to the counter or its flags.
 * io_uring: a write that the kernel moves to a worker if it would block, at most LOOP_RINGS_MAX in
 * flight a doorbell; more are dropped (a full counter wakes its reader as well). epoll: the
 * kernel's own signal to an eventfd (the completion of an empty aio read), which saturates and
 * cannot block; where aio is refused, the counter's room is looked at before a write.
 * Batches: a ring becomes effective by loop_ring_flush at the latest, and the fd stays open until
 * then. Rings that fail (a closed fd) are forgotten. Neither call allocates once it has seen the
 * fd.
 */
#define LOOP_RINGS_MAX 4
void loop_ring(struct loop *loop, int eventfd);
void loop_ring_flush(struct loop *loop);
/* Call before closing an eventfd that was rung: cancels what is still in flight for it, so that its
 * number can serve another doorbell. */
void loop_ring_forget(struct loop *loop, int eventfd);

#endif
