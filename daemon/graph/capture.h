/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_CAPTURE_H
#define MIMEO_DAEMON_GRAPH_CAPTURE_H

/*
 * One descriptor's graph, in three moves: WARM UP (build for a dummy batch of empty rows, an eager run,
 * the lane synchronised, which alone has work then), RECORD (build again with a state of its own, capture) and INSTANTIATE
 * (instantiate, upload). Recording does not execute: outputs are undefined until the first replay.
 */

#include <stdatomic.h>

#include "daemon/graph/breakable.h"

/* Moved on by the engine alone. */
enum graph_state {
	GRAPH_EMPTY,    /* never captured, or dropped */
	GRAPH_WANTED,   /* to be recorded when the lane can be spared */
	GRAPH_BUILDING, /* being recorded and instantiated */
	GRAPH_READY,
	GRAPH_DROPPING, /* to be destroyed, or being so */
	GRAPH_FAILED,   /* could not be captured, and no step asks again */
};
const char *graph_state_name(enum graph_state state); /* "ready" */

struct graph_entry {
	struct descriptor descriptor;
	struct forward warm_up, capture; /* their states, kept for inspection */
	struct graph *graph;             /* FULL: the recording, kept to name its nodes */
	struct graph_exec *exec;         /* FULL: NULL if it is not instantiated */
	struct breakable pieces;         /* PIECEWISE */
	/* The engine's alone, the latter ones those of engine/lane/late.c. */
	uint64_t lane_ns;     /* what the lane took for its last replays; 0: there was none */
	uint64_t told_ns;     /* of that up to where their tokens were there, ahead of a draft's part */
	uint64_t last_launch; /* the last launched step that replays it */
	uint64_t used_ns;     /* when that was launched, or it was captured */
	uint64_t retry_ns, pause_ns; /* no step has it captured before; the pause that led to it */
	uint32_t owner;              /* index of its model */
	int wish;        /* what is asked for while it is being built or destroyed */
	bool ordered;    /* an operator asked for the capture */
	bool remains;    /* what is to be destroyed is a capture's that failed ... */
	bool failed;     /* ... for good */
	struct graph_entry *prev, *next; /* among those wanted, or being dropped */
	/* Read by anybody; written by whoever may move the state on. */
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

/* Fill the next pinned slot with empty rows that make the descriptor's batch: its rows, or as many as
 * so many tokens can have, of its query length, or the tokens spread evenly. `lens` is room for two
 * numbers a row of the widest batch, and lives as long as *ret. -EBUSY: steps are in flight. */
int capture_dummy_batch(const struct forward_context *context, const struct descriptor *descriptor,
	struct inputs_slot **ret_slot, struct attention_batch *ret, uint32_t *lens);

/* An eager run of the descriptor's dummy batch with a state of its own, to its end. Before device_lock
 * it makes room for whatever this shape needs. */
int capture_warm_up(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream);
/* Record; nothing may be in flight. */
int capture_record(struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream);
/* Instantiate what was recorded, upload it, and wait for that. From any thread. */
int capture_instantiate(struct graph_entry *entry, struct device *device, struct stream *stream);
/* What there is still to do of the three; READY, or EMPTY. */
int capture_now(struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream);
/* Destroy graph and states. No launch of it may be pending. From any thread. */
void capture_drop(struct graph_entry *entry, struct device *device);

#endif
