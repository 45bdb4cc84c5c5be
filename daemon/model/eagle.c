/* SPDX-License-Identifier: MIT */

/*
 * Forward passes of draft models. EAGLE and EAGLE-3 have the attention and the MLP of a Llama layer, an MTP
 * head is a layer of DeepSeek V3; their inputs and outputs differ. A decode may read the pass's own output
 * (draft_hidden) as its hidden states: rows are taken out of it before it is written.
 */

#include "daemon/model/draft.h"
#include "daemon/model/pass.h"

#include <assert.h>
#include <errno.h>

/* The right half of each row of `fused`. */
static void *eagle_right_half(const struct pass *p)
{
	return (uint8_t *)p->b->fused +
		p->model->config.hidden_size * dtype_bytes(p->model->activation_dtype);
}

/* out[t] = x[index[t]], rows out_stride apart (0: one behind another). */
static void eagle_take_rows(struct pass *p, const void *x, const int32_t *index, uint32_t x_rows,
	void *out, uint32_t out_stride)
{
	PASS_OP(p, gather_rows,
		.x = x,
		.index = index,
		.out = out,
		.n_rows = p->args->n_tokens,
		.x_rows = x_rows,
		.cols = p->model->config.hidden_size,
		.out_stride = out_stride);
}

static void eagle_embed(struct pass *p, void *out, uint32_t out_stride)
{
	PASS_OP(p, embed,
		.table = p->model->embedding,
		.ids = p->args->inputs->input_ids,
		.out = out,
		.n_tokens = p->args->n_tokens,
		.out_stride = out_stride);
}

/* residual = fc [embedding, hidden] */
static void eagle_input(struct pass *p, const struct draft_pass *draft)
{
	const uint32_t stride = 2 * p->model->config.hidden_size;

	eagle_embed(p, p->b->fused, stride);
	eagle_take_rows(
		p, draft->hidden, draft->index, draft->n_hidden, eagle_right_half(p), stride);
	pass_gemm(p, p->b->fused, &p->model->fc, &p->model->fc_bias, p->b->residual);
}

/* residual = the hidden state, or fc [features]; fused = [input_layernorm(embedding),
 * hidden_norm(residual)] */
static void eagle3_input(struct pass *p, const struct draft_pass *draft)
{
	const struct model_layer *l = &p->model->layers[0];
	const float eps = p->model->config.rms_norm_eps;
	const uint32_t n = p->args->n_tokens, stride = 2 * p->model->config.hidden_size;
	void *normed = p->b->normed, *residual = p->b->residual;

	if (draft->from_target) {
		pass_gemm(p, draft->hidden, &p->model->fc, &p->model->fc_bias, residual);
	} else {
		eagle_take_rows(
			p, draft->hidden, draft->index, draft->n_hidden, normed, 0);
		eagle_take_rows(p, normed, NULL, n, residual, 0);
	}
	pass_norm(p, residual, &l->hidden_norm, eps, normed);
	eagle_take_rows(p, normed, NULL, n, eagle_right_half(p), stride);
	eagle_embed(p, normed, 0);
	pass_norm(p, normed, &l->input_norm, eps, normed);
	eagle_take_rows(p, normed, NULL, n, p->b->fused, stride);
}

/* residual = eh_proj [enorm(embedding), hnorm(hidden)] */
static void eagle_mtp_input(struct pass *p, const struct draft_pass *draft)
{
	const struct model_layer *l = &p->model->layers[0];
	const float eps = p->model->config.rms_norm_eps;
	const uint32_t n = p->args->n_tokens, stride = 2 * p->model->config.hidden_size;
	void *normed = p->b->normed, *residual = p->b->residual;

	eagle_take_rows(p, draft->hidden, draft->index, draft->n_hidden, residual, 0);
	pass_norm(p, residual, &l->hidden_norm, eps, normed);
	eagle_take_rows(p, normed, NULL, n, eagle_right_half(p), stride);
	eagle_embed(p, normed, 0);
	pass_norm(p, normed, &l->embedding_norm, eps, normed);
	eagle_take_rows(p, normed, NULL, n, p->b->fused, stride);
	pass_gemm(p, p->b->fused, &p->model->fc, &p->model->fc_bias, residual);
}

static int eagle_mtp_forward(struct pass *p, const struct draft_pass *draft)
{
	eagle_mtp_input(p, draft);
	deepseek_layer(p, 0);
	pass_norm_residual(p, &p->model->final_norm);
	return p->rc;
}

int draft_forward(const struct model *model, struct stream *stream, const struct draft_pass *draft)
{
	const bool is_eagle3 = model->config.family == MODEL_EAGLE3;
	const struct model_layer *l = &model->layers[0];
	struct pass p = pass_begin(model, stream, &draft->model);

	assert(model->config.draft.vocab_size && model->config.n_layers == 1);
	if (model->config.family == MODEL_MTP)
		return eagle_mtp_forward(&p, draft);
	if (is_eagle3 && draft->from_target && draft->index)
		return -EINVAL;
	if (is_eagle3)
		eagle3_input(&p, draft);
	else
		eagle_input(&p, draft);
	pass_gemm(&p, is_eagle3 ? p.b->fused : p.b->residual, &l->qkv, &l->qkv_bias, p.b->qkv);
	llama_attention(&p, 0);
	pass_norm_mlp(&p, l);
	if (is_eagle3)
		pass_norm_residual(&p, &model->final_norm);
	return p.rc;
}

int draft_logits(const struct model *model, struct stream *stream, const struct draft_pass *draft)
{
	struct pass p = pass_begin(model, stream, &draft->model);

	pass_head(&p, model->config.family == MODEL_EAGLE ? p.b->residual : p.b->normed,
		p.args->inputs->logit_index, p.args->n_rows);
	return p.rc;
}

/* ---- inputs ---- */

static struct step_inputs eagle_without_extras(const struct step_inputs *target)
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
	struct step_inputs inputs = eagle_without_extras(target);

	inputs.input_ids = draft->input_ids;
	inputs.slot_mapping = draft->slot_mapping;
	inputs.logit_index = draft->last_index;
	return inputs;
}

struct step_inputs draft_decode_inputs(
	const struct step_inputs *target, const struct draft_inputs *draft)
{
	struct step_inputs inputs = eagle_without_extras(target);

	inputs.input_ids = draft->decode_ids;
	inputs.positions = draft->positions;
	inputs.slot_mapping = draft->decode_slot_mapping;
	inputs.query_start = draft->query_start;
	inputs.seq_lens = draft->seq_lens;
	inputs.logit_index = NULL;
	return inputs;
}
