/* SPDX-License-Identifier: MIT */
/*
 * A stream is a ring of nodes with one producer and one consumer, its worker. Free places follow
 * from `tail` (the producer's) and the timeline's `completed` (the worker's).
 *
 * Sleeping needs the four operations that ipc/ring.h explains. Here, once each way:
 *
 *	worker:   store need_wakeup, load tail, wait     producer: exchange tail, load need_wakeup
 *	waiter:   add to waiters, load completed, wait   worker: exchange completed, load waiters
 *
 * all sequentially consistent, so that one of the two always sees the other.
 */
#include "kernels/cpu/internal.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void stream_futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void stream_futex_wake(_Atomic uint32_t *word, int n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void stream_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static uint64_t stream_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Spin until *word is at least `point`, for spin_us at most. True if it got there. */
static bool stream_spin(const _Atomic uint64_t *word, uint64_t point, uint32_t spin_us)
{
	uint64_t end = 0;

	for (uint32_t n = 0;; n++) {
		if (atomic_load_explicit(word, memory_order_acquire) >= point)
			return true;
		if (spin_us == 0)
			return false;
		if (spin_us != UINT32_MAX && n % 64 == 0) {
			uint64_t now = stream_now_us();

			if (end == 0)
				end = now + spin_us;
			else if (now >= end)
				return false;
		}
		stream_relax();
	}
}

void timeline_wait(struct cpu_device *device, struct timeline *timeline, uint64_t point)
{
	uint32_t n;

	if (stream_spin(&timeline->completed, point, device->spin_us))
		return;
	atomic_fetch_add(&timeline->waiters, 1);
	for (;;) {
		uint32_t bell = atomic_load(&timeline->bell);

		if (atomic_load(&timeline->completed) >= point)
			break;
		stream_futex_wait(&timeline->bell, bell);
	}
	n = atomic_fetch_sub(&timeline->waiters, 1);
	assert(n > 0);
}

static void stream_advance(struct timeline *timeline, uint64_t completed)
{
	const uint64_t before = atomic_exchange(&timeline->completed, completed);

	assert(before + 1 == completed);
	if (atomic_load(&timeline->waiters) == 0)
		return;
	atomic_fetch_add(&timeline->bell, 1);
	stream_futex_wake(&timeline->bell, INT_MAX);
}

/* ---- the producer ---- */

static bool stream_full(struct stream *stream, uint64_t tail)
{
	const uint64_t completed =
		atomic_load_explicit(&stream->timeline->completed, memory_order_acquire);

	assert(completed <= tail && tail - completed <= CPU_QUEUE_NODES);
	return tail - completed >= CPU_QUEUE_NODES;
}

struct cpu_node *stream_next(struct stream *stream, enum cpu_node_kind kind)
{
	const uint64_t tail = atomic_load_explicit(&stream->tail, memory_order_relaxed);
	struct cpu_node *node = &stream->nodes[tail % CPU_QUEUE_NODES];

	assert(!capture_is_on(&stream->capture) || kind == CPU_NODE_STOP);
	for (uint32_t n = 0; stream_full(stream, tail); n++) {
		if (n < 1000)
			stream_relax();
		else
			sched_yield();
	}
	node->kind = kind;
	return node;
}

void stream_push(struct stream *stream)
{
	const uint64_t tail = atomic_load_explicit(&stream->tail, memory_order_relaxed);

	atomic_exchange(&stream->tail, tail + 1);
	if (atomic_load(&stream->need_wakeup) != 0 && atomic_exchange(&stream->need_wakeup, 0) != 0)
		stream_futex_wake(&stream->need_wakeup, 1);
}

/* ---- the worker ---- */

static void stream_wait_node(struct stream *stream, uint64_t done)
{
	if (stream_spin(&stream->tail, done + 1, stream->device->spin_us))
		return;
	for (;;) {
		atomic_store(&stream->need_wakeup, 1);
		if (atomic_load(&stream->tail) != done)
			break;
		stream_futex_wait(&stream->need_wakeup, 1);
	}
	atomic_store_explicit(&stream->need_wakeup, 0, memory_order_relaxed);
}

static void stream_run_node(struct cpu_device *device, const struct cpu_node *node)
{
	struct timeline *timeline;
	uint64_t point;

	switch (node->kind) {
	case CPU_NODE_OP:
		cpu_node_run(device, node);
		break;
	case CPU_NODE_GRAPH:
		graph_run(node->exec);
		break;
	case CPU_NODE_WAIT:
		timeline = event_timeline(device, node->mark, &point);
		timeline_wait(device, timeline, point);
		break;
	case CPU_NODE_HOST_FUNC:
		node->host_func.fn(node->host_func.arg);
		break;
	case CPU_NODE_STOP:
		break;
	}
}

static void *stream_main(void *arg)
{
	struct stream *stream = arg;
	struct timeline *timeline = stream->timeline;
	uint64_t done = atomic_load_explicit(&timeline->completed, memory_order_relaxed);
	bool stop = false;

	pthread_setname_np(pthread_self(), "mimeo-lane");
	while (!stop) {
		const struct cpu_node *node = &stream->nodes[done % CPU_QUEUE_NODES];

		stream_wait_node(stream, done);
		stop = node->kind == CPU_NODE_STOP;
		stream_run_node(stream->device, node);
		stream_advance(timeline, ++done);
	}
	return NULL;
}

/* ---- life ---- */

static int stream_take_timeline(struct cpu_device *device, struct stream *stream)
{
	uint32_t i = 0;

	pthread_mutex_lock(&device->lock);
	while (i < CPU_STREAMS_MAX && device->timeline_used[i])
		i++;
	if (i < CPU_STREAMS_MAX)
		device->timeline_used[i] = true;
	pthread_mutex_unlock(&device->lock);
	if (i == CPU_STREAMS_MAX)
		return -ENOSPC;
	cpu_object_made(device);
	stream->index = i;
	stream->timeline = &device->timelines[i];
	atomic_init(&stream->tail, atomic_load(&stream->timeline->completed));
	return 0;
}

static void stream_give_timeline(struct cpu_device *device, struct stream *stream)
{
	pthread_mutex_lock(&device->lock);
	assert(stream->index < CPU_STREAMS_MAX && device->timeline_used[stream->index]);
	device->timeline_used[stream->index] = false;
	pthread_mutex_unlock(&device->lock);
	cpu_object_freed(device);
}

/* Signals are for the program's own threads. */
static int stream_start(struct stream *stream)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&stream->thread, NULL, stream_main, stream);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

static struct stream *stream_storage(struct cpu_device *device)
{
	struct stream *stream = aligned_alloc(alignof(struct stream), sizeof(*stream));

	if (stream == NULL)
		return NULL;
	memset(stream, 0, sizeof(*stream));
	stream->device = device;
	stream->nodes =
		aligned_alloc(alignof(struct cpu_node), CPU_QUEUE_NODES * sizeof(*stream->nodes));
	if (stream->nodes == NULL) {
		free(stream);
		return NULL;
	}
	/* Touched now, not on the first round of launches. */
	memset(stream->nodes, 0, CPU_QUEUE_NODES * sizeof(*stream->nodes));
	return stream;
}

static void stream_storage_free(struct stream *stream)
{
	struct workspace *workspace;

	while ((workspace = stream->workspaces) != NULL) {
		stream->workspaces = workspace->next;
		free(workspace->memory);
		free(workspace);
	}
	free(stream->nodes);
	free(stream);
}

int cpu_stream_new(struct device *base, struct stream **ret)
{
	struct cpu_device *device = cpu_device(base);
	struct stream *stream;
	int rc = cpu_status(device);

	if (rc)
		return rc;
	stream = stream_storage(device);
	if (stream == NULL)
		return -ENOMEM;
	rc = stream_take_timeline(device, stream);
	if (rc)
		goto no_timeline;
	rc = stream_start(stream);
	if (rc)
		goto no_worker;
	*ret = stream;
	return 0;

no_worker:
	stream_give_timeline(device, stream);
no_timeline:
	stream_storage_free(stream);
	return rc;
}

int cpu_stream_new_dry(struct device *base, struct stream **ret)
{
	struct stream *stream;
	int rc = cpu_stream_new(base, &stream);

	if (rc)
		return rc;
	stream->dry = true;
	*ret = stream;
	return 0;
}

void cpu_stream_free(struct stream *stream)
{
	if (stream == NULL)
		return;
	if (capture_is_on(&stream->capture))
		cpu_capture_drop(stream);
	stream_next(stream, CPU_NODE_STOP);
	stream_push(stream);
	pthread_join(stream->thread, NULL);
	assert(atomic_load(&stream->timeline->completed) == atomic_load(&stream->tail));
	stream_give_timeline(stream->device, stream);
	stream_storage_free(stream);
}

/* ---- calls ---- */

/* Asking a stream how far it is: not while this thread captures, nor of a stream that captures. */
static int cpu_stream_ask(struct stream *stream)
{
	int rc = cpu_enter(stream->device);

	return rc ? rc : capture_refuse(&stream->capture, DEVICE_E_CAPTURE_UNSUPPORTED);
}

int cpu_stream_sync(struct stream *stream)
{
	int rc = cpu_stream_ask(stream);

	/* A lost device's streams run empty: after a sync nothing of theirs is in use. */
	if (rc && !device_is_lost(rc))
		return rc;
	timeline_wait(stream->device, stream->timeline, atomic_load(&stream->tail));
	return cpu_status(stream->device);
}

int cpu_stream_query(struct stream *stream)
{
	int rc = cpu_stream_ask(stream);

	if (rc)
		return rc;
	if (atomic_load(&stream->timeline->completed) < atomic_load(&stream->tail))
		return DEVICE_E_NOT_READY;
	return cpu_status(stream->device);
}

int cpu_stream_host_func(struct stream *stream, void (*fn)(void *arg), void *arg)
{
	struct cpu_node *node;
	int rc = cpu_stream_enter(stream);

	if (rc)
		return rc;
	rc = capture_refuse(&stream->capture, DEVICE_E_CAPTURE_UNSUPPORTED);
	if (rc)
		return rc;
	node = stream_next(stream, CPU_NODE_HOST_FUNC);
	node->host_func.fn = fn;
	node->host_func.arg = arg;
	stream_push(stream);
	return 0;
}
