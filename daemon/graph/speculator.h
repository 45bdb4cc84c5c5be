/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_SPECULATE_H
#define MIMEO_DAEMON_GRAPH_SPECULATE_H

/*
 * The draft's part of a step (kernels/ops.h, "speculation"): behind the target's pass, which verifies, a
 * pass over the step's tokens makes draft 0 of each row, and up to n_drafts - 1 passes of a token a row make
 * the others. Two managers beside the target's, with attention, graphs and executors of their own, in the same
 * pool and on the same lane:
 *
 *	prefill   the target's batch; the target's resolved mode, lowered to what the draft's attention
 *	          can take; decodes of 1 + n_drafts tokens
 *	decode    a token a row; FULL_DECODE_ONLY or NONE, never PIECEWISE
 *
 * Nothing here waits for the device, and lengths of rows that are to verify, or of decodes, are upper
 * bounds (struct attention_batch).
 *
 * Hot path (speculator_run): no allocation, no lock, no system call.
 */

#include "daemon/graph/dispatch.h"
#include "daemon/graph/execute.h"

struct speculator_options {
	const struct model *draft;
	uint32_t n_drafts; /* K, 1 ... SPECULATE_MAX */
	const struct attention_backend *attention; /* of both managers */
	enum attention_support support; /* validated with queries of 1 + n_drafts */
	enum graph_mode mode;           /* the target's, resolved */
	bool piecewise;                 /* is available to the target */
	const struct ladder *ladder;
	/* The target's, as its own manager has it, max_decode_query 1 + n_drafts. */
	struct attention_config attention_of_target;
	struct model_buffers buffers; /* the draft's, in the pool */
	struct kv_cache *kv;          /* the draft's one layer, of the target's page ids */
};

#define SPECULATE_MAX 8u

struct speculator {
	uint32_t n_drafts;
	struct forward_context prefill, decode;
	struct descriptor prefill_built, decode_built;
	struct executor prefill_executor, decode_executor;
	struct graph_set prefill_graphs, decode_graphs;
	void *kv_layer;
	uint32_t *query_lens, *seq_lens; /* [max_rows] of decodes: 1, and max_seq_len, a bound */
	/* Passes that no graph served; read by anybody. */
	_Atomic uint64_t n_prefill_eager[N_EAGER_REASONS], n_decode_eager[N_EAGER_REASONS];
};

/* `target` and what the options name outlive it. The device is not locked yet. 0 or -errno, or the
 * device's condition; *ret is to be deinitialised even then. */
int speculator_init(struct speculator *ret, const struct forward_context *target,
	const struct speculator_options *options);
void speculator_deinit(struct speculator *speculator);
uint32_t speculator_n_graphs(const struct speculator *speculator);
/* As graph_set_warm_up and graph_set_capture, of both managers' graphs, over which `progress` goes. What
 * ran before was no step's, and is not counted. */
int speculator_warm_up(struct speculator *speculator, struct stream *stream, graph_progress *progress,
	void *userdata);
int speculator_capture(struct speculator *speculator, struct stream *stream, graph_progress *progress,
	void *userdata);
/* Queue the draft's passes behind the target's of the same step: the one over its tokens, and as many of a
 * token a row as n_guesses, 0 ... n_drafts, take, which are the most that a row is to have of those that
 * verify in a later step. Whichever are not made are -1 in slot_drafts, as prepare and verify leave them. */
int speculator_run(struct speculator *speculator, const struct step_record *record,
	const struct batch_shape *shape, const uint32_t *query_lens, const uint32_t *seq_lens,
	uint32_t n_guesses, struct stream *stream);

#endif
