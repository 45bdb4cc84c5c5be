/* SPDX-License-Identifier: MIT */

/* The epoll backend: sources are edge-triggered entries of one epoll fd. */
#include "daemon/loop/backend.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

enum { WAIT_EVENTS = 256 };

struct epoll {
	int fd;
};

static int epoll_open(struct loop *loop)
{
	struct epoll *epoll = calloc(1, sizeof(*epoll));
	if (!epoll)
		return -ENOMEM;
	epoll->fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll->fd < 0) {
		int rc = -errno;

		free(epoll);
		return rc;
	}
	loop->state = epoll;
	return 0;
}

static void epoll_close(struct loop *loop)
{
	struct epoll *epoll = loop->state;

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
static int epoll_wait_finely(const struct epoll *epoll, uint64_t timeout_ns)
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
		n = epoll_wait_finely(epoll, timeout_ns);
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

const struct loop_backend loop_backend_epoll = {
	.name = "epoll",
	.open = epoll_open,
	.close = epoll_close,
	.watch = epoll_watch,
	.unwatch = epoll_unwatch,
	.wait = epoll_wait_for,
};
