/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_CLOSER_H
#define MIMEO_DAEMON_SERVE_CLOSER_H

/*
 * Letting go of what strangers sent, on threads that nobody waits for.
 *
 * What the last close of a file does is its kind's affair: a TCP socket told to linger (SO_LINGER)
 * sleeps over unsent data for as long as its owner said, a file system in user space is asked and may
 * never answer, a terminal drains. Such a file need not even be taken to be met: it is closed with the
 * message that it lies in, and that with the socket that nobody read to its end. So the loop's thread
 * closes none of them.
 *
 * Two ways in: a descriptor that was taken (closer_take), or one that never is, which spares its file
 * the flush of close(2) as well (closer_hang_up, closer_receive).
 *
 * Threads: as many as something hangs, at most CLOSER_THREADS, of one user CLOSER_THREADS_PER_UID;
 * what waits behind them stays open. They end when there is nothing to do. All calls are the loop
 * thread's; none of them blocks.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CLOSER_THREADS 64u
#define CLOSER_THREADS_PER_UID 8u
#define CLOSER_MAX 512u        /* not closed yet: more clients are not accepted */
#define CLOSER_MAX_PER_UID 64u /* of one user: it is not served before they are */
#define CLOSER_STOP_MS 1000u

struct closer;
struct closer_item;
struct loop;

/* `loop` is woken when a closer_receive has come back. 0 or -errno. */
int closer_new(struct closer **ret, struct loop *loop);
/* Waits CLOSER_STOP_MS for what hangs, and then leaves it to the end of the process. Before the loop
 * is freed. */
void closer_free(struct closer *closer);

/* Close a descriptor that came over a socket of this user's. A memfd's is closed at once: the kernel
 * asks nobody. */
void closer_take(struct closer *closer, int fd, uid_t uid);
/* End a connection: the peer sees it now; the socket is closed, here if nothing lies in it. The loop
 * watches it no longer. */
void closer_hang_up(struct closer *closer, int fd, uid_t uid);

/* A connected stream socket's bytes, size of it at most and without waiting. -errno; -EBADMSG:
 * descriptors lie with the bytes, and nothing was taken. */
ssize_t closer_peek_receive(int fd, void *buffer, size_t size);
/* After -EBADMSG: take the bytes and drop the descriptors. The socket is not to be read, nor closed,
 * before it has come back; NULL: no memory. */
struct closer_item *closer_receive(struct closer *closer, int fd, size_t size, uid_t uid);
/* True once it has come back, and the item is gone: *ret_n bytes, or -errno. */
bool closer_received(struct closer *closer, struct closer_item *item, void *buffer, ssize_t *ret_n);
/* Hang up instead of waiting for it: socket and item are the closer's. */
void closer_abandon(struct closer *closer, struct closer_item *item);

/* Descriptors that are not closed yet: all, or one user's. */
uint32_t closer_n(struct closer *closer);
uint32_t closer_n_of(struct closer *closer, uid_t uid);
/* Start threads that could not be started; now and then. */
void closer_tick(struct closer *closer);

#endif
