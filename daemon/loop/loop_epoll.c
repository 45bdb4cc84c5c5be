/* SPDX-License-Identifier: MIT */

/* The epoll backend: sources are edge-triggered entries of one epoll fd. */
#include "daemon/loop/backend.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

enum { WAIT_EVENTS = 256 };

static int loop_epoll_fd(const struct loop *loop)
{
	return (int)(intptr_t)loop->state;
}

static int loop_epoll_open(struct loop *loop)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	if (fd < 0)
		return -errno;
	loop->state = (void *)(intptr_t)fd;
	return 0;
}

static void loop_epoll_close(struct loop *loop)
{
	close(loop_epoll_fd(loop));
}

static int loop_epoll_watch(struct loop *loop, struct loop_source *source)
{
	struct epoll_event event = { .events = source->events | EPOLLET, .data.ptr = source };

	assert(!source->removed);
	return epoll_ctl(loop_epoll_fd(loop), EPOLL_CTL_ADD, source->fd, &event) < 0 ? -errno : 0;
}

static void loop_epoll_unwatch(struct loop *loop, struct loop_source *source)
{
	epoll_ctl(loop_epoll_fd(loop), EPOLL_CTL_DEL, source->fd, NULL);
}

/* epoll_wait counts milliseconds, and epoll_pwait2 is not everywhere. Positive: something is there. */
static int loop_epoll_wait_finely(int fd, uint64_t timeout_ns)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	const struct timespec timeout = {
		.tv_sec = (time_t)(timeout_ns / NS_PER_S),
		.tv_nsec = (long)(timeout_ns % NS_PER_S),
	};
	int n = ppoll(&poll_fd, 1, &timeout, NULL);

	return n >= 0 ? n : errno == EINTR ? 0 : -errno;
}

static int loop_epoll_wait(struct loop *loop, uint64_t timeout_ns)
{
	struct epoll_event events[WAIT_EVENTS];
	int timeout_ms = -1, n;

	if (timeout_ns != LOOP_WAIT_FOREVER && timeout_ns % NS_PER_MS != 0) {
		n = loop_epoll_wait_finely(loop_epoll_fd(loop), timeout_ns);
		if (n <= 0)
			return n;
		timeout_ms = 0;
	} else if (timeout_ns != LOOP_WAIT_FOREVER) {
		uint64_t ms = timeout_ns / NS_PER_MS;

		timeout_ms = ms > INT32_MAX ? INT32_MAX : (int)ms;
	}
	n = epoll_wait(loop_epoll_fd(loop), events, WAIT_EVENTS, timeout_ms);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n; i++)
		loop_dispatch(loop, events[i].data.ptr, events[i].events);
	return 0;
}

const struct loop_backend loop_backend_epoll = {
	.name = "epoll",
	.open = loop_epoll_open,
	.close = loop_epoll_close,
	.watch = loop_epoll_watch,
	.unwatch = loop_epoll_unwatch,
	.wait = loop_epoll_wait,
};
