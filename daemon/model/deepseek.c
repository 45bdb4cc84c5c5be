/* SPDX-License-Identifier: MIT */

/*
 * A layer of DeepSeek V2 and V3: latent attention (arXiv:2405.04434), then one MLP, or experts of which
 * each token sees a few, beside shared ones that all see. What the attention backend makes of the
 * cached latents is its own affair: it is given queries as they are and W_UK, W_UV.
 *
 * Everything of the experts is sized by the number of tokens and runs on the device, so that a graph
 * replays it whatever is chosen; padding goes to no expert.
 */

#include "daemon/model/pass.h"

#define LATENT_EPS 1e-6f /* of the latents' norms, whatever rms_norm_eps says */

/* ---- attention ---- */

static int project_query(const struct pass *s, const struct model_layer *l)
{
	const struct weight none = {0};
	int rc;

	if (!l->q_a.data)
		return pass_gemm(s, s->b->normed, &l->q, &none, s->b->qkv);
	rc = pass_gemm(s, s->b->normed, &l->q_a, &l->q_a_bias, s->b->q_a);
	if (!rc)
		rc = pass_norm(s, s->b->q_a, &l->q_a_norm, LATENT_EPS, s->b->q_a);
	return rc ? rc : pass_gemm(s, s->b->q_a, &l->q, &none, s->b->qkv);
}

static int rope_and_cache(const struct pass *s, uint32_t layer)
{
	const struct model_config *c = &s->model->config;

	return s->ops->mla_rope_and_cache(s->stream,
		&(struct op_mla_rope_and_cache){
			.q = s->b->qkv,
			.kv_a = s->b->kv_a,
			.positions = s->pass->inputs->positions,
			.slot_mapping = s->pass->inputs->slot_mapping,
			.cos_sin = s->model->cos_sin,
			.max_positions = s->model->max_positions,
			.norm = s->model->layers[layer].kv_a_norm,
			.eps = LATENT_EPS,
			.kv = s->pass->kv_layers[layer],
			.n_tokens = s->pass->n_tokens,
			.n_heads = c->n_heads,
			.nope = c->latent.nope,
			.rope = c->latent.rope,
			.rank = c->latent.rank,
			.page_tokens = s->pass->page_tokens,
			.interleaved = c->rope_interleaved,
		});
}

static int attention(const struct pass *s, uint32_t layer)
{
	const struct model_config *c = &s->model->config;
	const struct model_layer *l = &s->model->layers[layer];
	int rc = project_query(s, l);

	if (!rc)
		rc = pass_gemm(s, s->b->normed, &l->kv_a, &l->kv_a_bias, s->b->kv_a);
	if (!rc)
		rc = rope_and_cache(s, layer);
	if (!rc)
		rc = pass_attend(s, layer, c->n_heads * (c->latent.nope + c->latent.rope));
	return rc ? rc : pass_gemm(s, s->b->attention, &l->o, &l->o_bias, s->b->projected);
}

/* ---- experts ---- */

/* Scores in float32, from the router's weights as they are. */
static int route(const struct pass *s, const struct model_layer *l)
{
	const struct model_experts *e = &s->model->config.experts;
	int rc = s->ops->gemm(s->stream,
		&(struct op_gemm){
			.x = s->b->normed,
			.w = l->router,
			.y = s->b->router,
			.y_dtype = DTYPE_F32,
			.n_rows = s->pass->n_tokens,
		});

	if (!rc)
		rc = s->ops->moe_route(s->stream,
			&(struct op_moe_route){
				.logits = s->b->router,
				.bias = l->router_bias,
				.slot_mapping = s->pass->inputs->slot_mapping,
				.experts = s->b->experts,
				.weights = s->b->expert_weights,
				.n_tokens = s->pass->n_tokens,
				.n_experts = e->n,
				.n_active = e->n_active,
				.n_groups = e->n_groups,
				.n_groups_active = e->n_groups_active,
				.score = e->score,
				.group_top_two = e->group_top_two,
				.normalise = e->normalise,
				.scale = e->scale,
			});
	return rc ? rc
		  : s->ops->moe_group(s->stream,
			    &(struct op_moe_group){
				    .experts = s->b->experts,
				    .expert_start = s->b->expert_start,
				    .pairs = s->b->pairs,
				    .n_tokens = s->pass->n_tokens,
				    .n_active = e->n_active,
				    .n_experts = e->n,
			    });
}

/* expert_out, by pair. */
static int run_experts(const struct pass *s, const struct model_layer *l)
{
	const struct model_experts *e = &s->model->config.experts;
	int rc = s->ops->expert_gated_gemm(s->stream,
		&(struct op_expert_gated_gemm){
			.x = s->b->normed,
			.w = l->expert_gate_up,
			.expert_start = s->b->expert_start,
			.pairs = s->b->pairs,
			.gate_up = s->b->expert_gate_up,
			.y = s->b->expert_activated,
			.n_tokens = s->pass->n_tokens,
			.n_active = e->n_active,
			.n_experts = e->n,
		});

	return rc ? rc
		  : s->ops->expert_gemm(s->stream,
			    &(struct op_expert_gemm){
				    .x = s->b->expert_activated,
				    .x_div = 1,
				    .w = l->expert_down,
				    .expert_start = s->b->expert_start,
				    .pairs = s->b->pairs,
				    .y = s->b->expert_out,
				    .n_tokens = s->pass->n_tokens,
				    .n_active = e->n_active,
				    .n_experts = e->n,
			    });
}

static int experts(const struct pass *s, const struct model_layer *l)
{
	int rc = route(s, l);

	if (!rc)
		rc = run_experts(s, l);
	if (!rc && l->down.data)
		rc = pass_mlp(s, l);
	return rc ? rc
		  : s->ops->moe_combine(s->stream,
			    &(struct op_moe_combine){
				    .base = l->down.data ? s->b->projected : NULL,
				    .y = s->b->expert_out,
				    .experts = s->b->experts,
				    .weights = s->b->expert_weights,
				    .out = s->b->projected,
				    .n_tokens = s->pass->n_tokens,
				    .n_active = s->model->config.experts.n_active,
				    .cols = s->model->config.hidden_size,
			    });
}

int deepseek_layer(const struct pass *s, uint32_t layer)
{
	const struct model_layer *l = &s->model->layers[layer];
	int rc = pass_input_norm(s, layer);

	if (!rc)
		rc = attention(s, layer);
	if (!rc)
		rc = pass_add_norm(s, &l->post_norm);
	if (rc)
		return rc;
	return l->router.data ? experts(s, l) : pass_mlp(s, l);
}
