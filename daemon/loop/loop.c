/* SPDX-License-Identifier: MIT */
#include "daemon/loop/backend.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utlist.h>

#include "ipc/cleanup.h"
#include "ipc/clock.h"

#define NS_PER_MS UINT64_C(1000000)

static int loop_open_backend(struct loop *loop, const char *name)
{
	if (strcmp(name, "epoll") == 0) {
		snprintf(loop->reason, sizeof(loop->reason), "epoll was asked for");
	} else if (loop_backend_uring.open(loop) == 0) {
		loop->backend = &loop_backend_uring;
		return 0;
	} else if (strcmp(name, "auto") != 0) {
		return -ENOTSUP;
	}
	int rc = loop_backend_epoll.open(loop);
	if (rc == 0)
		loop->backend = &loop_backend_epoll;
	return rc;
}

DEFINE_CLEANUP(loop, struct loop, loop_free)

int loop_new(struct loop **ret, const char *name)
{
	if (!name || !*name)
		name = getenv("MIMEO_LOOP");
	if (!name || !*name)
		name = "auto";
	if (strcmp(name, "auto") != 0 && strcmp(name, "io_uring") != 0 &&
		strcmp(name, "epoll") != 0)
		return -EINVAL;

	CLEANUP(cleanup_loop) struct loop *loop = calloc(1, sizeof(*loop));
	if (!loop)
		return -ENOMEM;
	loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	loop->bells.empty_fd = -1;
	if (loop->wake_fd < 0)
		return -errno;
	int rc = bells_init(&loop->bells);
	if (rc < 0)
		return rc;
	rc = loop_open_backend(loop, name);
	if (rc < 0)
		return rc;
	rc = loop_add(loop, loop->wake_fd, EPOLLIN, NULL, NULL, &loop->wake);
	if (rc < 0)
		return rc;
	*ret = STEAL(loop);
	return 0;
}

void loop_free(struct loop *loop)
{
	struct loop_source *source, *next;

	if (!loop)
		return;
	assert(!loop->dispatching);
	if (loop->backend)
		loop->backend->close(loop);
	DL_FOREACH_SAFE(loop->polls, source, next)
		free(source);
	DL_FOREACH_SAFE(loop->timers, source, next)
		free(source);
	bells_deinit(&loop->bells);
	cleanup_close(&loop->wake_fd);
	free(loop);
}

const char *loop_name(const struct loop *loop)
{
	return loop->backend->name;
}

const char *loop_fallback_reason(const struct loop *loop)
{
	return loop->reason;
}

int loop_add(struct loop *loop, int fd, uint32_t events, loop_callback callback, void *userdata,
	struct loop_source **ret)
{
	if (fcntl(fd, F_GETFD) < 0)
		return -errno;
	CLEANUP(cleanup_free) struct loop_source *source = calloc(1, sizeof(*source));
	if (!source)
		return -ENOMEM;
	source->fd = fd;
	source->events = events;
	source->callback = callback;
	source->userdata = userdata;
	int rc = loop->backend->watch(loop, source);
	if (rc < 0)
		return rc;
	DL_APPEND(loop->polls, source);
	*ret = STEAL(source);
	return 0;
}

int loop_add_timer(struct loop *loop, uint64_t period_ms, loop_callback callback, void *userdata,
	struct loop_source **ret)
{
	struct loop_source *source;
	uint64_t period_ns, deadline_ns;

	if (period_ms == 0 || __builtin_mul_overflow(period_ms, NS_PER_MS, &period_ns) ||
		__builtin_add_overflow(clock_ns(), period_ns, &deadline_ns))
		return -EINVAL;
	source = calloc(1, sizeof(*source));
	if (!source)
		return -ENOMEM;
	source->fd = -1;
	source->period_ns = period_ns;
	source->deadline_ns = deadline_ns;
	source->callback = callback;
	source->userdata = userdata;
	DL_APPEND(loop->timers, source);
	*ret = source;
	return 0;
}

static void loop_free_removed(struct loop *loop, struct loop_source **list)
{
	struct loop_source *source, *next;

	DL_FOREACH_SAFE(*list, source, next) {
		if (source->removed && !source->in_kernel) {
			assert(loop->n_removed > 0);
			DL_DELETE(*list, source);
			free(source);
			loop->n_removed--;
		}
	}
}

void loop_remove(struct loop *loop, struct loop_source *source)
{
	if (!source || source->removed)
		return;
	source->removed = true;
	if (source->fd >= 0)
		loop->backend->unwatch(loop, source);
	if (loop->dispatching || source->in_kernel) {
		loop->n_removed++;
		return;
	}
	assert(source->fd >= 0 ? loop->polls != NULL : loop->timers != NULL);
	if (source->fd >= 0)
		DL_DELETE(loop->polls, source);
	else
		DL_DELETE(loop->timers, source);
	free(source);
}

/* Timers are kept here and not in the kernel: there are few, and both backends tick alike. */
static uint64_t loop_wait_ns(const struct loop *loop, uint64_t wait)
{
	const struct loop_source *timer;
	uint64_t now;

	if (!loop->timers || wait == 0)
		return wait;
	now = clock_ns();
	DL_FOREACH(loop->timers, timer) {
		uint64_t left = timer->deadline_ns > now ? timer->deadline_ns - now : 0;

		if (left < wait)
			wait = left;
	}
	return wait;
}

static void loop_run_timers(struct loop *loop)
{
	struct loop_source *timer;
	uint64_t now;

	if (!loop->timers)
		return;
	now = clock_ns();
	DL_FOREACH(loop->timers, timer) {
		if (timer->deadline_ns > now)
			continue;
		assert(timer->period_ns > 0);
		timer->deadline_ns += timer->period_ns *
				      ((now - timer->deadline_ns) / timer->period_ns + 1);
		loop_dispatch(loop, timer, 0);
	}
}

int loop_run_once(struct loop *loop, int timeout_ms)
{
	return loop_run_for(
		loop, timeout_ms < 0 ? LOOP_WAIT_FOREVER : (uint64_t)timeout_ms * NS_PER_MS);
}

int loop_run_for(struct loop *loop, uint64_t timeout_ns)
{
	if (loop->dispatching)
		return -EBUSY;
	assert(loop->backend);
	loop->dispatching = true;
	loop->n_callbacks = 0;
	int rc = loop->backend->wait(loop, loop_wait_ns(loop, timeout_ns));
	loop_run_timers(loop);
	loop->dispatching = false;
	if (loop->n_removed > 0) {
		loop_free_removed(loop, &loop->polls);
		loop_free_removed(loop, &loop->timers);
	}
	return rc < 0 ? rc : loop->n_callbacks;
}

void loop_wake(struct loop *loop)
{
	const uint64_t one = 1;
	int saved_errno = errno;

	/* The only failure is a full counter, after 2^64 - 2 wake-ups. */
	if (write(loop->wake_fd, &one, sizeof(one)) < 0)
		errno = saved_errno;
}

void loop_ring(struct loop *loop, int eventfd)
{
	bells_ring(&loop->bells, eventfd);
}

void loop_ring_flush(struct loop *loop)
{
	bells_flush(&loop->bells);
}
