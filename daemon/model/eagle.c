/* SPDX-License-Identifier: MIT */

/*
 * Forward passes of drafts: EAGLE and EAGLE-3. Both have the attention and the MLP of a Llama
 * layer; what differs is what comes in and what goes out. The residual is the pass's output in
 * both, and a decode may read it as its hidden states: rows are taken out of it before it is
 * written.
 */

#include "daemon/model/draft.h"
#include "daemon/model/pass.h"

#include <errno.h>

/* The right half of each row of `fused`. */
static void *right_half(const struct pass *s)
{
	return (uint8_t *)s->b->fused +
		s->model->config.hidden_size * dtype_bytes(s->model->activation_dtype);
}

/* out[t] = x[index[t]], rows out_stride apart (0: one behind another). */
static int take_rows(const struct pass *s, const void *x, const int32_t *index, uint32_t x_rows,
	void *out, uint32_t out_stride)
{
	return s->ops->gather_rows(s->stream,
		&(struct op_gather_rows){
			.x = x,
			.index = index,
			.out = out,
			.n_rows = s->pass->n_tokens,
			.x_rows = x_rows,
			.cols = s->model->config.hidden_size,
			.out_stride = out_stride,
		});
}

static int embed(const struct pass *s, void *out, uint32_t out_stride)
{
	return s->ops->embed(s->stream,
		&(struct op_embed){
			.table = s->model->embedding,
			.ids = s->pass->inputs->input_ids,
			.out = out,
			.n_tokens = s->pass->n_tokens,
			.out_stride = out_stride,
		});
}

/* residual = fc [embedding, hidden] */
static int eagle_input(const struct pass *s, const struct draft_pass *pass)
{
	const uint32_t stride = 2 * s->model->config.hidden_size;
	int rc = embed(s, s->b->fused, stride);

	if (!rc)
		rc = take_rows(
			s, pass->hidden, pass->index, pass->n_hidden, right_half(s), stride);
	return rc ? rc
		  : pass_gemm(s, s->b->fused, &s->model->fc, &s->model->fc_bias, s->b->residual);
}

/* residual = the hidden state, or fc [features]. */
static int eagle3_hidden(const struct pass *s, const struct draft_pass *pass)
{
	int rc;

	if (pass->from_target)
		return pass_gemm(
			s, pass->hidden, &s->model->fc, &s->model->fc_bias, s->b->residual);
	rc = take_rows(s, pass->hidden, pass->index, pass->n_hidden, s->b->projected, 0);
	return rc ? rc
		  : take_rows(s, s->b->projected, NULL, s->pass->n_tokens, s->b->residual, 0);
}

/* fused = [input_layernorm(embedding), hidden_norm(residual)] */
static int eagle3_input(const struct pass *s, const struct draft_pass *pass)
{
	const struct model_layer *l = &s->model->layers[0];
	const float eps = s->model->config.rms_norm_eps;
	const uint32_t n = s->pass->n_tokens, stride = 2 * s->model->config.hidden_size;
	void *normed = s->b->normed;
	int rc = eagle3_hidden(s, pass);

	if (!rc)
		rc = pass_norm(s, s->b->residual, &l->hidden_norm, eps, normed);
	if (!rc)
		rc = take_rows(s, normed, NULL, n, right_half(s), stride);
	if (!rc)
		rc = embed(s, normed, 0);
	if (!rc)
		rc = pass_norm(s, normed, &l->input_norm, eps, normed);
	return rc ? rc : take_rows(s, normed, NULL, n, s->b->fused, stride);
}

static bool is_eagle3(const struct model *draft)
{
	return draft->config.family == MODEL_EAGLE3;
}

int draft_forward(const struct model *draft, struct stream *stream, const struct draft_pass *pass)
{
	const struct pass state = pass_begin(draft, stream, &pass->model), *s = &state;
	const struct model_layer *l = &draft->layers[0];
	int rc;

	if (is_eagle3(draft) && pass->from_target && pass->index)
		return -EINVAL;
	rc = is_eagle3(draft) ? eagle3_input(s, pass) : eagle_input(s, pass);
	if (!rc)
		rc = llama_attention(s, 0, is_eagle3(draft) ? s->b->fused : s->b->residual);
	if (!rc)
		rc = pass_add_norm(s, &l->post_norm);
	if (!rc)
		rc = pass_mlp(s, l);
	if (rc)
		return rc;
	/* EAGLE's sum is all that counts: what is normed here is read by nobody. */
	return pass_add_norm(s, is_eagle3(draft) ? &draft->final_norm : &l->post_norm);
}

int draft_logits(const struct model *draft, struct stream *stream, const struct draft_pass *pass)
{
	const struct pass state = pass_begin(draft, stream, &pass->model), *s = &state;
	const void *x = is_eagle3(draft) ? s->b->normed : s->b->residual;
	int rc;

	if (!s->pass->inputs->logit_index)
		return pass_head(s, x, s->pass->n_rows);
	rc = s->ops->gather_rows(stream,
		&(struct op_gather_rows){
			.x = x,
			.index = s->pass->inputs->logit_index,
			.out = s->b->last_hidden,
			.n_rows = s->pass->n_rows,
			.x_rows = s->pass->n_tokens,
			.cols = draft->config.hidden_size,
		});
	return rc ? rc : pass_head(s, s->b->last_hidden, s->pass->n_rows);
}

/* ---- inputs ---- */

static struct step_inputs without_extras(const struct step_inputs *target)
{
	struct step_inputs inputs = *target;

	inputs.embedding_from = NULL;
	inputs.slot_mask = NULL;
	inputs.mask_words = NULL;
	inputs.max_drafts = 0;
	return inputs;
}

struct step_inputs draft_prefill_inputs(
	const struct step_inputs *target, const struct draft_inputs *draft)
{
	struct step_inputs inputs = without_extras(target);

	inputs.input_ids = draft->input_ids;
	inputs.slot_mapping = draft->slot_mapping;
	inputs.logit_index = draft->last_index;
	return inputs;
}

struct step_inputs draft_decode_inputs(
	const struct step_inputs *target, const struct draft_inputs *draft)
{
	struct step_inputs inputs = without_extras(target);

	inputs.input_ids = draft->decode_ids;
	inputs.positions = draft->positions;
	inputs.slot_mapping = draft->decode_slot_mapping;
	inputs.query_start = draft->query_start;
	inputs.seq_lens = draft->seq_lens;
	inputs.logit_index = NULL;
	return inputs;
}
