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
 */

#include "attention/attention.h"
#include "attention/kv_cache.h"
#include "daemon/graph/inputs.h"
#include "daemon/graph/ladder.h"
#include "daemon/model/model.h"

/* All that a pass of one model needs; everything outlives the forwards made from it. */
struct forward_context {
	struct device *device;
	const struct model *model;
	const struct attention_backend *attention;
	struct attention_manager *manager;
	struct inputs *inputs;
	struct model_buffers buffers; /* in the pool */
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
 * padded numbers are set here. No allocation. */
int forward_build(struct forward *forward, struct inputs_slot *slot,
	const struct descriptor *descriptor, struct attention_batch *batch, struct stream *stream);
/* 0, or -ESTALE: inputs or metadata are another descriptor's. */
int forward_check(const struct forward *forward, const struct descriptor *descriptor);
/* Queue (or record) the model for what was built, up to each token's hidden state. No allocation. */
int forward_model(struct forward *forward, const struct descriptor *descriptor, struct stream *stream);
/* Then logits and sampling of n_rows rows. No allocation. */
int forward_sample(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream);
/* Both, for as many rows as the descriptor has. */
int forward_run(struct forward *forward, const struct descriptor *descriptor, struct stream *stream);

#endif
