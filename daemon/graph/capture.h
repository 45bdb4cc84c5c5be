/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_CAPTURE_H
#define MIMEO_DAEMON_GRAPH_CAPTURE_H

/*
 * Capturing one descriptor: build and an eager warm-up run on a dummy batch of empty rows, the
 * device synchronised, build again with a state of its own, capture, instantiate, upload.
 */

#include <stdatomic.h>

#include "daemon/graph/forward.h"

struct graph_entry {
	struct descriptor descriptor;
	struct forward warm_up, capture; /* their states, kept for inspection */
	struct graph *graph;             /* the recording, kept to name its nodes */
	struct graph_exec *exec;         /* NULL: not captured */
	struct graph_info info;
	double seconds; /* warm-up to upload */
	uint64_t lane_ns; /* what its last replays took; 0: there was none; its replayer's alone */
	/* Written by the engine, read by anybody. */
	_Atomic uint32_t n_captures;
	_Atomic uint64_t n_replays, n_shared_replays, n_padded_rows;
};

/* Run every shape that can grow a workspace, eager, before device_lock: the descriptor's own. */
int capture_warm_up(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream);
/* After device_lock, or before; entry->descriptor says what. */
int capture_record(struct graph_entry *entry, const struct forward_context *context,
	struct stream *stream);
void capture_drop(struct graph_entry *entry, struct device *device);

/* Fill the next pinned slot with n_rows empty rows of query_len tokens each, and queue prepare. */
int capture_dummy_batch(const struct forward_context *context, struct stream *stream,
	uint32_t n_rows, uint32_t query_len, struct attention_batch *ret, uint32_t *lens_storage);

#endif
