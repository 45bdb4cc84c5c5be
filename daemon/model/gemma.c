/* SPDX-License-Identifier: MIT */

/*
 * A layer of Gemma 2 (arXiv:2408.00118) or Gemma 3 (arXiv:2503.19786): attention and an MLP of gelu, each with a norm
 * before it and one of its output, which is then added to the residual.
 */

#include "daemon/model/pass.h"

/* normed = down(gelu(gate x) * (up x)), x = norm(residual) */
static void gemma_mlp(struct pass *p, const struct model_layer *l)
{
	const struct weight none = {0};

	pass_norm_gemm(p, &l->pre_feed_norm, l->post_order, &l->gate_up, &none, p->b->gate_up);
	PASS_OP(p, silu_mul,
		.gate_up = p->b->gate_up,
		.out = p->b->activated,
		.n_rows = p->args->n_tokens,
		.cols = p->model->config.intermediate_size,
		.gelu = true);
	pass_gemm(p, p->b->activated, &l->down, &none, p->b->normed);
}

void gemma_layer(struct pass *p, uint32_t layer)
{
	const struct model_layer *l = &p->model->layers[layer];

	pass_begin_layer(p, layer);
	pass_norm_gemm(p, &l->input_norm, l->input_order, &l->qkv, &l->qkv_bias, p->b->qkv);
	llama_attend(p, layer);
	pass_gemm(p, pass_attended(p, layer), &l->o, &l->o_bias, p->b->normed);
	pass_add_norm(p, p->b->normed, &l->post_norm);
	gemma_mlp(p, l);
	pass_add_norm(p, p->b->normed, &l->post_feed_norm);
}
