/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_LOOP_BELLS_H
#define MIMEO_DAEMON_LOOP_BELLS_H

/*
 * Ring doorbells that untrusted peers hold, without ever blocking.
 *
 * A peer can fill the counter of its eventfd and clear O_NONBLOCK; write(2) would then block until
 * the peer reads. When an aio request that names an eventfd completes, the kernel signals that eventfd
 * itself, which saturates and cannot block. So a ring is an aio read of no bytes, and a batch of
 * rings is one system call. Where aio is refused, the same signal comes from a completion of an
 * io_uring in which the eventfd is registered, one eventfd at a time. Only where both are refused does
 * a ring check that the counter is not full before it writes; the check and the write are not atomic.
 */

#include <liburing.h>
#include <linux/aio_abi.h>
#include <stdint.h>

#define BELLS_BATCH 256u

struct bells {
	enum { BELLS_AIO, BELLS_URING, BELLS_WRITE } way;
	int empty_fd; /* what the aio reads read */
	aio_context_t aio;
	struct io_uring uring;
	uint32_t n_batch;
	uint32_t n_unfetched; /* completions in the aio context, BELLS_BATCH at most */
	struct iocb batch[BELLS_BATCH];
};

/* 0 or -errno. */
int bells_init(struct bells *bells);
/* Takes zeros with empty_fd -1, too. */
void bells_deinit(struct bells *bells);
/* Effective by the next bells_flush at the latest; the fd stays open until then. Rings of anything that
 * is no eventfd are dropped. Neither call allocates. */
void bells_ring(struct bells *bells, int eventfd);
/* Bells for which the kernel has no memory wait for the next flush. */
void bells_flush(struct bells *bells);

#endif
