/* SPDX-License-Identifier: MIT */

/*
 * Experts in place of a layer's MLP: each token chooses a few, beside shared ones that every token passes
 * through, where a model has them.
 *
 * The work on experts is sized by the number of tokens and runs on the device, so that a graph
 * replays it whatever is chosen; padding goes to no expert.
 */

#include "daemon/model/pass.h"

/* Scores in float32, from the router's weights as they are; then pairs of token and choice. */
static void experts_route(struct pass *p, const struct model_layer *l)
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
static void experts_run(struct pass *p, const struct model_layer *l)
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

/* residual += the chosen experts of `normed` by weight, and the shared ones */
static void experts_add(struct pass *p, const struct model_layer *l)
{
	const struct model_config *c = &p->model->config;

	experts_route(p, l);
	experts_run(p, l);
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

void pass_norm_feed(struct pass *p, const struct model_layer *layer)
{
	if (!layer->router.data) {
		pass_norm_mlp(p, layer);
		return;
	}
	pass_norm_residual(p, &layer->post_norm);
	experts_add(p, layer);
}
