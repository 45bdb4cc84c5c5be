/* SPDX-License-Identifier: MIT */
#include "daemon/graph/forward.h"

int forward_init(struct forward *forward, const struct forward_context *context,
	enum attention_phase phase)
{
	struct attention_metadata *metadata;
	int rc = context->attention->metadata_new(context->manager, &metadata);

	if (rc)
		return rc;
	*forward = (struct forward){.context = context, .phase = phase, .metadata = metadata};
	return 0;
}

void forward_deinit(struct forward *forward)
{
	if (!forward || !forward->context)
		return;
	forward->context->attention->metadata_free(forward->metadata);
	*forward = (struct forward){0};
}

int forward_build(struct forward *forward, struct attention_batch *batch, struct stream *stream)
{
	batch->phase = forward->phase;
	return forward->context->attention->build(forward->metadata, batch, stream);
}

int forward_run(struct forward *forward, struct stream *stream, uint32_t n_rows, uint32_t n_tokens)
{
	const struct forward_context *c = forward->context;
	struct model_pass pass = {
		.inputs = &c->inputs->persistent,
		.buffers = &c->buffers,
		.n_tokens = n_tokens,
		.n_rows = n_rows,
		.attention = c->attention,
		.metadata = forward->metadata,
		.kv_layers = c->kv_layers,
		.page_tokens = c->page_tokens,
		.embeddings = forward->embeddings,
		.n_embeddings = forward->n_embeddings,
	};
	struct op_sample sample = {
		.logits = c->buffers.logits,
		.n_rows = n_rows,
		.vocab = c->model->config.vocab_size,
		.purpose = SAMPLE_TARGET,
		.inputs = c->inputs->persistent,
		.sampled = c->inputs->sampled,
	};
	int rc = model_forward(c->model, stream, &pass);

	forward->embeddings = NULL;
	forward->n_embeddings = 0;
	return rc ? rc : c->device->kernels->sample(stream, &sample);
}
