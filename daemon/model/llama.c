/* SPDX-License-Identifier: MIT */

/*
 * A layer of the Llama family and its relatives, which differ in data, not in shape: biases, head
 * norms and experts are there or not.
 */

#include "daemon/model/pass.h"

/* Layers with a window may have a table of their own. */
static const float *llama_rope_table(const struct model *model, uint32_t layer)
{
	const struct model_config *c = &model->config;

	return c->local_theta != 0 && c->windows[layer]
		? model->cos_sin + (size_t)model->max_positions * c->head_dim : model->cos_sin;
}

void llama_attend(struct pass *p, uint32_t layer)
{
	const struct model_config *c = &p->model->config;
	const struct model_layer *l = &p->model->layers[layer];

	PASS_OP(p, rope_and_cache,
		.qkv = p->b->qkv,
		.positions = p->args->inputs->positions,
		.slot_mapping = pass_slot_mapping(p, layer),
		.cos_sin = llama_rope_table(p->model, layer),
		.max_positions = p->model->max_positions,
		.q_norm = l->q_norm,
		.k_norm = l->k_norm,
		.eps = c->rms_norm_eps,
		.kv = p->args->kv_layers[layer],
		.n_tokens = p->args->n_tokens,
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = p->args->page_tokens,
		.fp8 = c->kv_fp8,
		.factors = l->kv_factors);
	pass_attend(p, layer, (c->n_heads + 2 * c->n_kv_heads) * c->head_dim);
}

void llama_attention(struct pass *p, uint32_t layer)
{
	const struct model_layer *l = &p->model->layers[layer];

	llama_attend(p, layer);
	pass_add_gemm(p, pass_attended(p, layer), &l->o, &l->o_bias);
}

void llama_layer(struct pass *p, uint32_t layer)
{
	const struct model_layer *l = &p->model->layers[layer];

	pass_begin_layer(p, layer);
	pass_norm_gemm(p, &l->input_norm, l->input_order, &l->qkv, &l->qkv_bias, p->b->qkv);
	llama_attention(p, layer);
	pass_norm_feed(p, l);
}
