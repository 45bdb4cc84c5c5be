/* SPDX-License-Identifier: MIT */
#include "daemon/model/pass.h"

/* ---- buffers ---- */

static void carve_latent(const struct model_config *config, size_t max_tokens, size_t act,
	struct arena *arena, struct model_buffers *ret)
{
	const struct attention_latent *l = &config->latent;

	ret->qkv = arena_take(
		arena, max_tokens, (size_t)config->n_heads * (l->nope + l->rope) * act);
	ret->kv_a = arena_take(arena, max_tokens, ((size_t)l->rank + l->rope) * act);
	if (config->q_rank)
		ret->q_a = arena_take(arena, max_tokens, config->q_rank * act);
}

static void carve_heads(const struct model_config *config, size_t max_tokens, size_t act,
	struct arena *arena, struct model_buffers *ret)
{
	size_t q = (size_t)config->n_heads * config->head_dim * act;
	size_t kv = (size_t)config->n_kv_heads * config->head_dim * act;

	ret->qkv = arena_take(arena, max_tokens, q + 2 * kv);
}

static void carve_experts(const struct model_config *config, size_t max_tokens, size_t act,
	struct arena *arena, struct model_buffers *ret)
{
	const struct model_experts *e = &config->experts;
	size_t pairs = max_tokens * e->n_active, inner = e->intermediate_size * act;

	ret->router = arena_take(arena, max_tokens, e->n * sizeof(float));
	ret->experts = arena_take(arena, pairs, sizeof(int32_t));
	ret->expert_weights = arena_take(arena, pairs, sizeof(float));
	ret->expert_start = arena_take(arena, e->n + 1, sizeof(int32_t));
	ret->pairs = arena_take(arena, pairs, sizeof(int32_t));
	ret->expert_gate_up = arena_take(arena, pairs, 2 * inner);
	ret->expert_activated = arena_take(arena, pairs, inner);
	ret->expert_out = arena_take(arena, pairs, config->hidden_size * act);
}

/* The widest of a layer's one MLP, or of its shared experts'. */
static size_t inner_size(const struct model_config *config)
{
	size_t shared = (size_t)config->experts.n_shared * config->experts.intermediate_size;

	return shared > config->intermediate_size ? shared : config->intermediate_size;
}

void model_buffers_carve(const struct model_config *config, uint32_t max_tokens, uint32_t max_rows,
	enum dtype activation_dtype, struct arena *arena, struct model_buffers *ret)
{
	size_t act = dtype_bytes(activation_dtype), hidden = config->hidden_size * act;
	size_t inner = inner_size(config) * act;

	*ret = (struct model_buffers){
		.residual = arena_take(arena, max_tokens, hidden),
		.normed = arena_take(arena, max_tokens, hidden),
		.projected = arena_take(arena, max_tokens, hidden),
		.gate_up = arena_take(arena, max_tokens, 2 * inner),
		.activated = arena_take(arena, max_tokens, inner),
	};
	ret->attention = arena_take(arena, max_tokens, model_attention_width(config) * act);
	if (config->latent.rank)
		carve_latent(config, max_tokens, act, arena, ret);
	else
		carve_heads(config, max_tokens, act, arena, ret);
	if (config->experts.n)
		carve_experts(config, max_tokens, act, arena, ret);
	if (config->draft.vocab_size)
		ret->fused = arena_take(arena, max_tokens, 2 * hidden);
	if (config->family == MODEL_EAGLE3)
		ret->features = arena_take(arena, max_tokens, MODEL_FEATURES * hidden);
	ret->last_hidden = arena_take(arena, max_rows, hidden);
	ret->logits = arena_take(arena, max_rows,
		(config->draft.vocab_size ? config->draft.vocab_size : config->vocab_size) *
			sizeof(float));
}

/* ---- pieces of a layer ---- */

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

/* ---- a pass ---- */

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

static int embed(const struct pass *s)
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

int model_forward(const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	const struct pass state = pass_begin(model, stream, pass);
	int rc = embed(&state);

	for (uint32_t layer = 0; !rc && layer < model->config.n_layers; layer++)
		rc = model->config.latent.rank ? deepseek_layer(&state, layer)
					       : llama_layer(&state, layer);
	return rc ? rc : pass_add_norm(&state, &model->final_norm);
}

int model_logits(const struct model *model, struct stream *stream, const struct model_pass *pass)
{
	const struct pass state = pass_begin(model, stream, pass), *s = &state;
	const uint32_t n_rows =
		s->pass->n_rows * (s->pass->last_only ? 1 : 1 + s->pass->inputs->max_drafts);
	int rc = s->ops->gather_rows(s->stream,
		&(struct op_gather_rows){
			.x = s->b->normed,
			.index = s->pass->inputs->logit_index,
			.out = s->b->last_hidden,
			.n_rows = n_rows,
			.x_rows = s->pass->n_tokens,
			.cols = s->model->config.hidden_size,
		});

	return rc ? rc : pass_head(s, s->b->last_hidden, n_rows);
}
