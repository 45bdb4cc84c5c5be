/* SPDX-License-Identifier: MIT */

/*
 * The io_uring filling. Two rings, both used by the loop's thread alone:
 *
 *   polls  one multishot poll a source. Its user data is the source; 0 marks completions nobody
 *          waits for (cancels). The kernel may end a multishot poll at any time (a completion
 *          without IORING_CQE_F_MORE, e.g. when the completion queue was full): it is armed again.
 *   bells  writes to doorbells. Apart, because their completions must be counted between two turns
 *          of the loop, when no callback may run.
 *
 * Requests belong to the thread that submits them: they end with it, and their completions are made
 * in its context. Hence loop_add only notes what to arm, and the next wait submits.
 */
#include "daemon/loop/loop_internal.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <utlist.h>

enum {
	POLL_ENTRIES = 256,
	POLL_COMPLETIONS = 4096,
	BELL_ENTRIES = 256,
	BELL_COMPLETIONS = 2048,
	POLL_TRIES = 8, /* of a poll that ends with an error each time */
};

/* One a file descriptor number. */
struct bell {
	uint32_t generation; /* tells late completions of a forgotten doorbell */
	uint32_t n_in_flight;
	bool owed; /* found no entry to ring with: the next flush does */
};

struct uring {
	struct io_uring polls, bells;
	struct loop_source *to_arm;
	struct bell *by_fd;
	size_t n_by_fd;
	uint32_t generation;
	uint32_t n_owed;
};

#define BELL_UNTRACKED UINT64_MAX

static const uint64_t bell_value = 1;

static int ring_open(struct io_uring *ring, unsigned entries, unsigned completions)
{
	struct io_uring_params params = {
		.flags =
			IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		.cq_entries = completions,
	};
	int r;

	r = io_uring_queue_init_params(entries, ring, &params);
	if (r != -EINVAL)
		return r;
	/* Before 5.19: completions interrupt the thread instead of waiting for its next system
	 * call. */
	params = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .cq_entries = completions};
	return io_uring_queue_init_params(entries, ring, &params);
}

/* A filter may let the setup pass and refuse the rest. */
static int ring_try(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int r;

	io_uring_prep_nop(io_uring_get_sqe(ring));
	r = io_uring_submit_and_wait(ring, 1);
	if (r < 0)
		return r;
	r = io_uring_peek_cqe(ring, &cqe);
	if (r == 0)
		io_uring_cqe_seen(ring, cqe);
	return r;
}

static int uring_open(struct loop *loop)
{
	struct uring *uring;
	int r;

	uring = calloc(1, sizeof(*uring));
	if (!uring)
		return -ENOMEM;
	r = ring_open(&uring->polls, POLL_ENTRIES, POLL_COMPLETIONS);
	if (r < 0) {
		loop_set_reason(loop, "io_uring_setup", r);
		goto free_uring;
	}
	/* RSRC_TAGS came with 5.13, as multishot polls did. */
	if (!(uring->polls.features & IORING_FEAT_EXT_ARG) ||
		!(uring->polls.features & IORING_FEAT_RSRC_TAGS)) {
		snprintf(loop->reason, sizeof(loop->reason),
			"io_uring: no multishot poll, which needs Linux 5.13");
		r = -ENOTSUP;
		goto exit_polls;
	}
	r = ring_try(&uring->polls);
	if (r < 0) {
		loop_set_reason(loop, "io_uring_enter", r);
		goto exit_polls;
	}
	r = ring_open(&uring->bells, BELL_ENTRIES, BELL_COMPLETIONS);
	if (r < 0) {
		loop_set_reason(loop, "io_uring_setup", r);
		goto exit_polls;
	}
	loop->state = uring;
	return 0;
exit_polls:
	io_uring_queue_exit(&uring->polls);
free_uring:
	free(uring);
	return r;
}

static void uring_close(struct loop *loop)
{
	struct uring *uring = loop->state;

	io_uring_queue_exit(&uring->bells);
	io_uring_queue_exit(&uring->polls);
	free(uring->by_fd);
	free(uring);
}

static struct io_uring_sqe *next_sqe(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (!sqe) {
		io_uring_submit(ring);
		sqe = io_uring_get_sqe(ring);
	}
	return sqe;
}

/* ---- polls ---- */

static int uring_watch(struct loop *loop, struct loop_source *source)
{
	struct uring *uring = loop->state;

	source->to_arm = true;
	DL_APPEND2(uring->to_arm, source, arm_prev, arm_next);
	return 0;
}

static void forget_arming(struct uring *uring, struct loop_source *source)
{
	source->to_arm = false;
	DL_DELETE2(uring->to_arm, source, arm_prev, arm_next);
}

/* Submitted at once: an armed poll holds the file open, and a peer may wait for its hang-up. */
static void uring_unwatch(struct loop *loop, struct loop_source *source)
{
	struct uring *uring = loop->state;
	struct io_uring_sqe *sqe;

	if (source->to_arm)
		forget_arming(uring, source);
	if (!source->in_kernel)
		return;
	sqe = next_sqe(&uring->polls);
	if (!sqe)
		return; /* out of memory in the kernel: the source stays until the loop is freed */
	io_uring_prep_cancel(sqe, source, 0);
	io_uring_sqe_set_data(sqe, NULL);
	io_uring_submit(&uring->polls);
}

static void arm(struct uring *uring)
{
	while (uring->to_arm) {
		struct loop_source *source = uring->to_arm;
		struct io_uring_sqe *sqe = next_sqe(&uring->polls);

		if (!sqe)
			return; /* the rest at the next wait */
		forget_arming(uring, source);
		io_uring_prep_poll_multishot(sqe, source->fd, source->events);
		io_uring_sqe_set_data(sqe, source);
		source->in_kernel = true;
	}
}

/* A poll that ends with an error (no memory, an interrupt) is armed again and then tells what it
 * missed; only one that cannot be armed is the callback's concern. -ECANCELED, not by us: the thread
 * that armed it has ended. */
static void complete(struct loop *loop, struct loop_source *source, int res, bool more)
{
	if (res >= 0)
		source->n_errors = 0;
	else if (res != -ECANCELED)
		source->n_errors++;
	if (!more) {
		source->in_kernel = false;
		if (!source->removed && source->n_errors < POLL_TRIES)
			uring_watch(loop, source);
	}
	if (res >= 0)
		loop_dispatch(loop, source, (uint32_t)res);
	else if (source->n_errors >= POLL_TRIES)
		loop_dispatch(loop, source, EPOLLERR);
}

static int uring_wait(struct loop *loop, uint64_t timeout_ns)
{
	struct uring *uring = loop->state;
	struct __kernel_timespec timeout = {
		.tv_sec = (int64_t)(timeout_ns / 1000000000),
		.tv_nsec = (long long)(timeout_ns % 1000000000),
	};
	struct io_uring_cqe *cqe;
	unsigned n;
	int r = 0;

	arm(uring);
	if (timeout_ns > 0)
		r = io_uring_submit_and_wait_timeout(&uring->polls, &cqe, 1,
			timeout_ns == LOOP_WAIT_FOREVER ? NULL : &timeout, NULL);
	else if (io_uring_sq_ready(&uring->polls) > 0)
		r = io_uring_submit(&uring->polls);
	if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
		return r;

	/* The peek also fetches completions that wait for this thread to enter the kernel. What
	 * arrives while callbacks run is left to the next turn. */
	if (io_uring_peek_cqe(&uring->polls, &cqe) < 0)
		return 0;
	for (n = io_uring_cq_ready(&uring->polls); n > 0; n--) {
		struct loop_source *source;
		int res;
		bool more;

		if (io_uring_peek_cqe(&uring->polls, &cqe) < 0)
			break;
		source = io_uring_cqe_get_data(cqe);
		res = cqe->res;
		more = cqe->flags & IORING_CQE_F_MORE;
		io_uring_cqe_seen(&uring->polls, cqe);
		if (source)
			complete(loop, source, res, more);
	}
	return 0;
}

/* ---- bells ---- */

static void reap_bells(struct uring *uring)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&uring->bells, &cqe) == 0) {
		uint64_t data = io_uring_cqe_get_data64(cqe);
		uint32_t fd = (uint32_t)data;

		if (data != BELL_UNTRACKED && fd < uring->n_by_fd &&
			uring->by_fd[fd].generation == data >> 32 &&
			uring->by_fd[fd].n_in_flight > 0)
			uring->by_fd[fd].n_in_flight--;
		io_uring_cqe_seen(&uring->bells, cqe);
	}
}

static struct bell *find_bell(struct uring *uring, int fd)
{
	size_t n = uring->n_by_fd ? uring->n_by_fd : 64;
	struct bell *grown;

	if (fd < 0)
		return NULL;
	if ((size_t)fd < uring->n_by_fd)
		return &uring->by_fd[fd];
	while (n <= (size_t)fd)
		n *= 2;
	grown = realloc(uring->by_fd, n * sizeof(*grown));
	if (!grown)
		return NULL;
	memset(grown + uring->n_by_fd, 0, (n - uring->n_by_fd) * sizeof(*grown));
	uring->by_fd = grown;
	uring->n_by_fd = n;
	return &grown[fd];
}

static void uring_ring(struct loop *loop, int eventfd)
{
	struct uring *uring = loop->state;
	struct bell *bell = find_bell(uring, eventfd);
	struct io_uring_sqe *sqe;

	if (bell && bell->n_in_flight >= LOOP_RINGS_MAX) {
		reap_bells(uring);
		if (bell->n_in_flight >= LOOP_RINGS_MAX)
			return;
	}
	sqe = next_sqe(&uring->bells);
	if (!sqe) {
		if (bell && !bell->owed) {
			bell->owed = true;
			uring->n_owed++;
		}
		return;
	}
	io_uring_prep_write(sqe, eventfd, &bell_value, sizeof(bell_value), 0);
	if (bell) {
		bell->n_in_flight++;
		io_uring_sqe_set_data64(sqe, (uint64_t)bell->generation << 32 | (uint32_t)eventfd);
	} else {
		io_uring_sqe_set_data64(sqe, BELL_UNTRACKED);
	}
}

static void forget_owed(struct uring *uring, struct bell *bell)
{
	uring->n_owed -= bell->owed;
	bell->owed = false;
}

static void ring_owed(struct loop *loop)
{
	struct uring *uring = loop->state;

	for (size_t fd = 0; fd < uring->n_by_fd && uring->n_owed > 0; fd++) {
		if (!uring->by_fd[fd].owed)
			continue;
		forget_owed(uring, &uring->by_fd[fd]);
		uring_ring(loop, (int)fd);
		if (uring->by_fd[fd].owed)
			return; /* still no entry */
	}
}

static void uring_ring_flush(struct loop *loop)
{
	struct uring *uring = loop->state;

	reap_bells(uring);
	if (uring->n_owed > 0)
		ring_owed(loop);
	if (io_uring_sq_ready(&uring->bells) > 0)
		io_uring_submit(&uring->bells);
	reap_bells(uring);
}

static void uring_ring_forget(struct loop *loop, int eventfd)
{
	struct uring *uring = loop->state;
	struct bell *bell;

	uring_ring_flush(loop);
	if (eventfd < 0 || (size_t)eventfd >= uring->n_by_fd)
		return;
	bell = &uring->by_fd[eventfd];
	forget_owed(uring, bell);
	if (bell->n_in_flight == 0)
		return;
	/* All of them carry the same user data; each cancel takes one. */
	for (uint32_t i = 0; i < bell->n_in_flight; i++) {
		struct io_uring_sqe *sqe = next_sqe(&uring->bells);

		if (!sqe)
			break;
		io_uring_prep_cancel64(
			sqe, (uint64_t)bell->generation << 32 | (uint32_t)eventfd, 0);
		io_uring_sqe_set_data64(sqe, BELL_UNTRACKED);
	}
	bell->n_in_flight = 0;
	bell->generation = ++uring->generation;
	uring_ring_flush(loop);
}

const struct loop_backend loop_backend_uring = {
	.name = "io_uring",
	.open = uring_open,
	.close = uring_close,
	.watch = uring_watch,
	.unwatch = uring_unwatch,
	.wait = uring_wait,
	.ring = uring_ring,
	.ring_flush = uring_ring_flush,
	.ring_forget = uring_ring_forget,
};
