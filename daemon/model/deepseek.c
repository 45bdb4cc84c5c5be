/* SPDX-License-Identifier: MIT */

/*
 * A layer of DeepSeek V2 and V3: latent attention (arXiv:2405.04434), then one MLP, or experts of
 * which each token chooses a few, beside shared ones that every token passes through. The attention
 * backend gets queries as they are and W_UK, W_UV, and may absorb or expand them.
 *
 * The work on experts is sized by the number of tokens and runs on the device, so that a graph
 * replays it whatever is chosen; padding goes to no expert.
 */

#include "daemon/model/pass.h"

#define LATENT_EPS 1e-6f /* of the latents' norms, whatever rms_norm_eps says */

/* ---- attention ---- */

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
	pass_add_gemm(p, p->b->attention, &l->o, &l->o_bias);
}

/* ---- experts ---- */

/* Scores in float32, from the router's weights as they are; then pairs of token and choice. */
static void deepseek_route(struct pass *p, const struct model_layer *l)
{
	const struct model_experts *e = &p->model->config.experts;

	PASS_OP(p, gemm,
		.x = p->b->normed,
		.w = l->router,
		.y = p->b->router,
		.y_dtype = DTYPE_F32,
		.n_rows = p->args->n_tokens);
	PASS_OP(p, moe_route,
		.logits = p->b->router,
		.bias = l->router_bias,
		.slot_mapping = p->args->inputs->slot_mapping,
		.experts = p->b->experts,
		.weights = p->b->expert_weights,
		.n_tokens = p->args->n_tokens,
		.n_experts = e->n,
		.n_active = e->n_active,
		.n_groups = e->n_groups,
		.n_groups_active = e->n_groups_active,
		.score = e->score,
		.group_top_two = e->group_top_two,
		.normalise = e->normalise,
		.scale = e->scale);
	PASS_OP(p, moe_group,
		.experts = p->b->experts,
		.expert_start = p->b->expert_start,
		.pairs = p->b->pairs,
		.n_tokens = p->args->n_tokens,
		.n_active = e->n_active,
		.n_experts = e->n);
}

/* expert_out, by pair. */
static void deepseek_run_experts(struct pass *p, const struct model_layer *l)
{
	const struct model_experts *e = &p->model->config.experts;

	PASS_OP(p, expert_gated_gemm,
		.x = p->b->normed,
		.w = l->expert_gate_up,
		.expert_start = p->b->expert_start,
		.pairs = p->b->pairs,
		.gate_up = p->b->expert_gate_up,
		.y = p->b->expert_activated,
		.n_tokens = p->args->n_tokens,
		.n_active = e->n_active,
		.n_experts = e->n);
	PASS_OP(p, expert_gemm,
		.x = p->b->expert_activated,
		.x_div = 1,
		.w = l->expert_down,
		.expert_start = p->b->expert_start,
		.pairs = p->b->pairs,
		.y = p->b->expert_out,
		.n_tokens = p->args->n_tokens,
		.n_active = e->n_active,
		.n_experts = e->n);
}

static void deepseek_experts(struct pass *p, const struct model_layer *l)
{
	const struct model_config *c = &p->model->config;

	deepseek_route(p, l);
	deepseek_run_experts(p, l);
	if (l->down.data)
		pass_mlp(p, l);
	PASS_OP(p, moe_combine,
		.base = p->b->residual,
		.y = p->b->expert_out,
		.experts = p->b->experts,
		.weights = p->b->expert_weights,
		.out = p->b->residual,
		.n_tokens = p->args->n_tokens,
		.n_active = c->experts.n_active,
		.cols = c->hidden_size);
}

void deepseek_layer(struct pass *p, uint32_t layer)
{
	const struct model_layer *l = &p->model->layers[layer];

	pass_begin_layer(p, layer);
	pass_norm_residual(p, &l->input_norm);
	deepseek_attention(p, layer);
	if (!l->router.data) {
		pass_norm_mlp(p, l);
		return;
	}
	pass_norm_residual(p, &l->post_norm);
	deepseek_experts(p, l);
}
