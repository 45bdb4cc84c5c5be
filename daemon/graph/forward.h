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
	struct model_buffers buffers;
	struct kv_cache *kv;
	void **kv_layers; /* [n_layers] */
	uint32_t page_tokens;
};

struct forward {
	const struct forward_context *context;
	enum attention_phase phase;
	struct attention_metadata *metadata;
	/* Of the next eager pass: set before forward_run, which forgets it. */
	const struct model_embedding *embeddings; /* [n_embeddings] */
	uint32_t n_embeddings;
};

int forward_init(struct forward *forward, const struct forward_context *context,
	enum attention_phase phase);
void forward_deinit(struct forward *forward);

/* Build the metadata for a batch; its phase is set here. No allocation. */
int forward_build(struct forward *forward, struct attention_batch *batch, struct stream *stream);
/* Queue (or record) the model and the sampling for n_rows rows of n_tokens tokens. No allocation. */
int forward_run(struct forward *forward, struct stream *stream, uint32_t n_rows, uint32_t n_tokens);

#endif
