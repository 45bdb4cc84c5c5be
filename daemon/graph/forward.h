/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_FORWARD_H
#define MIMEO_DAEMON_GRAPH_FORWARD_H

/*
 * The forward factory: what runs for a descriptor in a phase, with attention state of its own.
 *
 * A backend's metadata may initialise lazily; if warm-up and capture shared the object, a plan made
 * during warm-up would be missing from the graph. So forward_init is called anew for WARM_UP and for
 * CAPTURE, and inputs and metadata are built afresh for each (vLLM #44253, #48261). Both states are
 * kept beside the graph for inspection.
 *
 * Inputs and metadata carry the descriptor that they were last built for; what runs on those of
 * another is -ESTALE.
 *
 * A model with a draft has three of everything: its own, the draft's over all tokens of a step
 * (PREFILL), and the draft's of a token a row (DECODE). They read the same step's inputs in turn:
 * kernels/ops.h, "speculation".
 */

#include "attention/attention.h"
#include "attention/kv_cache.h"
#include "daemon/graph/inputs.h"
#include "daemon/graph/ladder.h"
#include "daemon/model/model.h"

enum forward_role { FORWARD_TARGET, FORWARD_DRAFT_PREFILL, FORWARD_DRAFT_DECODE };

/* All that a pass of one model needs; everything outlives the forwards made from it. */
struct forward_context {
	enum forward_role role;
	struct device *device;
	const struct model *model;
	const struct attention_backend *attention;
	struct attention_manager *manager;
	struct inputs *inputs; /* the target's, which has the draft's beside it */
	struct model_buffers buffers; /* in the pool */
	/* The target's: where EAGLE-3 finds features, or NULL. */
	void *features;
	/* A draft's: */
	struct step_inputs view; /* what it reads in place of the target's inputs */
	const struct forward_context *target;
	struct descriptor *view_built; /* what they were last written for */
	const void *pool;
	uint64_t pool_bytes;
	struct kv_cache *kv;
	void **kv_layers; /* [n_layers] */
	uint32_t page_tokens;
};

struct forward {
	const struct forward_context *context;
	enum attention_phase phase;
	struct attention_metadata *metadata;
	struct descriptor built; /* what the metadata was last built for */
	struct descriptor target_built; /* what the target's inputs had been written for then */
	/* NULL, or what takes the place of the backend's run, layer by layer. */
	int (*attend)(void *userdata, const struct attention_args *args);
	void *attend_userdata;
};

int forward_init(struct forward *forward, const struct forward_context *context,
	enum attention_phase phase);
void forward_deinit(struct forward *forward);

/* A batch as it will run under a descriptor: where FULL runs it, padded; for everybody else attention
 * sees what is real. */
void forward_pad(const struct descriptor *descriptor, struct attention_batch *batch);
/* Queue what writes the persistent inputs from the slot's record, and build the metadata, both padded
 * as the descriptor says. The batch's real numbers, lengths and longest query are given; phase and
 * padded numbers are set here. No allocation.
 *
 * A draft's inputs are written from the target's, of the same step, and of decodes by the pass before:
 * slot is NULL. With a slot, of a batch that is not real, the target's are written first, by the
 * target's own builder, and the decodes' too. */
int forward_build(struct forward *forward, struct inputs_slot *slot,
	const struct descriptor *descriptor, struct attention_batch *batch, struct stream *stream);
/* 0, or -ESTALE: inputs or metadata are another descriptor's. */
int forward_check(const struct forward *forward, const struct descriptor *descriptor);
/* Queue (or record) the model for what was built, up to each token's hidden state. No allocation. */
int forward_model(struct forward *forward, const struct descriptor *descriptor, struct stream *stream);
/* Then logits of n_rows rows, and what is made of them: a token, or, of a model with a draft, drafts
 * verified; of a draft the next draft. No allocation. */
int forward_sample(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream);
/* Both, for as many rows as the descriptor has. */
int forward_run(struct forward *forward, const struct descriptor *descriptor, struct stream *stream);

#endif
