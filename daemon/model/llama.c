/* SPDX-License-Identifier: MIT */

/*
 * The forward pass of the Llama family and its relatives, which differ in data, not in shape:
 * biases and head norms are there or not. The residual stays in one buffer; each norm first adds
 * what the block before it produced.
 */

#include "daemon/model/model.h"
#include "kernels/ops.h"

void model_buffers_carve(const struct model_config *config, uint32_t max_tokens, uint32_t max_rows,
	enum dtype activation_dtype, struct arena *arena, struct model_buffers *ret)
{
	size_t act = dtype_bytes(activation_dtype), hidden = config->hidden_size * act;
	size_t q = (size_t)config->n_heads * config->head_dim * act;
	size_t kv = (size_t)config->n_kv_heads * config->head_dim * act;
	size_t inner = config->intermediate_size * act;

	*ret = (struct model_buffers){
		.residual = arena_take(arena, max_tokens, hidden),
		.normed = arena_take(arena, max_tokens, hidden),
		.qkv = arena_take(arena, max_tokens, q + 2 * kv),
		.attention = arena_take(arena, max_tokens, q),
		.projected = arena_take(arena, max_tokens, hidden),
		.gate_up = arena_take(arena, max_tokens, 2 * inner),
		.activated = arena_take(arena, max_tokens, inner),
		.last_hidden = arena_take(arena, max_rows, hidden),
		.logits = arena_take(arena, max_rows, config->vocab_size * sizeof(float)),
	};
}

struct forward_state {
	const struct model *model;
	const struct kernel_ops *ops;
	struct stream *stream;
	const struct model_pass *pass;
	const struct model_buffers *b;
};

static int gemm(const struct forward_state *s, const void *x, const struct weight *w,
	const struct weight *bias, void *y)
{
	return s->ops->gemm(s->stream,
		&(struct op_gemm){
			.x = x,
			.w = *w,
			.bias = *bias,
			.y = y,
			.y_dtype = s->model->activation_dtype,
			.n_rows = s->pass->n_tokens,
		});
}

/* normed = norm(residual += projected) */
static int add_norm(const struct forward_state *s, const struct weight *weight)
{
	return s->ops->add_rms_norm(s->stream,
		&(struct op_add_rms_norm){
			.x = s->b->projected,
			.residual = s->b->residual,
			.weight = *weight,
			.out = s->b->normed,
			.n_rows = s->pass->n_tokens,
			.eps = s->model->config.rms_norm_eps,
		});
}

static int embed(const struct forward_state *s)
{
	return s->ops->embed(s->stream,
		&(struct op_embed){
			.table = s->model->embedding,
			.ids = s->pass->inputs->input_ids,
			.from = s->pass->inputs->embedding_from,
			.out = s->b->residual,
			.n_tokens = s->pass->n_tokens,
		});
}

/* The first layer's norm has nothing to add yet. */
static int input_norm(const struct forward_state *s, uint32_t layer)
{
	const struct weight *weight = &s->model->layers[layer].input_norm;

	if (layer)
		return add_norm(s, weight);
	return s->ops->rms_norm(s->stream,
		&(struct op_rms_norm){
			.x = s->b->residual,
			.weight = *weight,
			.out = s->b->normed,
			.n_rows = s->pass->n_tokens,
			.eps = s->model->config.rms_norm_eps,
		});
}

static int rope_and_cache(const struct forward_state *s, uint32_t layer)
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

static int attend(const struct forward_state *s, uint32_t layer)
{
	const struct model_config *c = &s->model->config;
	const struct attention_args args = {
		.layer = layer,
		.q = s->b->qkv,
		.q_stride = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim,
		.kv = s->pass->kv_layers[layer],
		.out = s->b->attention,
	};

	if (s->pass->attend)
		return s->pass->attend(s->pass->attend_userdata, &args);
	return s->pass->attention->run(s->pass->metadata, s->stream, &args);
}

static int gate_up(const struct forward_state *s, const struct model_layer *layer)
{
	return s->ops->gated_gemm(s->stream,
		&(struct op_gated_gemm){
			.x = s->b->normed,
			.w = layer->gate_up,
			.bias = layer->gate_up_bias,
			.gate_up = s->b->gate_up,
			.y = s->b->activated,
			.n_rows = s->pass->n_tokens,
		});
}

static int run_layer(const struct forward_state *s, uint32_t layer)
{
	const struct model_layer *l = &s->model->layers[layer];
	int rc = input_norm(s, layer);

	if (!rc)
		rc = gemm(s, s->b->normed, &l->qkv, &l->qkv_bias, s->b->qkv);
	if (!rc)
		rc = rope_and_cache(s, layer);
	if (!rc)
		rc = attend(s, layer);
	if (!rc)
		rc = gemm(s, s->b->attention, &l->o, &l->o_bias, s->b->projected);
	if (!rc)
		rc = add_norm(s, &l->post_norm);
	if (!rc)
		rc = gate_up(s, l);
	return rc ? rc : gemm(s, s->b->activated, &l->down, &l->down_bias, s->b->projected);
}

static struct forward_state begin(
	const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	return (struct forward_state){
		.model = model,
		.ops = model->device->kernels,
		.stream = stream,
		.pass = pass,
		.b = pass->buffers,
	};
}

int model_logits(const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	const struct forward_state state = begin(model, stream, pass), *s = &state;
	const struct model_config *c = &s->model->config;
	const struct op_gather_rows gather = {
		.x = s->b->normed,
		.index = s->pass->inputs->logit_index,
		.out = s->b->last_hidden,
		.n_rows = s->pass->n_rows,
		.x_rows = s->pass->n_tokens,
		.cols = c->hidden_size,
	};
	const struct op_gemm head = {
		.x = s->b->last_hidden,
		.w = s->model->head,
		.y = s->b->logits,
		.y_dtype = DTYPE_F32,
		.n_rows = s->pass->n_rows,
	};
	int rc = s->ops->gather_rows(s->stream, &gather);

	return rc ? rc : s->ops->gemm(s->stream, &head);
}

int model_forward(const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	const struct forward_state state = begin(model, stream, pass);
	int rc = embed(&state);

	for (uint32_t layer = 0; !rc && layer < model->config.n_layers; layer++)
		rc = run_layer(&state, layer);
	return rc ? rc : add_norm(&state, &model->final_norm);
}
