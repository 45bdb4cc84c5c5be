/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_CAPTURE_H
#define MIMEO_DAEMON_GRAPH_CAPTURE_H

/*
 * One descriptor's graph, in three moves, while no other work is on the device:
 *
 *	WARM UP      write inputs and metadata for a dummy batch of empty rows; run it eagerly
 *	RECORD       write them again, for a state of its own; capture
 *	INSTANTIATE  instantiate and upload
 *
 * Recording does not execute: outputs are undefined until the first replay.
 */

#include <stdatomic.h>

#include "daemon/graph/breakable.h"

/* Only the engine's thread changes it. */
enum graph_state {
	GRAPH_EMPTY,    /* never captured, or dropped */
	GRAPH_WANTED,   /* to be recorded when the lane is free */
	GRAPH_BUILDING, /* being recorded and instantiated */
	GRAPH_READY,
	GRAPH_DROPPING, /* to be destroyed, or being destroyed */
	GRAPH_FAILED,   /* could not be captured; no step requests it again */
};
const char *graph_state_name(enum graph_state state); /* "ready" */

struct graph_entry {
	struct descriptor descriptor;
	struct forward warm_up, capture; /* kept for inspection */
	struct graph *graph;             /* FULL: the recording, kept to name its nodes */
	struct graph_exec *exec;         /* FULL: NULL if it is not instantiated */
	struct breakable pieces;         /* PIECEWISE */
	/* The engine thread's; last_launch and what follows are used by engine/lane/late.c. */
	uint64_t lane_ns;     /* time of its last replays on the lane; 0: there was none */
	uint64_t results_ns;     /* of that until the tokens were available, ahead of a draft's part */
	uint64_t last_launch; /* the last launched step that replays it */
	uint64_t used_ns;     /* when that step was launched, or the graph captured */
	uint64_t retry_ns, pause_ns; /* steps do not request it before; the pause until then */
	uint32_t owner;              /* index of its model */
	int command;        /* requested while it is being built or destroyed */
	bool ordered;    /* an operator requested the capture */
	bool remains;    /* what is to be destroyed remains of a failed capture ... */
	bool failed;     /* ... permanently */
	struct graph_entry *prev, *next; /* among those wanted, or being dropped */
	/* Any thread reads; the thread that may change the state writes. */
	_Atomic int state; /* enum graph_state */
	_Atomic uint32_t n_nodes, n_segments, n_captures, n_drops;
	_Atomic uint64_t bytes, capture_ns; /* recording to upload; while serving, the warm-up too */
	_Atomic uint64_t n_replays, n_shared_replays, n_padded_rows;
};

static inline enum graph_state graph_entry_state(const struct graph_entry *entry)
{
	return (enum graph_state)atomic_load_explicit(&entry->state, memory_order_acquire);
}

static inline void graph_entry_set_state(struct graph_entry *entry, enum graph_state state)
{
	atomic_store_explicit(&entry->state, (int)state, memory_order_release);
}



/* Run the descriptor's dummy batch eagerly with a state of its own, to its end. Before lock
 * this allocates what the shape needs. */
int capture_warm_up(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream);
/* Record into an entry that has no graph; nothing may be in flight. */
int capture_record(struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream);
/* Instantiate what was recorded, upload it, and wait for the upload. From any thread. */
int capture_instantiate(struct graph_entry *entry, struct device *device, struct stream *stream);
/* The moves that are still to do; the state becomes READY, or EMPTY on failure. */
int capture_now(struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream);
/* Destroy graph and states. No launch may be pending. From any thread. */
void capture_drop(struct graph_entry *entry, struct device *device);

#endif
