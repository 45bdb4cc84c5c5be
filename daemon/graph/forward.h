/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_FORWARD_H
#define MIMEO_DAEMON_GRAPH_FORWARD_H

/*
 * A forward pass under a descriptor, in a phase, with attention metadata of its own.
 *
 * A backend's metadata may initialise lazily; if warm-up and capture shared the object, a plan made
 * during warm-up would be missing from the graph. So WARM_UP and CAPTURE have a struct forward each,
 * and inputs and metadata are written again for each (vLLM #44253, #48261).
 *
 * Inputs and metadata carry the descriptor that they were last written for; a pass over those of
 * another descriptor is -ESTALE.
 *
 * A model with a draft model has three roles: its own, the draft model's pass over all tokens of a
 * step (PREFILL), and that of a token a row (DECODE). They read the same step's inputs in turn
 * (kernels/ops.h, "speculation").
 */

#include "attention/attention.h"
#include "attention/kv_cache.h"
#include "daemon/graph/inputs.h"
#include "daemon/graph/ladder.h"
#include "daemon/model/transformer.h"

enum forward_role { FORWARD_TARGET, FORWARD_DRAFT_PREFILL, FORWARD_DRAFT_DECODE };

/* What the passes of one role need; all of it outlives the forwards made from it. */
struct forward_context {
	enum forward_role role;
	struct device *device;
	const struct model *model;
	const struct attention_backend *attention;
	struct attention_manager *manager;
	struct inputs *inputs; /* the target's, with those of its draft model */
	struct model_buffers buffers; /* in the pool */
	/* A target's: where it writes an EAGLE-3 draft model's features, or NULL. */
	void *features;
	/* A draft model's: */
	struct step_inputs view; /* what it reads in place of the target's inputs */
	const struct forward_context *target;
	struct descriptor *view_built; /* what the view was last written for */
	const void *pool;
	uint64_t pool_bytes;
	struct kv_cache *kv;
	void **kv_layers; /* [n_layers] */
	const struct kv_sets *sets; /* of the layers; NULL: one */
	uint32_t page_tokens;
};

struct forward {
	const struct forward_context *context;
	enum attention_phase phase;
	struct attention_metadata *metadata;
	struct descriptor built; /* what the metadata was last built for ... */
	struct descriptor target_built; /* ... and the target's inputs written for */
	uint32_t n_last; /* of that batch (struct model_pass) */
	/* NULL, or a replacement of the backend's run, layer by layer. */
	int (*attend)(void *userdata, const struct attention_args *args);
	void *attend_userdata;
};

int forward_init(struct forward *forward, const struct forward_context *context,
	enum attention_phase phase);
void forward_deinit(struct forward *forward);

/* Set the batch's padded numbers: those of the descriptor under FULL, else the real ones. */
void forward_pad(const struct descriptor *descriptor, struct attention_batch *batch);
/* Queue what writes the persistent inputs from the slot's record, and build the metadata, both padded
 * as the descriptor says. The caller sets the batch's real numbers, lengths and longest query; phase
 * and padded numbers are set here. No allocation.
 *
 * A draft model's inputs are written from the target's of the same step, and those of decodes by the
 * pass before: slot is NULL. With a slot (a dummy batch) the target's are written first. */
int forward_build(struct forward *forward, struct inputs_slot *slot,
	const struct descriptor *descriptor, struct attention_batch *batch, struct stream *stream);
/* 0, or -ESTALE: inputs or metadata were written for another descriptor. */
int forward_check(const struct forward *forward, const struct descriptor *descriptor);
/* Queue (or record) the pass, up to each token's hidden state. No allocation. */
int forward_model(struct forward *forward, const struct descriptor *descriptor, struct stream *stream);
/* Queue (or record) logits of n_rows rows and what follows: sampling, or verification of draft
 * tokens; of a draft model its next draft token. No allocation. */
int forward_sample(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream);
/* Queue logits of n tokens of the target's last pass from `first` on, max_rows at most, in the place of its rows'
 * logits. No allocation. */
int forward_logits_of(
	const struct forward_context *c, uint32_t first, uint32_t n, struct stream *stream);
/* Both; decodes may take another way to the same end (model_decode). */
int forward_run(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream);
/* Each way that forward_run may take, for first uses: a step without this graph runs op by op. */
int forward_warm_up(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream);

#endif
