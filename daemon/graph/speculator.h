/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_SPECULATOR_H
#define MIMEO_DAEMON_GRAPH_SPECULATOR_H

/*
 * The draft model's part of a step (kernels/ops.h, "speculation"). Behind the target's pass, which
 * verifies, a pass over the step's tokens makes draft token 0 of each row, and up to n_drafts - 1
 * passes of a token a row make the others. Two passes beside the target's, each with attention,
 * graphs and an executor of its own, in the same pool and on the same lane:
 *
 *	prefill   the target's batch; the target's resolved mode, lowered to what the draft model's
 *	          attention supports; decodes of 1 + n_drafts tokens
 *	decode    a token a row; FULL_DECODE_ONLY or NONE, never PIECEWISE
 *
 * Nothing here waits for the device. Lengths of rows that verify, and of decodes, are upper bounds
 * (struct attention_batch).
 *
 * Hot path (speculator_run): no allocation, no lock, no system call.
 */

#include "daemon/graph/graph_set.h"
#include "daemon/graph/executor.h"

#define SPECULATE_MAX 8u

struct speculator_options {
	const struct model *draft;
	uint32_t n_drafts; /* K, 1 ... SPECULATE_MAX */
	const struct attention_backend *attention; /* of both passes */
	enum attention_support support; /* validated with queries of 1 + n_drafts */
	enum graph_mode mode;           /* the target's, resolved */
	bool piecewise;                 /* is available to the target */
	const struct ladder *ladder;
	/* The target's, as its own manager has it, max_decode_query 1 + n_drafts. */
	struct attention_config attention_of_target;
	struct model_buffers buffers; /* the draft model's, in the pool */
	struct kv_cache *kv;          /* the draft model's one layer, of the target's page ids */
};

struct speculator_pass {
	struct forward_context context;
	struct descriptor built; /* context.view_built */
	struct executor executor;
	struct graph_set graphs;
	_Atomic uint64_t n_eager[N_EAGER_REASONS]; /* passes that no graph served; any thread reads */
};

struct speculator {
	uint32_t n_drafts;
	struct speculator_pass prefill, decode;
	void *kv_layer;
	uint32_t *query_lens, *seq_lens; /* [max_rows] of decodes: 1, and max_seq_len, a bound */
};

/* `target` and what the options name outlive it. The device is not locked yet. 0, -errno, or the
 * device's condition; *ret is to be deinitialised even then. */
int speculator_init(struct speculator *ret, const struct forward_context *target,
	const struct speculator_options *options);
void speculator_deinit(struct speculator *speculator);
uint32_t speculator_n_graphs(const struct speculator *speculator);
/* As graph_set_warm_up and graph_set_capture, for the graphs of both passes. Clears the counts of eager
 * passes before the warm-up, which belong to no step. */
int speculator_warm_up(struct speculator *speculator, struct stream *stream, graph_progress *progress,
	void *userdata);
int speculator_capture(struct speculator *speculator, struct stream *stream, graph_progress *progress,
	void *userdata);
/* Queue the draft model's passes behind the target's of the same step: the one over its tokens, and
 * the decodes for n_tokens draft tokens, 0 ... n_drafts: the most that any row will verify in its
 * next step. Those that are not made are -1 in slot_drafts, as prepare and verify leave them. */
int speculator_run(struct speculator *speculator, const struct step_record *record,
	const struct batch_shape *shape, const uint32_t *query_lens, const uint32_t *seq_lens,
	uint32_t n_tokens, struct stream *stream);

#endif
