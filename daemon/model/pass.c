/* SPDX-License-Identifier: MIT */
#include "daemon/model/pass.h"

#include <assert.h>
#include <errno.h>

struct pass pass_begin(
	const struct model *model, struct stream *stream, const struct model_pass *args)
{
	assert(args->n_tokens <= args->inputs->max_tokens);
	assert(args->n_rows <= args->inputs->max_rows);
	return (struct pass){
		.model = model,
		.ops = model->device->kernels,
		.stream = stream,
		.args = args,
		.b = args->buffers,
	};
}

void pass_gemm(struct pass *p, const void *x, const struct weight *w, const struct weight *bias,
	void *y)
{
	PASS_OP(p, gemm,
		.x = x,
		.w = *w,
		.bias = *bias,
		.y = y,
		.y_dtype = p->model->activation_dtype,
		.n_rows = p->args->n_tokens,
		.invariant = p->model->deterministic);
}

void pass_add_gemm(struct pass *p, const void *x, const struct weight *w, const struct weight *bias)
{
	PASS_OP(p, gemm,
		.x = x,
		.w = *w,
		.bias = *bias,
		.y = p->b->residual,
		.y_dtype = p->model->activation_dtype,
		.n_rows = p->args->n_tokens,
		.invariant = p->model->deterministic,
		.add = true);
}

void pass_norm(struct pass *p, const void *x, const struct weight *weight, float eps, void *out)
{
	PASS_OP(p, rms_norm,
		.x = x,
		.weight = *weight,
		.out = out,
		.n_rows = p->args->n_tokens,
		.eps = eps);
}

static void pass_norm_in_order(struct pass *p, const struct weight *weight, const uint32_t *order)
{
	PASS_OP(p, rms_norm,
		.x = p->b->residual,
		.weight = *weight,
		.out = p->b->normed,
		.n_rows = p->args->n_tokens,
		.eps = p->model->config.rms_norm_eps,
		.order = order);
}

void pass_norm_residual(struct pass *p, const struct weight *weight)
{
	pass_norm_in_order(p, weight, NULL);
}

void pass_add_norm(struct pass *p, const void *x, const struct weight *weight)
{
	PASS_OP(p, rms_norm,
		.x = x,
		.weight = *weight,
		.out = p->b->residual,
		.n_rows = p->args->n_tokens,
		.eps = p->model->config.rms_norm_eps,
		.add = true);
}

void model_feature_layers(const struct model_config *target, uint32_t ret[MODEL_FEATURES])
{
	assert(target->n_layers >= 3);
	ret[0] = 2;
	ret[1] = target->n_layers / 2;
	ret[2] = target->n_layers - 3;
}

static void pass_keep_features(struct pass *p, uint32_t layer)
{
	const uint32_t hidden = p->model->config.hidden_size;
	const size_t bytes = hidden * dtype_bytes(p->model->activation_dtype);
	uint32_t layers[MODEL_FEATURES];

	model_feature_layers(&p->model->config, layers);
	for (uint32_t i = 0; i < MODEL_FEATURES; i++) {
		if (layers[i] == layer)
			PASS_OP(p, gather_rows,
				.x = p->b->residual,
				.out = (uint8_t *)p->args->features + i * bytes,
				.n_rows = p->args->n_tokens,
				.x_rows = p->args->n_tokens,
				.cols = hidden,
				.out_stride = MODEL_FEATURES * hidden);
	}
}

void pass_begin_layer(struct pass *p, uint32_t layer)
{
	if (p->args->features)
		pass_keep_features(p, layer);
}

/* y = the product of norm(residual), in one launch where the device has one for so few tokens; false: it has none. */
static bool pass_norm_gemm_at_once(struct pass *p, const struct weight *norm, const uint32_t *order,
	const struct weight *w, const struct weight *bias, void *gate_up, void *y)
{
	const struct op_norm_gemm op = {
		.x = p->b->residual,
		.norm = *norm,
		.eps = p->model->config.rms_norm_eps,
		.w = *w,
		.bias = *bias,
		.gate_up = gate_up,
		.y = y,
		.n_rows = p->args->n_tokens,
	};
	int rc;

	if (p->rc || !p->ops->norm_gemm || p->model->deterministic || order)
		return false;
	rc = p->ops->norm_gemm(p->stream, &op);
	if (rc == -ENOTSUP)
		return false;
	p->rc = rc;
	return true;
}

void pass_norm_gemm(struct pass *p, const struct weight *norm, const uint32_t *order, const struct weight *w,
	const struct weight *bias, void *y)
{
	if (pass_norm_gemm_at_once(p, norm, order, w, bias, NULL, y))
		return;
	pass_norm_in_order(p, norm, order);
	pass_gemm(p, p->b->normed, w, bias, y);
}

const int32_t *pass_slot_mapping(const struct pass *p, uint32_t layer)
{
	const struct step_inputs *in = p->args->inputs;

	return in->slot_mapping + (p->args->sets ? p->args->sets[layer] * (size_t)in->max_tokens : 0);
}

static const int32_t *pass_block_table(const struct pass *p, uint32_t layer)
{
	const struct step_inputs *in = p->args->inputs;

	return in->block_table + (p->args->sets ? p->args->sets[layer] * (size_t)in->max_rows * in->max_pages : 0);
}

void pass_attend(struct pass *p, uint32_t layer, uint32_t q_stride)
{
	const struct model_pass *a = p->args;
	const struct attention_args args = {
		.layer = layer,
		.q = p->b->qkv,
		.q_stride = q_stride,
		.kv = a->kv_layers[layer],
		.factors = p->model->layers[layer].kv_factors,
		.block_table = pass_block_table(p, layer),
		.out = p->b->attention,
		.kv_b = &p->model->layers[layer].kv_b,
	};

	if (p->rc)
		return;
	p->rc = a->attend ? a->attend(a->attend_userdata, &args)
			  : a->attention->run(a->metadata, p->stream, &args);
}

static void pass_gather(struct pass *p, const void *x, const int32_t *index, uint32_t x_rows, uint32_t cols, void *out)
{
	PASS_OP(p, gather_rows,
		.x = x,
		.index = index,
		.out = out,
		.n_rows = p->args->n_last,
		.x_rows = x_rows,
		.cols = cols);
}

const void *pass_attended(struct pass *p, uint32_t layer)
{
	const struct model_config *c = &p->model->config;
	const struct model_pass *a = p->args;
	const int32_t *index = a->inputs->logit_index;

	if (!a->n_last || layer + 1 < c->n_layers)
		return p->b->attention;
	assert(a->n_last <= a->n_tokens);
	pass_gather(p, p->b->attention, index, a->n_tokens, model_attention_width(c), p->b->qkv);
	pass_gather(p, p->b->residual, index, a->n_tokens, c->hidden_size, p->b->normed);
	pass_gather(p, p->b->normed, NULL, a->n_last, c->hidden_size, p->b->residual);
	/* slot_mapping stays that of the first n_last tokens: a pass without a graph has no padding, so none of them is
	 * -1, and experts read nothing else of it. */
	p->last = *a;
	p->last.n_tokens = a->n_last;
	p->args = &p->last;
	return p->b->qkv;
}

static void pass_gated_gemm(struct pass *p, const struct model_layer *layer)
{
	PASS_OP(p, gated_gemm,
		.x = p->b->normed,
		.w = layer->gate_up,
		.bias = layer->gate_up_bias,
		.gate_up = p->b->gate_up,
		.y = p->b->activated,
		.n_rows = p->args->n_tokens,
		.invariant = p->model->deterministic);
}

void pass_mlp(struct pass *p, const struct model_layer *layer)
{
	pass_gated_gemm(p, layer);
	pass_add_gemm(p, p->b->activated, &layer->down, &layer->down_bias);
}

void pass_norm_mlp(struct pass *p, const struct model_layer *layer)
{
	if (!pass_norm_gemm_at_once(p, &layer->post_norm, layer->post_order, &layer->gate_up, &layer->gate_up_bias,
		    p->b->gate_up, p->b->activated)) {
		pass_norm_in_order(p, &layer->post_norm, layer->post_order);
		pass_gated_gemm(p, layer);
	}
	pass_add_gemm(p, p->b->activated, &layer->down, &layer->down_bias);
}

void pass_head(struct pass *p, const void *x, const int32_t *index, uint32_t n_rows)
{
	if (index)
		PASS_OP(p, gather_rows,
			.x = x,
			.index = index,
			.out = p->b->last_hidden,
			.n_rows = n_rows,
			.x_rows = p->args->n_tokens,
			.cols = p->model->config.hidden_size);
	PASS_OP(p, gemm,
		.x = index ? p->b->last_hidden : x,
		.w = p->model->head,
		.y = p->b->logits,
		.y_dtype = DTYPE_F32,
		.n_rows = n_rows,
		.invariant = p->model->deterministic);
	if (p->model->config.logit_cap != 0)
		PASS_OP(p, soft_cap,
			.x = p->b->logits,
			.n = (uint64_t)n_rows * p->model->head.rows,
			.cap = p->model->config.logit_cap);
}
