/* SPDX-License-Identifier: MIT */
#include "daemon/graph/forward.h"

#include <errno.h>

#include "daemon/model/draft.h"

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

/* ---- inputs ---- */

static const struct step_inputs *inputs_of(const struct forward_context *c)
{
	return c->role == FORWARD_TARGET ? &c->inputs->persistent : &c->view;
}

static struct descriptor *built_of(const struct forward_context *c)
{
	return c->role == FORWARD_TARGET ? &c->inputs->built : c->view_built;
}

static int write_target(const struct forward_context *c, struct inputs_slot *slot,
	const struct descriptor *descriptor, const struct attention_batch *batch, struct stream *stream)
{
	return inputs_prepare(c->inputs, slot, stream, descriptor, batch->padded_rows,
		kv_pages_total(c->kv) + 1);
}

static int draft_begin(const struct forward_context *c, const struct attention_batch *batch,
	uint32_t n_tokens, struct stream *stream)
{
	return c->device->kernels->draft_begin(stream, &(struct op_draft_begin){
		.inputs = c->inputs->persistent,
		.sampled = c->inputs->sampled,
		.draft = c->inputs->draft,
		.n_rows = batch->padded_rows,
		.n_tokens = n_tokens,
		.began = c->inputs->source->draft_began,
	});
}

static int draft_advance(const struct forward_context *c, uint32_t n_rows, struct stream *stream)
{
	return c->device->kernels->draft_advance(stream, &(struct op_draft_advance){
		.logits = c->buffers.logits,
		.d2t = c->model->d2t,
		.n_rows = n_rows,
		.draft_vocab = c->model->config.draft.vocab_size,
		.inputs = c->inputs->persistent,
		.draft = c->inputs->draft,
	});
}

/* The inputs of a draft, by the target's; with a slot the target's too. */
static int write_draft(const struct forward_context *c, struct inputs_slot *slot,
	const struct descriptor *descriptor, const struct attention_batch *batch, struct stream *stream)
{
	int rc = slot ? write_target(c->target, slot, descriptor, batch, stream) : 0;

	if (!rc && (slot || c->role == FORWARD_DRAFT_PREFILL))
		rc = draft_begin(c, batch, descriptor->tokens, stream);
	if (!rc && slot && c->role == FORWARD_DRAFT_DECODE)
		rc = draft_advance(c, batch->padded_rows, stream);
	return rc;
}

int forward_build(struct forward *forward, struct inputs_slot *slot,
	const struct descriptor *descriptor, struct attention_batch *batch, struct stream *stream)
{
	const struct forward_context *c = forward->context;
	int rc;

	batch->phase = forward->phase;
	/* Pad before building metadata: planners must see the batch that the graph runs. */
	forward_pad(descriptor, batch);
	rc = c->role == FORWARD_TARGET ? write_target(c, slot, descriptor, batch, stream)
				       : write_draft(c, slot, descriptor, batch, stream);
	if (rc)
		return rc;
	*built_of(c) = *descriptor;
	forward->built = *descriptor;
	return c->attention->build(forward->metadata, batch, stream);
}

int forward_check(const struct forward *forward, const struct descriptor *descriptor)
{
	return descriptor_equal(&forward->built, descriptor) &&
			descriptor_equal(built_of(forward->context), descriptor)
		? 0 : -ESTALE;
}

/* ---- passes ---- */

static struct model_pass pass_of(
	const struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows)
{
	const struct forward_context *c = forward->context;

	return (struct model_pass){
		.inputs = inputs_of(c),
		.buffers = &c->buffers,
		.n_tokens = descriptor->tokens,
		.n_rows = n_rows,
		.attention = c->attention,
		.metadata = forward->metadata,
		.kv_layers = c->kv_layers,
		.page_tokens = c->page_tokens,
		.last_only = c->role == FORWARD_TARGET && c->inputs->last_only,
		.features = c->features,
		.attend = forward->attend,
		.attend_userdata = forward->attend_userdata,
	};
}

/* Of all tokens the hidden states are the target's; of decodes those of the pass before. */
static struct draft_pass draft_pass_of(
	const struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows)
{
	const struct forward_context *c = forward->context;
	struct draft_pass pass = {
		.model = pass_of(forward, descriptor, n_rows),
		.n_hidden = c->inputs->limits.max_tokens,
	};

	if (c->role == FORWARD_DRAFT_DECODE) {
		pass.hidden = draft_hidden(&c->buffers);
		pass.index = c->inputs->draft.hidden_index;
	} else {
		pass.hidden = c->target->features ? c->target->features
						  : c->target->buffers.normed;
		pass.from_target = true;
	}
	return pass;
}

int forward_model(struct forward *forward, const struct descriptor *descriptor, struct stream *stream)
{
	const struct forward_context *c = forward->context;
	int rc = forward_check(forward, descriptor);

	if (rc)
		return rc;
	if (c->role == FORWARD_TARGET) {
		const struct model_pass pass = pass_of(forward, descriptor, 0);

		return model_forward(c->model, stream, &pass);
	}
	const struct draft_pass pass = draft_pass_of(forward, descriptor, 0);

	return draft_forward(c->model, stream, &pass);
}

static int sample(const struct forward_context *c, uint32_t n_rows, struct stream *stream)
{
	return c->device->kernels->sample(stream, &(struct op_sample){
		.logits = c->buffers.logits,
		.n_rows = n_rows,
		.vocab = c->model->config.vocab_size,
		.purpose = SAMPLE_TARGET,
		.inputs = c->inputs->persistent,
		.sampled = c->inputs->sampled,
	});
}

static int verify(const struct forward_context *c, uint32_t n_rows, struct stream *stream)
{
	return c->device->kernels->verify(stream, &(struct op_verify){
		.logits = c->buffers.logits,
		.last_only = c->inputs->last_only,
		.n_rows = n_rows,
		.vocab = c->model->config.vocab_size,
		.inputs = c->inputs->persistent,
		.sampled = c->inputs->sampled,
	});
}

int forward_sample(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream)
{
	const struct forward_context *c = forward->context;
	int rc;

	if (c->role == FORWARD_TARGET) {
		const struct model_pass pass = pass_of(forward, descriptor, n_rows);

		rc = model_logits(c->model, stream, &pass);
		if (rc)
			return rc;
		return c->inputs->limits.max_drafts ? verify(c, n_rows, stream)
						    : sample(c, n_rows, stream);
	}
	const struct draft_pass pass = draft_pass_of(forward, descriptor, n_rows);

	rc = draft_logits(c->model, stream, &pass);
	return rc ? rc : draft_advance(c, n_rows, stream);
}

int forward_run(struct forward *forward, const struct descriptor *descriptor, struct stream *stream)
{
	int rc = forward_model(forward, descriptor, stream);

	return rc ? rc : forward_sample(forward, descriptor, descriptor->rows, stream);
}
