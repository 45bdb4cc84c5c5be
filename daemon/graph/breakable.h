/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_BREAKABLE_H
#define MIMEO_DAEMON_GRAPH_BREAKABLE_H

/*
 * Breakable graphs: a forward pass as a list of graph segments and of the calls between them.
 *
 *	segment 0 | attention of layer 0 | segment 1 | ... | attention of layer n - 1 | segment n
 *
 * Recording: a call of attention ends the capture, runs, is appended to the list, and the capture
 * goes on; n breaks give n + 1 segments. Replay: each segment is launched with padded token rows,
 * each call is made again with the real rows and tokens of the step. So one list serves every batch
 * of so many tokens, however they are spread over rows. Logits and sampling depend on the number of
 * rows and are not part of the list.
 *
 * A break reads and writes the pool at the addresses that it was recorded with. One that names other
 * memory is refused: that memory might not be there at the replay. (The idea: vLLM's breakable
 * graphs, #44050, #54127.)
 *
 * What a break costs (H200, 1B model): 8 us at 1 row, 6 us at 64. Each of its two boundaries between
 * a graph and a kernel costs about 2.5 us; the rest is overlap that is lost. Tried and no better:
 * attention as a graph of one node, the output product or the rotation run eagerly in the break,
 * attention's early reads in breaks. Not tried: one graph for the whole pass whose attention nodes'
 * parameters are set for each step.
 *
 * The runner is made once, at set-up, and bound to the pool. Only the engine's thread uses it.
 */

#include "daemon/graph/forward.h"

struct breakable_runner {
	const struct forward_context *context;
	uint32_t max_breaks; /* of a pass: its layers */
	uint64_t n_replays, n_breaks; /* of replays, for tests */
	/* the pass that is being recorded: */
	struct breakable *recording;
	struct forward *forward;
	struct stream *stream;
	uint32_t n_tokens; /* padded */
};

/* The segments of one descriptor. All zero: nothing is recorded. */
struct breakable {
	uint32_t n_breaks;
	struct attention_args *breaks; /* [n_breaks] by value, as recorded */
	struct graph **graphs;         /* [n_breaks + 1] */
	struct graph_exec **execs;     /* [n_breaks + 1]; NULL: not instantiated */
};

void breakable_runner_init(struct breakable_runner *runner, const struct forward_context *context);

/* Record what forward_model queues for the descriptor, from a forward built for it; its breaks run
 * eagerly. -EFAULT: a break names memory outside the pool; *ret is set on success only. Allocates. */
int breakable_record(struct breakable_runner *runner, struct breakable *ret, struct forward *forward,
	const struct descriptor *descriptor, struct stream *stream);
/* Instantiate and upload a graph, a segment or a whole one. From any thread. */
int breakable_instantiate_one(struct device *device, struct graph *graph,
	struct graph_exec **ret_exec, struct stream *stream, struct graph_info *ret);
/* Instantiate and upload every segment; *ret is their sum. From any thread. */
int breakable_instantiate(struct breakable *breakable, struct device *device, struct stream *stream,
	struct graph_info *ret);
/* Queue a replay, the breaks with the forward's metadata. No allocation. */
int breakable_replay(struct breakable_runner *runner, const struct breakable *breakable,
	struct forward *forward, struct stream *stream);
/* No launch may be pending. */
void breakable_free(struct breakable *breakable, struct device *device);

#endif
