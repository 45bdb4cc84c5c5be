/* SPDX-License-Identifier: MIT */

/*
 * A layer of DeepSeek V2 and V3: latent attention (arXiv:2405.04434), then one MLP, or experts. The attention
 * backend gets queries as they are and W_UK, W_UV, and may absorb or expand them.
 */

#include "daemon/model/pass.h"

#define LATENT_EPS 1e-6f /* of the latents' norms, whatever rms_norm_eps says */

static void deepseek_project_query(struct pass *p, const struct model_layer *l)
{
	const struct weight none = {0};

	if (!l->q_a.data) {
		pass_gemm(p, p->b->normed, &l->q, &none, p->b->qkv);
		return;
	}
	pass_gemm(p, p->b->normed, &l->q_a, &l->q_a_bias, p->b->q_a);
	pass_norm(p, p->b->q_a, &l->q_a_norm, LATENT_EPS, p->b->q_a);
	pass_gemm(p, p->b->q_a, &l->q, &none, p->b->qkv);
}

static void deepseek_attention(struct pass *p, uint32_t layer)
{
	const struct model_config *c = &p->model->config;
	const struct model_layer *l = &p->model->layers[layer];

	deepseek_project_query(p, l);
	pass_gemm(p, p->b->normed, &l->kv_a, &l->kv_a_bias, p->b->kv_a);
	PASS_OP(p, mla_rope_and_cache,
		.q = p->b->qkv,
		.kv_a = p->b->kv_a,
		.positions = p->args->inputs->positions,
		.slot_mapping = p->args->inputs->slot_mapping,
		.cos_sin = p->model->cos_sin,
		.max_positions = p->model->max_positions,
		.norm = l->kv_a_norm,
		.eps = LATENT_EPS,
		.kv = p->args->kv_layers[layer],
		.n_tokens = p->args->n_tokens,
		.n_heads = c->n_heads,
		.nope = c->latent.nope,
		.rope = c->latent.rope,
		.rank = c->latent.rank,
		.page_tokens = p->args->page_tokens,
		.interleaved = c->rope_interleaved,
		.fp8 = c->kv_fp8,
		.factors = l->kv_factors);
	pass_attend(p, layer, c->n_heads * (c->latent.nope + c->latent.rope));
	pass_add_gemm(p, pass_attended(p, layer), &l->o, &l->o_bias);
}

void deepseek_layer(struct pass *p, uint32_t layer)
{
	const struct model_layer *l = &p->model->layers[layer];

	pass_begin_layer(p, layer);
	pass_norm_residual(p, &l->input_norm);
	deepseek_attention(p, layer);
	pass_norm_feed(p, l);
}
