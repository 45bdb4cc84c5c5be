/* SPDX-License-Identifier: MIT */
/*
 * The io_uring backend: one multishot poll a source. A completion's user data is the source; 0 marks
 * completions of cancels, which nothing waits for. The kernel may end a multishot poll at any time (a
 * completion without IORING_CQE_F_MORE, for example when the completion queue was full): it is armed
 * again.
 *
 * Requests belong to the thread that submits them: they end with it, and their completions are made
 * in its context. Hence loop_add only notes what to arm, and the next wait submits.
 */
#include "daemon/loop/backend.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <utlist.h>

#include "ipc/cleanup.h"

enum {
	POLL_ENTRIES = 256,
	POLL_COMPLETIONS = 4096,
	POLL_TRIES = 8, /* of a poll that ends with an error each time */
};

struct uring {
	struct io_uring polls;
	struct loop_source *to_arm;
};

static int loop_uring_init(struct io_uring *ring)
{
	struct io_uring_params params = {
		.flags =
			IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		.cq_entries = POLL_COMPLETIONS,
	};

	int rc = io_uring_queue_init_params(POLL_ENTRIES, ring, &params);
	if (rc != -EINVAL)
		return rc;
	/* Before 5.19: completions interrupt the thread instead of waiting for its next system
	 * call. */
	params = (struct io_uring_params){
		.flags = IORING_SETUP_CQSIZE, .cq_entries = POLL_COMPLETIONS};
	return io_uring_queue_init_params(POLL_ENTRIES, ring, &params);
}

/* A system call filter may allow the setup and refuse the rest. */
static int loop_uring_try(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;

	io_uring_prep_nop(io_uring_get_sqe(ring));
	int rc = io_uring_submit_and_wait(ring, 1);
	if (rc < 0)
		return rc;
	rc = io_uring_peek_cqe(ring, &cqe);
	if (rc == 0)
		io_uring_cqe_seen(ring, cqe);
	return rc;
}

/* 0, or -errno with the call that failed. */
static int loop_uring_setup(struct io_uring *ring, const char **ret_call)
{
	*ret_call = "io_uring_setup";
	int rc = loop_uring_init(ring);
	if (rc < 0)
		return rc;
	/* RSRC_TAGS came with 5.13, as multishot polls did. */
	bool multishot =
		ring->features & IORING_FEAT_EXT_ARG && ring->features & IORING_FEAT_RSRC_TAGS;
	*ret_call = "io_uring_enter";
	rc = multishot ? loop_uring_try(ring) : -ENOTSUP;
	if (rc < 0)
		io_uring_queue_exit(ring);
	return rc;
}

static int loop_uring_open(struct loop *loop)
{
	CLEANUP(cleanup_free) struct uring *uring = calloc(1, sizeof(*uring));
	const char *call;

	if (!uring)
		return -ENOMEM;
	int rc = loop_uring_setup(&uring->polls, &call);
	if (rc == -ENOTSUP)
		snprintf(loop->reason, sizeof(loop->reason),
			"io_uring: no multishot poll, which needs Linux 5.13");
	else if (rc < 0)
		snprintf(loop->reason, sizeof(loop->reason), "%s: %s", call, strerror(-rc));
	if (rc < 0)
		return rc;
	loop->state = STEAL(uring);
	return 0;
}

static void loop_uring_close(struct loop *loop)
{
	struct uring *uring = loop->state;

	io_uring_queue_exit(&uring->polls);
	free(uring);
}

static struct io_uring_sqe *loop_uring_next_sqe(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (!sqe) {
		io_uring_submit(ring);
		sqe = io_uring_get_sqe(ring);
	}
	return sqe;
}

static int loop_uring_watch(struct loop *loop, struct loop_source *source)
{
	struct uring *uring = loop->state;

	assert(!source->to_arm && !source->in_kernel && !source->removed);
	source->to_arm = true;
	DL_APPEND2(uring->to_arm, source, arm_prev, arm_next);
	return 0;
}

static void loop_uring_disarm(struct uring *uring, struct loop_source *source)
{
	assert(source->to_arm && uring->to_arm);
	source->to_arm = false;
	DL_DELETE2(uring->to_arm, source, arm_prev, arm_next);
}

/* Submitted at once: an armed poll holds the file open, and a peer may wait for its hang-up. */
static void loop_uring_unwatch(struct loop *loop, struct loop_source *source)
{
	struct uring *uring = loop->state;
	struct io_uring_sqe *sqe;

	if (source->to_arm)
		loop_uring_disarm(uring, source);
	if (!source->in_kernel)
		return;
	sqe = loop_uring_next_sqe(&uring->polls);
	if (!sqe)
		return; /* out of memory in the kernel: the source stays until the loop is freed */
	io_uring_prep_cancel(sqe, source, 0);
	io_uring_sqe_set_data(sqe, NULL);
	io_uring_submit(&uring->polls);
}

static void loop_uring_arm(struct uring *uring)
{
	while (uring->to_arm) {
		struct loop_source *source = uring->to_arm;
		struct io_uring_sqe *sqe = loop_uring_next_sqe(&uring->polls);

		if (!sqe)
			return; /* the rest at the next wait */
		loop_uring_disarm(uring, source);
		io_uring_prep_poll_multishot(sqe, source->fd, source->events);
		io_uring_sqe_set_data(sqe, source);
		source->in_kernel = true;
	}
}

/* A poll that ends with an error (no memory, an interrupt) is armed again, and reports then what it
 * missed; only one that cannot be armed is reported to the callback. -ECANCELED without a cancel: the
 * thread that armed it has ended. */
static void loop_uring_complete(struct loop *loop, struct loop_source *source, int res, bool more)
{
	assert(source->in_kernel);
	if (res >= 0)
		source->n_errors = 0;
	else if (res != -ECANCELED)
		source->n_errors++;
	if (!more) {
		source->in_kernel = false;
		if (!source->removed && source->n_errors < POLL_TRIES)
			loop_uring_watch(loop, source);
	}
	if (res >= 0)
		loop_dispatch(loop, source, (uint32_t)res);
	else if (source->n_errors >= POLL_TRIES)
		loop_dispatch(loop, source, EPOLLERR);
}

static int loop_uring_wait(struct loop *loop, uint64_t timeout_ns)
{
	struct uring *uring = loop->state;
	struct __kernel_timespec timeout = {
		.tv_sec = (int64_t)(timeout_ns / 1000000000),
		.tv_nsec = (long long)(timeout_ns % 1000000000),
	};
	struct io_uring_cqe *cqe;
	int rc = 0;

	loop_uring_arm(uring);
	if (timeout_ns > 0)
		rc = io_uring_submit_and_wait_timeout(&uring->polls, &cqe, 1,
			timeout_ns == LOOP_WAIT_FOREVER ? NULL : &timeout, NULL);
	else if (io_uring_sq_ready(&uring->polls) > 0)
		rc = io_uring_submit(&uring->polls);
	if (rc < 0 && rc != -ETIME && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
		return rc;

	/* The peek also fetches completions that wait for this thread to enter the kernel. What
	 * arrives while callbacks run is left to the next turn. */
	if (io_uring_peek_cqe(&uring->polls, &cqe) < 0)
		return 0;
	for (unsigned n = io_uring_cq_ready(&uring->polls); n > 0; n--) {
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
			loop_uring_complete(loop, source, res, more);
	}
	return 0;
}

const struct loop_backend loop_backend_uring = {
	.name = "io_uring",
	.open = loop_uring_open,
	.close = loop_uring_close,
	.watch = loop_uring_watch,
	.unwatch = loop_uring_unwatch,
	.wait = loop_uring_wait,
};
