/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_EXECUTOR_H
#define MIMEO_DAEMON_GRAPH_EXECUTOR_H

/*
 * One step of a model, from its record to its sampled tokens: eager, in pieces, or as one graph, by
 * its descriptor's mode.
 *
 * Hot path: no allocation, no system call, and no lock except cuBLASLt's for products outside a graph
 * (logits of a step in pieces, and eager steps).
 */

#include "daemon/graph/capture.h"

struct executor {
	struct forward eager, replay; /* eager: also for the breaks of pieces */
	struct breakable_runner breakable;
};

/* *context outlives the executor. */
int executor_init(struct executor *executor, const struct forward_context *context);
void executor_deinit(struct executor *executor);

/* Queue the slot's step, under a graph that is READY, or eager if entry is NULL. Lengths [n_rows] as
 * in struct attention_batch. -EINVAL: the batch does not fit the graph. */
int executor_run(struct executor *executor, const struct graph_entry *entry, struct inputs_slot *slot,
	const uint32_t *query_lens, const uint32_t *seq_lens, struct stream *stream);
/* A draft model's pass over a batch whose real numbers and lengths are given; its inputs are on the
 * device. */
int executor_run_draft(struct executor *executor, const struct graph_entry *entry,
	const struct attention_batch *batch, struct stream *stream);

#endif
