/* SPDX-License-Identifier: MIT */
#include "daemon/model/pass.h"

struct pass pass_begin(
	const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	return (struct pass){
		.model = model,
		.ops = model->device->kernels,
		.stream = stream,
		.pass = pass,
		.b = pass->buffers,
	};
}

int pass_gemm(const struct pass *s, const void *x, const struct weight *w, const struct weight *bias,
	void *y)
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

int pass_norm(
	const struct pass *s, const void *x, const struct weight *weight, float eps, void *out)
{
	return s->ops->rms_norm(s->stream,
		&(struct op_rms_norm){
			.x = x,
			.weight = *weight,
			.out = out,
			.n_rows = s->pass->n_tokens,
			.eps = eps,
		});
}

int pass_add_norm(const struct pass *s, const struct weight *weight)
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

void model_feature_layers(const struct model_config *target, uint32_t ret[MODEL_FEATURES])
{
	ret[0] = 2;
	ret[1] = target->n_layers / 2;
	ret[2] = target->n_layers - 3;
}

/* The residual is a layer's input once its first norm has added what the layer before left. */
static int keep_features(const struct pass *s, uint32_t layer)
{
	const uint32_t hidden = s->model->config.hidden_size;
	const size_t bytes = hidden * dtype_bytes(s->model->activation_dtype);
	uint32_t layers[MODEL_FEATURES];
	int rc = 0;

	model_feature_layers(&s->model->config, layers);
	for (uint32_t i = 0; !rc && i < MODEL_FEATURES; i++) {
		if (layers[i] == layer)
			rc = s->ops->gather_rows(s->stream,
				&(struct op_gather_rows){
					.x = s->b->residual,
					.out = (uint8_t *)s->pass->features + i * bytes,
					.n_rows = s->pass->n_tokens,
					.x_rows = s->pass->n_tokens,
					.cols = hidden,
					.out_stride = MODEL_FEATURES * hidden,
				});
	}
	return rc;
}

/* The first layer's has nothing to add yet. */
int pass_input_norm(const struct pass *s, uint32_t layer)
{
	const struct weight *weight = &s->model->layers[layer].input_norm;
	int rc = layer ? pass_add_norm(s, weight)
		       : pass_norm(s, s->b->residual, weight, s->model->config.rms_norm_eps,
				 s->b->normed);

	return rc || !s->pass->features ? rc : keep_features(s, layer);
}

int pass_attend(const struct pass *s, uint32_t layer, uint32_t q_stride)
{
	const struct attention_args args = {
		.layer = layer,
		.q = s->b->qkv,
		.q_stride = q_stride,
		.kv = s->pass->kv_layers[layer],
		.out = s->b->attention,
		.kv_b = &s->model->layers[layer].kv_b,
	};

	if (s->pass->attend)
		return s->pass->attend(s->pass->attend_userdata, &args);
	return s->pass->attention->run(s->pass->metadata, s->stream, &args);
}

int pass_mlp(const struct pass *s, const struct model_layer *layer)
{
	int rc = s->ops->gated_gemm(s->stream,
		&(struct op_gated_gemm){
			.x = s->b->normed,
			.w = layer->gate_up,
			.bias = layer->gate_up_bias,
			.gate_up = s->b->gate_up,
			.y = s->b->activated,
			.n_rows = s->pass->n_tokens,
		});

	return rc ? rc
		  : pass_gemm(s, s->b->activated, &layer->down, &layer->down_bias, s->b->projected);
}

int pass_head(const struct pass *s, const void *x, uint32_t n_rows)
{
	return s->ops->gemm(s->stream,
		&(struct op_gemm){
			.x = x,
			.w = s->model->head,
			.y = s->b->logits,
			.y_dtype = DTYPE_F32,
			.n_rows = n_rows,
		});
}
