/* SPDX-License-Identifier: MIT */
#include "daemon/model/pass.h"

#include <assert.h>

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

void pass_norm(struct pass *p, const void *x, const struct weight *weight, float eps, void *out)
{
	PASS_OP(p, rms_norm,
		.x = x,
		.weight = *weight,
		.out = out,
		.n_rows = p->args->n_tokens,
		.eps = eps);
}

void pass_add_norm(struct pass *p, const struct weight *weight)
{
	PASS_OP(p, add_rms_norm,
		.x = p->b->projected,
		.residual = p->b->residual,
		.weight = *weight,
		.out = p->b->normed,
		.n_rows = p->args->n_tokens,
		.eps = p->model->config.rms_norm_eps);
}

void model_feature_layers(const struct model_config *target, uint32_t ret[MODEL_FEATURES])
{
	assert(target->n_layers >= 3);
	ret[0] = 2;
	ret[1] = target->n_layers / 2;
	ret[2] = target->n_layers - 3;
}

/* The residual is a layer's input once its first norm has added what the layer before left. */
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

/* The first layer's has nothing to add. */
void pass_input_norm(struct pass *p, uint32_t layer)
{
	const struct weight *weight = &p->model->layers[layer].input_norm;

	if (layer)
		pass_add_norm(p, weight);
	else
		pass_norm(p, p->b->residual, weight, p->model->config.rms_norm_eps, p->b->normed);
	if (p->args->features)
		pass_keep_features(p, layer);
}

void pass_attend(struct pass *p, uint32_t layer, uint32_t q_stride)
{
	const struct model_pass *a = p->args;
	const struct attention_args args = {
		.layer = layer,
		.q = p->b->qkv,
		.q_stride = q_stride,
		.kv = a->kv_layers[layer],
		.out = p->b->attention,
		.kv_b = &p->model->layers[layer].kv_b,
	};

	if (p->rc)
		return;
	p->rc = a->attend ? a->attend(a->attend_userdata, &args)
			  : a->attention->run(a->metadata, p->stream, &args);
}

void pass_mlp(struct pass *p, const struct model_layer *layer)
{
	PASS_OP(p, gated_gemm,
		.x = p->b->normed,
		.w = layer->gate_up,
		.bias = layer->gate_up_bias,
		.gate_up = p->b->gate_up,
		.y = p->b->activated,
		.n_rows = p->args->n_tokens,
		.invariant = p->model->deterministic);
	pass_gemm(p, p->b->activated, &layer->down, &layer->down_bias, p->b->projected);
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
}
