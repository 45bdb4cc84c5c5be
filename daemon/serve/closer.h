/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_CLOSER_H
#define MIMEO_DAEMON_SERVE_CLOSER_H

/*
 * Closes descriptors that clients sent, on threads that no other thread waits for.
 *
 * The last close of a file may take as long as the file's owner likes: a TCP socket that lingers
 * (SO_LINGER) sleeps over unsent data, a file system in user space may never answer, a large memfd
 * frees its pages. It happens even without receiving the file: reading its message without space
 * for descriptors, or closing the socket with the message unread, closes it. Where the kernel has
 * SO_PASSRIGHTS (Linux 6.16), sockets that need no descriptors refuse them. For the others, and on
 * older kernels, the loop thread looks at each message before it takes it (closer_receive), and
 * leaves descriptors, and sockets that hold descriptors, to a closer.
 *
 * Limits: CLOSER_THREADS threads, CLOSER_THREADS_PER_UID closes of one user at a time; further ones
 * wait. A close that takes CLOSER_PATIENCE_MS gets a signal (SIGURG), which ends a lingering close and
 * most others, but not that of a file system which cannot be interrupted. Threads end when nothing is
 * left to close. All calls are for the loop thread and return at once.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CLOSER_THREADS 64u
#define CLOSER_THREADS_PER_UID 8u
#define CLOSER_MAX 512u        /* pending: no more clients are accepted */
#define CLOSER_MAX_PER_UID 64u /* pending of one user: its new clients and descriptors are refused */
#define CLOSER_PATIENCE_MS 1000u
#define CLOSER_STOP_MS 1000u

struct closer;
struct loop;

/* `loop` is woken when the pending closes fall below one of the limits again. One closer at a time in a
 * process, which handles SIGURG meanwhile. 0 or -errno. */
int closer_new(struct closer **ret, struct loop *loop);
/* Waits CLOSER_STOP_MS for pending closes, interrupts them for as long, and leaves the rest to the end
 * of the process. To be called before the loop is freed. NULL is allowed. */
void closer_free(struct closer *closer);

/* Close a descriptor that came over a socket of this user's. */
void closer_take(struct closer *closer, int fd, uid_t uid);
/* The same for one that the device accepted as memory: its close is slow but ends, and does not count
 * against its user. */
void closer_take_memory(struct closer *closer, int fd, uid_t uid);
/* Disconnect the peer at once and close the socket: here if no descriptor lies in it. The loop must not
 * watch it any longer. */
void closer_hang_up(struct closer *closer, int fd, uid_t uid);

/*
 * Receive at most size bytes from a connected stream socket, without waiting and without closing any
 * descriptor. *ret_fd is the descriptor that came with them, the caller's from now on, or -1. The
 * socket has SO_OOBINLINE: otherwise out-of-band bytes, with their descriptors, would be dropped.
 * Returns the number of bytes, or -errno and nothing was taken: -EBADMSG if more descriptors came than
 * one (than none if ret_fd is NULL), -EMFILE if this process cannot receive the one.
 */
ssize_t closer_receive(int fd, void *buffer, size_t size, int *ret_fd);

/* Pending closes that count: all, or one user's. */
uint32_t closer_n(struct closer *closer);
uint32_t closer_n_of(struct closer *closer, uid_t uid);
/* The user has CLOSER_MAX_PER_UID pending closes. */
bool closer_is_full(struct closer *closer, uid_t uid);
/* To be called periodically: starts threads that could not be started, interrupts slow closes. */
void closer_tick(struct closer *closer);

#endif
