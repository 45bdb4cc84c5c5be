/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_LOOP_BACKEND_H
#define MIMEO_DAEMON_LOOP_BACKEND_H

/*
 * The interface between the loop and its two backends. loop.c keeps sources and timers, decides how
 * long to wait and when memory is freed; a backend waits and passes events to loop_dispatch.
 *
 * A removed source stays in its list until nothing refers to it any more: no callback runs (the batch
 * being dispatched may hold its address) and the kernel owes no completion (`in_kernel`). A late
 * completion therefore finds the source, sees `removed` and is dropped.
 */

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop/bells.h"
#include "daemon/loop/loop.h"

#define LOOP_WAIT_FOREVER UINT64_MAX

struct loop_source {
	int fd; /* -1: a timer */
	uint32_t events;
	uint64_t period_ns, deadline_ns; /* a timer's; CLOCK_MONOTONIC */
	loop_callback callback;          /* NULL: the loop's own wake-up */
	void *userdata;
	bool removed;
	bool in_kernel; /* a completion that names this source is still to come */
	struct loop_source *prev, *next;         /* loop->polls, loop->timers */
	struct loop_source *arm_prev, *arm_next; /* io_uring: polls to arm by the next wait */
	bool to_arm;
	uint32_t n_errors; /* io_uring: polls in a row that ended with an error */
};

/* All but open run on the loop's thread (see loop.h). */
struct loop_backend {
	const char *name;
	/* 0, or -errno with the reason in loop->reason and nothing left open. */
	int (*open)(struct loop *loop);
	void (*close)(struct loop *loop);
	int (*watch)(struct loop *loop, struct loop_source *source);
	/* No event of the source is dispatched afterwards; may leave in_kernel set. */
	void (*unwatch)(struct loop *loop, struct loop_source *source);
	/* Wait up to timeout_ns (0: only look, LOOP_WAIT_FOREVER), then dispatch what is ready. 0,
	 * also when interrupted or out of time, or -errno. */
	int (*wait)(struct loop *loop, uint64_t timeout_ns);
};

extern const struct loop_backend loop_backend_uring;
extern const struct loop_backend loop_backend_epoll;

struct loop {
	const struct loop_backend *backend;
	void *state; /* the backend's */
	char reason[128];
	int wake_fd;
	struct loop_source *wake;
	struct loop_source *polls, *timers;
	uint32_t n_removed; /* in the two lists */
	bool dispatching;
	int n_callbacks; /* of the current turn */
	struct bells bells;
};

static inline void loop_dispatch(struct loop *loop, struct loop_source *source, uint32_t events)
{
	assert(loop->dispatching);
	if (source->removed || !source->callback)
		return;
	loop->n_callbacks++;
	source->callback(source->userdata, source, events);
}

#endif
