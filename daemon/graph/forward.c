/* SPDX-License-Identifier: MIT */
#include "daemon/graph/forward.h"

#include <assert.h>
#include <errno.h>

#include "daemon/model/draft.h"

int forward_init(struct forward *forward, const struct forward_context *context,
	enum attention_phase phase)
{
	struct attention_metadata *metadata;
	int rc;

	assert(context->role <= FORWARD_DRAFT_DECODE);
	assert((context->role == FORWARD_TARGET) == !context->target);
	rc = context->attention->metadata_new(context->manager, &metadata);

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

/* What a pass reads, and what that was last written for. */
struct forward_view {
	const struct step_inputs *inputs;
	struct descriptor *built;
};

/* ---- a target ---- */

static struct forward_view forward_target_view(const struct forward_context *c)
{
	return (struct forward_view){&c->inputs->persistent, &c->inputs->built};
}

static int forward_target_write(const struct forward_context *c, struct inputs_slot *slot,
	const struct descriptor *descriptor, const struct attention_batch *batch, struct stream *stream)
{
	assert(slot);
	return inputs_prepare(c->inputs, slot, stream, descriptor, batch->padded_rows,
		kv_pages_total(c->kv) + 1);
}

static int forward_target_model(const struct forward_context *c, const struct model_pass *pass,
	struct stream *stream)
{
	return model_forward(c->model, stream, pass);
}

/* A graph has it for whatever rows it is replayed with; other passes where a row needs it. */
static int forward_target_adjust(
	const struct forward_context *c, const struct model_pass *pass, struct stream *stream)
{
	if (!c->inputs->adjusts)
		return 0;
	return c->device->kernels->adjust(stream, &(struct op_adjust){
		.logits = c->buffers.logits,
		.n_rows = pass->n_rows,
		.vocab = c->model->config.vocab_size,
		.last_only = c->inputs->last_only,
		.inputs = c->inputs->persistent,
	});
}

/* Of logits a token for each row, or drafts verified. */
static int forward_target_choose(const struct forward_context *c, const struct model_pass *pass,
	struct stream *stream)
{
	int rc = forward_target_adjust(c, pass, stream);

	if (rc)
		return rc;
	if (c->inputs->limits.max_drafts)
		return c->device->kernels->verify(stream, &(struct op_verify){
			.logits = c->buffers.logits,
			.last_only = c->inputs->last_only,
			.n_rows = pass->n_rows,
			.vocab = c->model->config.vocab_size,
			.inputs = c->inputs->persistent,
			.sampled = c->inputs->sampled,
		});
	return c->device->kernels->sample(stream, &(struct op_sample){
		.logits = c->buffers.logits,
		.n_rows = pass->n_rows,
		.vocab = c->model->config.vocab_size,
		.purpose = SAMPLE_TARGET,
		.inputs = c->inputs->persistent,
		.sampled = c->inputs->sampled,
	});
}

static int forward_target_sample(const struct forward_context *c, const struct model_pass *pass,
	struct stream *stream)
{
	int rc = model_logits(c->model, stream, pass);

	return rc ? rc : forward_target_choose(c, pass, stream);
}

/* ---- a draft model ---- */

static struct forward_view forward_draft_view(const struct forward_context *c)
{
	return (struct forward_view){&c->view, c->view_built};
}

static int forward_draft_advance(
	const struct forward_context *c, uint32_t n_rows, struct stream *stream)
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

static int forward_prefill_write(const struct forward_context *c, struct inputs_slot *slot,
	const struct descriptor *descriptor, const struct attention_batch *batch, struct stream *stream)
{
	int rc = slot ? forward_target_write(c->target, slot, descriptor, batch, stream) : 0;

	if (rc)
		return rc;
	return c->device->kernels->draft_begin(stream, &(struct op_draft_begin){
		.inputs = c->inputs->persistent,
		.sampled = c->inputs->sampled,
		.draft = c->inputs->draft,
		.n_rows = batch->padded_rows,
		.n_tokens = descriptor->tokens,
		.began = c->inputs->source->draft_began,
	});
}

/* In a step, the preceding pass has written the inputs of a decode. */
static int forward_decode_write(const struct forward_context *c, struct inputs_slot *slot,
	const struct descriptor *descriptor, const struct attention_batch *batch, struct stream *stream)
{
	int rc = slot ? forward_prefill_write(c, slot, descriptor, batch, stream) : 0;

	return rc || !slot ? rc : forward_draft_advance(c, batch->padded_rows, stream);
}

/* Hidden states are the target's. */
static int forward_prefill_model(const struct forward_context *c, const struct model_pass *pass,
	struct stream *stream)
{
	const struct forward_context *target = c->target;

	return draft_forward(c->model, stream, &(struct draft_pass){
		.model = *pass,
		.hidden = target->features ? target->features : target->buffers.normed,
		.n_hidden = c->inputs->limits.max_tokens,
		.from_target = true,
	});
}

/* Hidden states are those of the pass before. */
static int forward_decode_model(const struct forward_context *c, const struct model_pass *pass,
	struct stream *stream)
{
	return draft_forward(c->model, stream, &(struct draft_pass){
		.model = *pass,
		.hidden = draft_hidden(c->model, &c->buffers),
		.index = c->inputs->draft.hidden_index,
		.n_hidden = c->inputs->limits.max_tokens,
	});
}

/* Logits, and of each row the next draft token. */
static int forward_draft_sample(const struct forward_context *c, const struct model_pass *pass,
	struct stream *stream)
{
	const struct draft_pass draft = {.model = *pass};
	int rc = draft_logits(c->model, stream, &draft);

	return rc ? rc : forward_draft_advance(c, pass->n_rows, stream);
}

/* ---- any of them ---- */

static const struct {
	struct forward_view (*view)(const struct forward_context *c);
	/* Queue what writes the view's inputs, and with a slot the target's before. */
	int (*write)(const struct forward_context *c, struct inputs_slot *slot,
		const struct descriptor *descriptor, const struct attention_batch *batch,
		struct stream *stream);
	/* Queue the pass up to the hidden states, and from there to tokens. */
	int (*model)(const struct forward_context *c, const struct model_pass *pass,
		struct stream *stream);
	int (*sample)(const struct forward_context *c, const struct model_pass *pass,
		struct stream *stream);
} roles[] = {
	[FORWARD_TARGET] = {forward_target_view, forward_target_write, forward_target_model,
		forward_target_sample},
	[FORWARD_DRAFT_PREFILL] = {forward_draft_view, forward_prefill_write,
		forward_prefill_model, forward_draft_sample},
	[FORWARD_DRAFT_DECODE] = {forward_draft_view, forward_decode_write, forward_decode_model,
		forward_draft_sample},
};

/* Graphs are captured for a number of tokens, not of rows. A draft model reads the hidden states of all tokens. */
static bool forward_reads_last_alone(const struct forward_context *c, const struct inputs_slot *slot,
	const struct descriptor *descriptor, const struct attention_batch *batch)
{
	return c->role == FORWARD_TARGET && descriptor->mode == GRAPH_NONE && !c->inputs->limits.max_drafts &&
	       !slot->n_positions && batch->n_rows < descriptor->tokens;
}

int forward_build(struct forward *forward, struct inputs_slot *slot,
	const struct descriptor *descriptor, struct attention_batch *batch, struct stream *stream)
{
	const struct forward_context *c = forward->context;
	int rc;

	batch->phase = forward->phase;
	/* Pad before building metadata: planners must see the batch that the graph runs. */
	forward_pad(descriptor, batch);
	assert(batch->padded_rows <= c->inputs->limits.max_rows);
	assert(descriptor->tokens <= c->inputs->limits.max_tokens);
	rc = roles[c->role].write(c, slot, descriptor, batch, stream);
	if (rc)
		return rc;
	*roles[c->role].view(c).built = *descriptor;
	forward->built = *descriptor;
	forward->target_built = slot ? *descriptor : c->inputs->built;
	forward->n_last = forward_reads_last_alone(c, slot, descriptor, batch) ? batch->n_rows : 0;
	return c->attention->build(forward->metadata, batch, stream);
}

int forward_check(const struct forward *forward, const struct descriptor *descriptor)
{
	const struct forward_context *c = forward->context;
	bool current = descriptor_equal(&forward->built, descriptor) &&
		descriptor_equal(roles[c->role].view(c).built, descriptor) &&
		descriptor_equal(&c->inputs->built, &forward->target_built);

	return current ? 0 : -ESTALE;
}

static struct model_pass forward_pass(
	const struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows)
{
	const struct forward_context *c = forward->context;

	return (struct model_pass){
		.inputs = roles[c->role].view(c).inputs,
		.buffers = &c->buffers,
		.n_tokens = descriptor->tokens,
		.n_rows = n_rows,
		.attention = c->attention,
		.metadata = forward->metadata,
		.kv_layers = c->kv_layers,
		.sets = c->sets && c->sets->n > 1 ? c->sets->set : NULL,
		.page_tokens = c->page_tokens,
		.n_pages = kv_cache_config(c->kv)->max_pages,
		.last_only = c->inputs->last_only,
		.n_last = forward->n_last,
		.features = c->features,
		.attend = forward->attend,
		.attend_userdata = forward->attend_userdata,
	};
}

int forward_model(struct forward *forward, const struct descriptor *descriptor, struct stream *stream)
{
	const struct model_pass pass = forward_pass(forward, descriptor, 0);
	int rc = forward_check(forward, descriptor);

	return rc ? rc : roles[forward->context->role].model(forward->context, &pass, stream);
}

int forward_sample(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream)
{
	const struct model_pass pass = forward_pass(forward, descriptor, n_rows);

	assert(n_rows <= forward->context->inputs->limits.max_rows);
	return roles[forward->context->role].sample(forward->context, &pass, stream);
}

int forward_logits_of(
	const struct forward_context *c, uint32_t first, uint32_t n, struct stream *stream)
{
	const struct model_pass pass = {
		.inputs = &c->inputs->persistent,
		.buffers = &c->buffers,
	};

	assert(c->role == FORWARD_TARGET && n <= c->inputs->limits.max_rows);
	assert((uint64_t)first + n <= c->inputs->limits.max_tokens);
	return model_logits_of(c->model, stream, &pass, first, n);
}

/* A target's whole decode at once: -ENOTSUP where there is no such thing. */
static int forward_decode(struct forward *forward, const struct descriptor *descriptor, struct stream *stream)
{
	const struct forward_context *c = forward->context;
	const struct model_pass pass = forward_pass(forward, descriptor, descriptor->rows);
	int rc;

	if (c->role != FORWARD_TARGET || descriptor->mode != GRAPH_FULL || descriptor->query_len != 1)
		return -ENOTSUP;
	rc = forward_check(forward, descriptor);
	if (rc)
		return rc;
	rc = model_decode(c->model, stream, &pass);
	return rc ? rc : forward_target_choose(c, &pass, stream);
}

static int forward_op_by_op(
	struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows, struct stream *stream)
{
	int rc = forward_model(forward, descriptor, stream);

	return rc ? rc : forward_sample(forward, descriptor, n_rows, stream);
}

int forward_run(struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows,
	struct stream *stream)
{
	int rc = forward_decode(forward, descriptor, stream);

	return rc == -ENOTSUP ? forward_op_by_op(forward, descriptor, n_rows, stream) : rc;
}

int forward_warm_up(
	struct forward *forward, const struct descriptor *descriptor, uint32_t n_rows, struct stream *stream)
{
	int rc = forward_decode(forward, descriptor, stream);

	return rc && rc != -ENOTSUP ? rc : forward_op_by_op(forward, descriptor, n_rows, stream);
}
