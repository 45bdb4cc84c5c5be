/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_INTERNAL_H
#define MIMEO_KERNELS_CPU_INTERNAL_H

/*
 * The cpu device's files and what they share.
 *
 *	device   the table, op registry, the refusals of capture and lock, faults on demand
 *	launch   ops onto streams: first use, workspaces; copies and fills
 *	memory   allocations, reservations, export and import
 *	stream   a worker thread behind a ring of nodes, and waiting for it
 *	event    a point on a stream's timeline; a shared one counts in a page that others map
 *	graph    recording and replay
 *	machine  what memory the machine has
 *
 * TIMELINES. A stream counts the nodes put on it (`tail`) and its worker counts those it has done
 * (`completed`), so that a point in a stream is one number, an event is a (timeline, number) pair
 * in one word, and recording an event costs no node. Timelines belong to the device and only move
 * forward, also when a later stream takes one over: an event may outlive its stream, and is done.
 *
 * A stream is fed by one thread at a time; handing it to another thread needs ordering of the
 * caller's own. stream_query, stream_sync and the event calls may come from any thread.
 */

#include <assert.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "kernels/captures.h"
#include "kernels/forced.h"
#include "kernels/loaded.h"
#include "kernels/lock.h"
#include "kernels/workspace.h"
#include "kernels/cpu/cpu.h"

#define CPU_STREAMS_MAX 256u
#define CPU_QUEUE_NODES 1024u /* per stream; a power of two. Full: the producer waits */

enum cpu_node_kind {
	CPU_NODE_OP,
	CPU_NODE_GRAPH,
	CPU_NODE_WAIT, /* for another stream's timeline */
	CPU_NODE_HOST_FUNC,
	CPU_NODE_STOP,
};

struct cpu_node {
	alignas(64) enum cpu_node_kind kind;
	const struct cpu_op *op;
	void *workspace;
	union {
		alignas(16) uint8_t args[CPU_ARGS_MAX];
		struct graph_exec *exec;
		uint64_t mark; /* as in struct event */
		struct {
			void (*fn)(void *arg);
			void *arg;
		} host_func;
	};
};

struct graph {
	struct cpu_device *device;
	struct cpu_node *nodes;
	uint32_t n_nodes, capacity;
};

struct graph_exec {
	struct cpu_device *device;
	struct cpu_node *nodes;
	uint32_t n_nodes;
};

/* An eventcount: the worker wakes those who announced themselves in `waiters`. */
struct timeline {
	alignas(64) _Atomic uint64_t completed;
	alignas(64) _Atomic uint32_t waiters;
	_Atomic uint32_t bell;
};

struct stream {
	struct cpu_device *device;
	struct timeline *timeline;
	struct cpu_node *nodes; /* [CPU_QUEUE_NODES] */
	pthread_t thread;
	uint32_t index;               /* of the timeline */
	_Atomic(struct workspace *) workspaces;
	bool dry; /* nothing runs on it */
	struct capture capture;
	struct graph *capture_graph;
	alignas(64) _Atomic uint64_t tail;
	alignas(64) _Atomic uint32_t need_wakeup;
};

/*
 * mark: 0, never recorded; bits 63 ... 48 the timeline, bits 47 ... 0 the point on it; or, with
 * EVENT_CAPTURED as the timeline, the number of the capture that it was recorded in.
 */
#define EVENT_CAPTURED 0xffffu
struct event {
	struct cpu_device *device;
	_Atomic uint64_t mark;
	struct event_page *page; /* of a shared one: written, never read */
	uint32_t n_recorded;
	uint32_t n_completed; /* the stream's worker's */
};

struct allocation; /* memory.c */

struct cpu_device {
	struct device base;
	uint32_t spin_us;
	bool poison_mapped;
	struct lock locked;
	_Atomic int lost; /* 0 or the sticky condition */
	_Atomic uint32_t n_objects;
	struct captures captures;
	struct loaded loaded;
	struct forced forced; /* MIMEO_CPU_FAULT, MIMEO_CPU_HOLD */
	char fault_call[80];  /* written once, before `lost` */
	pthread_mutex_t lock; /* of what follows */
	struct allocation *allocations;
	bool timeline_used[CPU_STREAMS_MAX];
	struct timeline timelines[CPU_STREAMS_MAX];
};

static inline struct cpu_device *cpu_device(struct device *device)
{
	return (struct cpu_device *)device;
}

/* The functions of the device's table, with the types that struct device_ops gives them. */
#define CPU_DECLARE(name) __typeof__(*((struct device_ops *)0)->name) cpu_##name;
DEVICE_OPS(CPU_DECLARE)
#undef CPU_DECLARE

/* ---- device.c ---- */

/* 0 or the sticky condition. */
static inline int cpu_status(struct cpu_device *device)
{
	return atomic_load_explicit(&device->lost, memory_order_acquire);
}

/* For what a thread may not do while it captures: spoils its captures and returns `condition`. */
int cpu_refuse_capture(struct cpu_device *device, int condition);
/* The same, after the sticky condition: the first line of most calls. */
int cpu_enter(struct cpu_device *device);
/* cpu_enter for what is also refused after lock. */
int cpu_enter_growth(struct cpu_device *device);
/* An object of the device (a stream, an event, a graph, an executable) was made or freed. */
static inline void cpu_object_made(struct cpu_device *device)
{
	atomic_fetch_add_explicit(&device->n_objects, 1, memory_order_relaxed);
}

static inline void cpu_object_freed(struct cpu_device *device)
{
	uint32_t n = atomic_fetch_sub_explicit(&device->n_objects, 1, memory_order_relaxed);

	assert(n > 0);
}

/* Run one op unless the device is lost, or is to be lost by it. */
void cpu_node_run(struct cpu_device *device, const struct cpu_node *node);

/* ---- launch.c ---- */

/* The device's own ops count as loaded from the start. */
void cpu_load_own(struct cpu_device *device);

/* ---- machine.c ---- */

/* The memory of the machine, or of the cgroup if that is less, and how much of it is available. */
void machine_memory(uint64_t *ret_total, uint64_t *ret_available);

/* ---- memory.c ---- */

/* A memfd of that size with these seals, or -errno. */
int cpu_memfd(const char *name, size_t bytes, int seals);
/* The handle of memory or an event that an fd names. */
void cpu_handle_fill(struct device_handle *handle, int fd, uint64_t size);

/* ---- stream.c ---- */

/* The node that stream_push publishes; waits while the queue is full. */
struct cpu_node *stream_next(struct stream *stream, enum cpu_node_kind kind);
void stream_push(struct stream *stream);
/* Block until the timeline has reached `point`. */
void timeline_wait(struct cpu_device *device, struct timeline *timeline, uint64_t point);
/* The first check of a call that puts work on the stream. */
static inline int cpu_stream_enter(struct stream *stream)
{
	int rc = cpu_status(stream->device);

	if (rc)
		return rc;
	return capture_is_spoilt(&stream->capture) ? DEVICE_E_CAPTURE_INVALIDATED : 0;
}

/* ---- event.c ---- */

/* The timeline and point that a mark (not of a capture) names. */
struct timeline *event_timeline(struct cpu_device *device, uint64_t mark, uint64_t *ret_point);

/* ---- graph.c ---- */

/* The next node of the stream's recording, or NULL: no memory, and the capture is spoilt. */
struct cpu_node *graph_record(struct stream *stream);
void graph_run(struct graph_exec *exec);
/* End the stream's capture and drop its recording. */
void cpu_capture_drop(struct stream *stream);

#endif
