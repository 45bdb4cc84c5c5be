/* SPDX-License-Identifier: MIT */

/*
 * A layer of the Llama family and its relatives, which differ in data, not in shape: biases and head
 * norms are there or not.
 */

#include "daemon/model/pass.h"

static int rope_and_cache(const struct pass *s, uint32_t layer)
{
	const struct model_config *c = &s->model->config;

	return s->ops->rope_and_cache(s->stream,
		&(struct op_rope_and_cache){
			.qkv = s->b->qkv,
			.positions = s->pass->inputs->positions,
			.slot_mapping = s->pass->inputs->slot_mapping,
			.cos_sin = s->model->cos_sin,
			.max_positions = s->model->max_positions,
			.q_norm = s->model->layers[layer].q_norm,
			.k_norm = s->model->layers[layer].k_norm,
			.eps = c->rms_norm_eps,
			.kv = s->pass->kv_layers[layer],
			.n_tokens = s->pass->n_tokens,
			.n_heads = c->n_heads,
			.n_kv_heads = c->n_kv_heads,
			.head_dim = c->head_dim,
			.page_tokens = s->pass->page_tokens,
		});
}

int llama_attention(const struct pass *s, uint32_t layer, const void *x)
{
	const struct model_config *c = &s->model->config;
	const struct model_layer *l = &s->model->layers[layer];
	int rc = pass_gemm(s, x, &l->qkv, &l->qkv_bias, s->b->qkv);

	if (!rc)
		rc = rope_and_cache(s, layer);
	if (!rc)
		rc = pass_attend(s, layer, (c->n_heads + 2 * c->n_kv_heads) * c->head_dim);
	return rc ? rc : pass_gemm(s, s->b->attention, &l->o, &l->o_bias, s->b->projected);
}

int llama_layer(const struct pass *s, uint32_t layer)
{
	const struct model_layer *l = &s->model->layers[layer];
	int rc = pass_input_norm(s, layer);

	if (!rc)
		rc = llama_attention(s, layer, s->b->normed);
	if (!rc)
		rc = pass_add_norm(s, &l->post_norm);
	return rc ? rc : pass_mlp(s, l);
}
