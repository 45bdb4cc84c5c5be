/* SPDX-License-Identifier: MIT */

/*
 * The epoll filling. Sources are edge-triggered entries of one epoll fd.
 *
 * Doorbells: write(2) to an eventfd whose holder filled the counter and cleared O_NONBLOCK would
 * block for ever, and looking first leaves a gap in which both can happen. The kernel itself
 * signals eventfds without blocking when an aio request that names one completes, so a ring is an
 * aio read of no bytes; a batch of them is one system call. Only where aio is refused does the look
 * suffice.
 */
#include "daemon/loop/loop_internal.h"

#include <errno.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

enum {
	WAIT_EVENTS = 256,
	BATCH = 64,
	AIO_EVENTS = 4 * BATCH, /* completions that the kernel keeps until they are fetched */
};

struct epoll {
	int fd;
	aio_context_t aio; /* 0: refused */
	int empty_fd;      /* what the empty reads read */
	struct iocb batch[BATCH];
	int n_batch;
	int n_unfetched;
};

static void aio_open(struct epoll *epoll)
{
	epoll->empty_fd = memfd_create("loop-rings", MFD_CLOEXEC);
	if (epoll->empty_fd >= 0 && syscall(SYS_io_setup, AIO_EVENTS, &epoll->aio) < 0)
		epoll->aio = 0;
}

static int epoll_open(struct loop *loop)
{
	struct epoll *epoll;
	int r;

	epoll = calloc(1, sizeof(*epoll));
	if (!epoll)
		return -ENOMEM;
	epoll->fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll->fd < 0) {
		r = -errno;
		free(epoll);
		return r;
	}
	aio_open(epoll);
	loop->state = epoll;
	return 0;
}

static void epoll_close(struct loop *loop)
{
	struct epoll *epoll = loop->state;

	if (epoll->aio)
		syscall(SYS_io_destroy, epoll->aio);
	if (epoll->empty_fd >= 0)
		close(epoll->empty_fd);
	close(epoll->fd);
	free(epoll);
}

static int epoll_watch(struct loop *loop, struct loop_source *source)
{
	struct epoll *epoll = loop->state;
	struct epoll_event event = { .events = source->events | EPOLLET, .data.ptr = source };

	return epoll_ctl(epoll->fd, EPOLL_CTL_ADD, source->fd, &event) < 0 ? -errno : 0;
}

static void epoll_unwatch(struct loop *loop, struct loop_source *source)
{
	struct epoll *epoll = loop->state;

	epoll_ctl(epoll->fd, EPOLL_CTL_DEL, source->fd, NULL);
}

/* epoll_wait counts milliseconds, and epoll_pwait2 is not everywhere. Positive: something is there. */
static int wait_finely(const struct epoll *epoll, uint64_t timeout_ns)
{
	struct pollfd poll_fd = { .fd = epoll->fd, .events = POLLIN };
	const struct timespec timeout = {
		.tv_sec = (time_t)(timeout_ns / NS_PER_S),
		.tv_nsec = (long)(timeout_ns % NS_PER_S),
	};
	int n = ppoll(&poll_fd, 1, &timeout, NULL);

	return n >= 0 ? n : errno == EINTR ? 0 : -errno;
}

static int epoll_wait_for(struct loop *loop, uint64_t timeout_ns)
{
	struct epoll *epoll = loop->state;
	struct epoll_event events[WAIT_EVENTS];
	int timeout_ms = -1, n;

	if (timeout_ns != LOOP_WAIT_FOREVER && timeout_ns % NS_PER_MS != 0) {
		n = wait_finely(epoll, timeout_ns);
		if (n <= 0)
			return n;
		timeout_ms = 0;
	} else if (timeout_ns != LOOP_WAIT_FOREVER) {
		uint64_t ms = timeout_ns / NS_PER_MS;

		timeout_ms = ms > INT32_MAX ? INT32_MAX : (int)ms;
	}
	n = epoll_wait(epoll->fd, events, WAIT_EVENTS, timeout_ms);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n; i++)
		loop_dispatch(loop, events[i].data.ptr, events[i].events);
	return 0;
}

/* ---- bells ---- */

static void fetch(struct epoll *epoll)
{
	struct io_event events[AIO_EVENTS];
	struct timespec none = { 0 };
	long n = syscall(SYS_io_getevents, epoll->aio, 0L, (long)AIO_EVENTS, events, &none);

	if (n > 0)
		epoll->n_unfetched -= (int)n;
}

static void epoll_ring_flush(struct loop *loop)
{
	struct epoll *epoll = loop->state;
	struct iocb *pointers[BATCH];
	int done = 0;
	bool fetched = false;

	for (int i = 0; i < epoll->n_batch; i++)
		pointers[i] = &epoll->batch[i];
	if (epoll->n_unfetched + epoll->n_batch > AIO_EVENTS)
		fetch(epoll);
	while (done < epoll->n_batch) {
		long n = syscall(SYS_io_submit, epoll->aio, (long)(epoll->n_batch - done),
			pointers + done);

		if (n > 0) {
			done += (int)n;
			epoll->n_unfetched += (int)n;
			fetched = false;
		} else if (n < 0 && errno == EAGAIN && !fetched) {
			fetch(epoll);
			fetched = true;
		} else {
			done++; /* this one is no eventfd (any more) */
		}
	}
	epoll->n_batch = 0;
}

static void ring_if_room(int eventfd)
{
	const uint64_t one = 1;
	struct pollfd poll_fd = { .fd = eventfd, .events = POLLOUT };
	ssize_t n;

	if (poll(&poll_fd, 1, 0) != 1 || !(poll_fd.revents & POLLOUT))
		return;
	/* A failure is a full counter (its reader is awake) or a closed fd. */
	n = write(eventfd, &one, sizeof(one));
	(void)n;
}

static void epoll_ring(struct loop *loop, int eventfd)
{
	struct epoll *epoll = loop->state;

	if (!epoll->aio) {
		ring_if_room(eventfd);
		return;
	}
	if (epoll->n_batch == BATCH)
		epoll_ring_flush(loop);
	epoll->batch[epoll->n_batch++] = (struct iocb){
		.aio_lio_opcode = IOCB_CMD_PREAD,
		.aio_fildes = (uint32_t)epoll->empty_fd,
		.aio_flags = IOCB_FLAG_RESFD,
		.aio_resfd = (uint32_t)eventfd,
	};
}

/* Nothing outlives a flush. */
static void epoll_ring_forget(struct loop *loop, int eventfd)
{
	(void)eventfd;
	epoll_ring_flush(loop);
}

const struct loop_backend loop_backend_epoll = {
	.name = "epoll",
	.open = epoll_open,
	.close = epoll_close,
	.watch = epoll_watch,
	.unwatch = epoll_unwatch,
	.wait = epoll_wait_for,
	.ring = epoll_ring,
	.ring_flush = epoll_ring_flush,
	.ring_forget = epoll_ring_forget,
};
