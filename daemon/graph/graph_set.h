/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_GRAPH_SET_H
#define MIMEO_DAEMON_GRAPH_GRAPH_SET_H

/*
 * A model's graphs, and which one a batch takes: a graph with its padded numbers, or eager with the
 * reason, unpadded.
 *
 * Families, each ascending: those of uniform decodes, where the resolved mode has graphs of their own
 * for them, and one for all other batches. A decode prefers a wider full graph to a narrower
 * piecewise one (vLLM #53407).
 */

#include "daemon/graph/capture.h"

#define GRAPH_QUERIES_MAX 2u /* query lengths of decodes: with draft tokens and without */

struct graph_set {
	enum graph_mode mode; /* resolved */
	uint32_t n_families, family_end[GRAPH_QUERIES_MAX]; /* of decodes */
	uint32_t n, n_decode; /* [0, n_decode) for decodes, [n_decode, n) for any batch */
	struct graph_entry *entries;    /* [n] */
	struct descriptor *descriptors; /* [n] the same keys */
};

typedef void graph_progress(void *userdata, uint32_t done, uint32_t total);

/* Descriptors of the resolved mode; captures nothing. */
int graph_set_init(struct graph_set *set, enum graph_mode resolved, const struct ladder *ladder,
	uint32_t decode_query, uint32_t max_requests);
/* The same with decodes of several query lengths, each a family of its own, of as many requests as
 * max_tokens allows: at least one. */
int graph_set_init_queries(struct graph_set *set, enum graph_mode resolved,
	const struct ladder *ladder, const uint32_t queries[], uint32_t n_queries,
	uint32_t max_requests, uint32_t max_tokens);
void graph_set_deinit(struct graph_set *set, struct device *device);

/* Warm every shape up, which allocates what it needs. Before lock. */
int graph_set_warm_up(struct graph_set *set, const struct forward_context *context,
	struct stream *stream, graph_progress *progress, void *userdata);
/* Capture all, PIECEWISE before FULL, sizes descending, so that later ones fit into the memory of
 * earlier ones. */
int graph_set_capture(struct graph_set *set, struct breakable_runner *runner, struct stream *stream,
	graph_progress *progress, void *userdata);

/* The graph that a batch fits, with EAGER_NO if it can be replayed or EAGER_NOT_CAPTURED; NULL with
 * the reason if none fits. No side effects. */
struct graph_entry *graph_set_dispatch(const struct graph_set *set, const struct batch_shape *shape,
	enum eager_reason *ret_reason);
/* Update an entry's lane_ns or results_ns by a replay's: downwards at once, upwards by an eighth,
 * because one replay that was delayed says little about the next. */
void graph_entry_follow(uint64_t *known, uint64_t ns);
/* Token rows of padding. */
static inline uint32_t graph_entry_padding(const struct graph_entry *entry, uint32_t n_tokens)
{
	return entry->descriptor.tokens - n_tokens;
}
/* Count a replay with n_tokens real token rows, of two processes or more if shared. */
void graph_entry_count(struct graph_entry *entry, uint32_t n_tokens, bool shared);

#endif
