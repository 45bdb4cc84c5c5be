/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_GRAPH_SET_H
#define MIMEO_DAEMON_GRAPH_GRAPH_SET_H

/*
 * A model's graphs, and which one a batch takes. One place decides; the answer is a graph with its
 * padded numbers, or eager with the reason, unpadded.
 *
 * Two families, each ascending: the first for uniform decodes, where the resolved mode has graphs of
 * their own for them, the second for everything else. A decode looks into the first before the second:
 * it prefers a wider full graph to a narrower piecewise one (vLLM #53407).
 */

#include "daemon/graph/capture.h"

#define GRAPH_QUERIES_MAX 2u /* of decodes: verified and not */

struct graph_set {
	enum graph_mode mode; /* resolved */
	uint32_t n_families, family_end[GRAPH_QUERIES_MAX]; /* of decodes, one behind the other */
	uint32_t n, n_decode; /* [0, n_decode) for decodes, [n_decode, n) for everything */
	struct graph_entry *entries;    /* [n] */
	struct descriptor *descriptors; /* [n] the same keys */
};

typedef void graph_progress(void *userdata, uint32_t done, uint32_t total);

/* Descriptors of the resolved mode; captures nothing. */
int graph_set_init(struct graph_set *set, enum graph_mode resolved, const struct ladder *ladder,
	uint32_t decode_query, uint32_t max_requests);
/* The same with decodes of several query lengths, each a family of its own, of as many requests as
 * max_tokens holds of them: one at least. */
int graph_set_init_queries(struct graph_set *set, enum graph_mode resolved,
	const struct ladder *ladder, const uint32_t queries[], uint32_t n_queries,
	uint32_t max_requests, uint32_t max_tokens);
void graph_set_deinit(struct graph_set *set, struct device *device);

/* Warm every shape up: what can still grow grows here. Before device_lock. */
int graph_set_warm_up(struct graph_set *set, const struct forward_context *context,
	struct stream *stream, graph_progress *progress, void *userdata);
/* Capture all, PIECEWISE before FULL, sizes descending, so that later ones fit in what earlier ones
 * hold. */
int graph_set_capture(struct graph_set *set, struct breakable_runner *runner, struct stream *stream,
	graph_progress *progress, void *userdata);

/* The graph that a batch fits, and whether it can be replayed: EAGER_NO, or EAGER_NOT_CAPTURED; NULL
 * with the reason if none fits. No side effects. */
struct graph_entry *graph_set_dispatch(const struct graph_set *set, const struct batch_shape *shape,
	enum eager_reason *ret_reason);
/* A replay of entry has taken the lane so long: entry->lane_ns follows, downwards at once. */
void graph_entry_timed(struct graph_entry *entry, uint64_t lane_ns);
/* The same of entry->told_ns. */
void graph_entry_told(struct graph_entry *entry, uint64_t told_ns);
/* Token rows that the graph computes for nothing. */
static inline uint32_t graph_entry_padding(const struct graph_entry *entry, uint32_t n_tokens)
{
	return entry->descriptor.tokens - n_tokens;
}
/* Count a replay of entry that carried n_tokens real token rows, of two processes or more if shared. */
void graph_entry_count(struct graph_entry *entry, uint32_t n_tokens, bool shared);

#endif
