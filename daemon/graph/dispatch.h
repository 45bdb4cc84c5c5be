/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_DISPATCH_H
#define MIMEO_DAEMON_GRAPH_DISPATCH_H

/*
 * A model's graphs, and which one a batch takes. One place decides; the answer is a captured graph
 * with its padded numbers, or eager with the reason, unpadded.
 */

#include "daemon/graph/capture.h"

/* EMBEDDINGS: a row brings embeddings of its own, for which graphs have no place; the engine's. */
enum eager_reason { EAGER_NO, EAGER_MODE, EAGER_MIXED, EAGER_TOO_WIDE, EAGER_EMBEDDINGS };

struct graph_set {
	enum graph_mode mode; /* resolved */
	uint32_t n;
	struct graph_entry *entries;    /* [n] ascending */
	struct descriptor *descriptors; /* [n] the same keys */
	bool ready;                     /* all captured */
	double seconds;                 /* of capture, all */
	uint64_t bytes;
};

/* Descriptors of the resolved mode; captures nothing. */
int graph_set_init(struct graph_set *set, enum graph_mode resolved, const struct ladder *ladder,
	uint32_t decode_query, uint32_t max_requests);
void graph_set_deinit(struct graph_set *set, struct device *device);

/* Warm every shape up: what can still grow grows here. Before device_lock. */
int graph_set_warm_up(struct graph_set *set, const struct forward_context *context,
	struct stream *stream, void (*progress)(void *userdata, uint32_t done, uint32_t total),
	void *userdata);
/* Capture all, sizes descending, so that the later ones fit in what the earlier ones hold. */
int graph_set_capture(struct graph_set *set, const struct forward_context *context,
	struct stream *stream, void (*progress)(void *userdata, uint32_t done, uint32_t total),
	void *userdata);

/* The graph for a batch, or NULL with the reason. No side effects. */
struct graph_entry *graph_set_dispatch(const struct graph_set *set, const struct batch_shape *shape,
	enum eager_reason *ret_reason);
/* A replay of entry has taken the lane so long: entry->lane_ns follows, downwards at once. */
void graph_entry_timed(struct graph_entry *entry, uint64_t lane_ns);
/* Count a replay of entry that carried n_rows real rows, of two processes or more if shared. */
void graph_entry_count(struct graph_entry *entry, uint32_t n_rows, bool shared);

#endif
