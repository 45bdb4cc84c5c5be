/* SPDX-License-Identifier: MIT */
#include "daemon/graph/forward.h"

#include <errno.h>

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

void forward_pad(const struct descriptor *descriptor, struct attention_batch *batch)
{
	bool full = descriptor->mode == GRAPH_FULL;

	batch->padded_rows = full ? descriptor->rows : batch->n_rows;
	batch->padded_tokens = full ? descriptor->tokens : batch->n_tokens;
}

int forward_build(struct forward *forward, struct inputs_slot *slot,
	const struct descriptor *descriptor, struct attention_batch *batch, struct stream *stream)
{
	const struct forward_context *c = forward->context;
	int rc;

	batch->phase = forward->phase;
	/* Pad before building metadata: planners must see the batch that the graph runs. */
	forward_pad(descriptor, batch);
	rc = inputs_prepare(c->inputs, slot, stream, descriptor, batch->padded_rows,
		kv_pages_total(c->kv) + 1);
	if (rc)
		return rc;
	forward->built = *descriptor;
	return c->attention->build(forward->metadata, batch, stream);
}

int forward_check(const struct forward *forward, const struct descriptor *descriptor)
{
	return descriptor_equal(&forward->built, descriptor) &&
			descriptor_equal(&forward->context->inputs->built, descriptor)
		? 0 : -ESTALE;
}

static struct model_pass pass_of(
	const struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows)
{
	const struct forward_context *c = forward->context;

	return (struct model_pass){
		.inputs = &c->inputs->persistent,
		.buffers = &c->buffers,
		.n_tokens = descriptor->tokens,
		.n_rows = n_rows,
		.attention = c->attention,
		.metadata = forward->metadata,
		.kv_layers = c->kv_layers,
		.page_tokens = c->page_tokens,
		.attend = forward->attend,
		.attend_userdata = forward->attend_userdata,
	};
}

int forward_model(struct forward *forward, const struct descriptor *descriptor, struct stream *stream)
{
	const struct model_pass pass = pass_of(forward, descriptor, 0);
	int rc = forward_check(forward, descriptor);

	if (!rc)
		rc = model_forward(forward->context->model, stream, &pass);
	return rc;
}

int forward_sample(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream)
{
	const struct forward_context *c = forward->context;
	const struct model_pass pass = pass_of(forward, descriptor, n_rows);
	const struct op_sample sample = {
		.logits = c->buffers.logits,
		.n_rows = n_rows,
		.vocab = c->model->config.vocab_size,
		.purpose = SAMPLE_TARGET,
		.inputs = c->inputs->persistent,
		.sampled = c->inputs->sampled,
	};
	int rc = model_logits(c->model, stream, &pass);

	return rc ? rc : c->device->kernels->sample(stream, &sample);
}

int forward_run(struct forward *forward, const struct descriptor *descriptor, struct stream *stream)
{
	int rc = forward_model(forward, descriptor, stream);

	return rc ? rc : forward_sample(forward, descriptor, descriptor->rows, stream);
}
