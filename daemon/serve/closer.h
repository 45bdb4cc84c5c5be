/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_CLOSER_H
#define MIMEO_DAEMON_SERVE_CLOSER_H

/*
 * Letting go of what strangers sent, on threads that nobody waits for.
 *
 * What the last close of a file does is its kind's affair: a TCP socket told to linger (SO_LINGER)
 * sleeps over unsent data for as long as its owner said, a file system in user space is asked and may
 * never answer, a large memfd gives its pages back. Such a file need not even be taken to be met: it
 * is closed with the message that it lies in, when that is received without room for it, and with the
 * socket that nobody read to its end. So the loop's thread does none of this: it looks ahead, and
 * leaves a message that brings descriptors, and a socket with such a message, to a thread.
 *
 * Threads: as many as something hangs, at most CLOSER_THREADS, of one user CLOSER_THREADS_PER_UID;
 * what waits behind them stays open. What hangs for CLOSER_PATIENCE_MS gets a signal (SIGURG), which
 * ends a lingering close and most others; of a file system that cannot be interrupted it does not.
 * Threads end when there is nothing to do. All calls are the loop thread's; none of them waits, but a
 * thread may have to be made.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CLOSER_THREADS 64u
#define CLOSER_THREADS_PER_UID 8u
#define CLOSER_MAX 512u        /* not let go of yet: more clients are not accepted */
#define CLOSER_MAX_PER_UID 64u /* of one user: its new clients and its descriptors are refused */
#define CLOSER_PATIENCE_MS 1000u
#define CLOSER_STOP_MS 1000u

struct closer;
struct closer_item;
struct loop;

/* `loop` is woken when a closer_receive has come back. One at a time in a process: SIGURG is its own
 * meanwhile. 0 or -errno. */
int closer_new(struct closer **ret, struct loop *loop);
/* Waits CLOSER_STOP_MS for what hangs, interrupts it for as long, and leaves the rest to the end of the
 * process. Items of closer_receive are void. Before the loop is freed. */
void closer_free(struct closer *closer);

/* Close a descriptor that came over a socket of this user's. */
void closer_take(struct closer *closer, int fd, uid_t uid);
/* The same of one that the device took for memory: it takes its time, and does not hang, and so is not
 * counted against its user. */
void closer_take_known(struct closer *closer, int fd, uid_t uid);
/* End a connection: the peer sees it now; the socket is closed, here if no descriptor lies in it. The
 * loop watches it no longer. */
void closer_hang_up(struct closer *closer, int fd, uid_t uid);

/* A connected stream socket's bytes, size of it at most and without waiting; SO_OOBINLINE is set, or
 * out-of-band bytes would be thrown away unseen, with the descriptors they bring. -errno; -EBADMSG:
 * descriptors lie with the bytes, and nothing was taken. */
ssize_t closer_peek_receive(int fd, void *buffer, size_t size);

struct closer_result {
	ssize_t n;    /* bytes, or -errno */
	int fd;       /* the descriptor kept, the caller's from now on; -1: none */
	bool surplus; /* there were more */
	bool lost;    /* this process has no number left for one */
};
/* After -EBADMSG: take the bytes, keep one descriptor (`keep`) or none, drop the others. The socket is
 * not to be read, nor closed, before it has come back; NULL: no memory. */
struct closer_item *closer_receive(
	struct closer *closer, int fd, size_t size, bool keep, uid_t uid);
/* True once it has come back, and the item is gone; buffer has room for size bytes. */
bool closer_received(struct closer *closer, struct closer_item *item, void *buffer,
	struct closer_result *ret);
/* Hang up instead of waiting for it: socket and item are the closer's. */
void closer_abandon(struct closer *closer, struct closer_item *item);

/* What is counted and not let go of yet, descriptors, and sockets and messages with descriptors in
 * them: all, or one user's. The loop is woken when there are less than CLOSER_MAX again. */
uint32_t closer_n(struct closer *closer);
uint32_t closer_n_of(struct closer *closer, uid_t uid);
/* Now and then: start threads that could not be started, interrupt what hangs. */
void closer_tick(struct closer *closer);

#endif
