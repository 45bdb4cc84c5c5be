/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_EXECUTOR_H
#define MIMEO_DAEMON_GRAPH_EXECUTOR_H

/*
 * One step of a model, from its record to its sampled tokens: eager, in pieces, or as one graph. Which
 * of the three runs a step is decided here and nowhere else, by its descriptor's mode alone.
 *
 * Hot path: no allocation, no system call, and no lock but one of CUDA's products that are not in a
 * graph: logits of a step in pieces, and eager steps.
 */

#include "daemon/graph/capture.h"

struct executor {
	struct forward eager, replay; /* eager: also of the breaks of pieces */
	struct breakable_runner breakable;
};

/* What is in *context outlives the executor. */
int executor_init(struct executor *executor, const struct forward_context *context);
void executor_deinit(struct executor *executor);

/* Queue the slot's step, under a graph that is READY or, entry being NULL, eager. [n_rows] lengths as in
 * struct attention_batch. */
int executor_run(struct executor *executor, const struct graph_entry *entry, struct inputs_slot *slot,
	const uint32_t *query_lens, const uint32_t *seq_lens, struct stream *stream);
/* A pass of a draft's over a batch whose real numbers and lengths are given; its inputs come from the
 * device. */
int executor_run_draft(struct executor *executor, const struct graph_entry *entry,
	const struct attention_batch *batch, struct stream *stream);

#endif
