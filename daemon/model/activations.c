/* SPDX-License-Identifier: MIT */
#include "daemon/model/transformer.h"

static void activations_carve_latent(const struct model_config *config, size_t max_tokens, size_t act,
	struct arena *arena, struct model_buffers *ret)
{
	const struct attention_latent *l = &config->latent;
	const size_t q = (size_t)config->n_heads * (l->nope + l->rope);
	const size_t attention = model_attention_width(config);

	ret->qkv = arena_take(arena, max_tokens, (q > attention ? q : attention) * act);
	ret->kv_a = arena_take(arena, max_tokens, ((size_t)l->rank + l->rope) * act);
	if (config->q_rank)
		ret->q_a = arena_take(arena, max_tokens, config->q_rank * act);
}

static void activations_carve_heads(const struct model_config *config, size_t max_tokens, size_t act,
	struct arena *arena, struct model_buffers *ret)
{
	size_t q = (size_t)config->n_heads * config->head_dim * act;
	size_t kv = (size_t)config->n_kv_heads * config->head_dim * act;

	ret->qkv = arena_take(arena, max_tokens, q + 2 * kv);
}

static void activations_carve_experts(const struct model_config *config, size_t max_tokens, size_t act,
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
static size_t activations_inner_size(const struct model_config *config)
{
	size_t shared = (size_t)config->experts.n_shared * config->experts.intermediate_size;

	return shared > config->intermediate_size ? shared : config->intermediate_size;
}

void model_buffers_carve(const struct model_config *config, uint32_t max_tokens, uint32_t max_rows,
	enum dtype activation_dtype, struct arena *arena, struct model_buffers *ret)
{
	size_t act = dtype_bytes(activation_dtype), hidden = config->hidden_size * act;
	size_t inner = activations_inner_size(config) * act;

	*ret = (struct model_buffers){
		.residual = arena_take(arena, max_tokens, hidden),
		.normed = arena_take(arena, max_tokens, hidden),
		.gate_up = arena_take(arena, max_tokens, 2 * inner),
		.activated = arena_take(arena, max_tokens, inner),
	};
	ret->attention = arena_take(arena, max_tokens, model_attention_width(config) * act);
	if (config->latent.rank)
		activations_carve_latent(config, max_tokens, act, arena, ret);
	else
		activations_carve_heads(config, max_tokens, act, arena, ret);
	if (config->experts.n)
		activations_carve_experts(config, max_tokens, act, arena, ret);
	if (config->draft.vocab_size)
		ret->fused = arena_take(arena, max_tokens, 2 * hidden);
	if (config->family == MODEL_EAGLE3)
		ret->features = arena_take(arena, max_tokens, MODEL_FEATURES * hidden);
	ret->last_hidden = arena_take(arena, max_rows, hidden);
	ret->logits = arena_take(arena, max_rows,
		(config->draft.vocab_size ? config->draft.vocab_size : config->vocab_size) *
			sizeof(float));
}
