/* SPDX-License-Identifier: MIT */
#include "daemon/model/model_config.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "attention/layers.h"

_Static_assert(MODEL_LAYERS_MAX <= KV_SETS_LAYERS_MAX && MODEL_LAYERS_MAX <= ATTENTION_LAYERS_MAX,
	"sets and groups of layers have room for all");

void model_config_deinit(struct model_config *config)
{
	if (!config)
		return;
	free(config->windows);
	quantisation_free(config->quantisation);
	*config = (struct model_config){0};
}

bool model_layer_has_experts(const struct model_config *config, uint32_t layer)
{
	assert(layer < MODEL_LAYERS_MAX);
	return config->experts.n && config->experts.layers[layer];
}

/* A row of the cache, of one KV head. */
static uint32_t model_config_kv_dim(const struct model_config *config)
{
	return config->latent.rank ? config->latent.rank + config->latent.rope : config->head_dim;
}

static enum dtype model_config_kv_dtype(
	const struct model_config *config, const struct device_info *info)
{
	return config->kv_fp8 ? DTYPE_E4M3 : info->kv_dtype;
}

/* Stretched, by yarn or otherwise, DeepSeek's models sharpen the softmax as well. */
static float model_config_scale(const struct model_config *config)
{
	double m = 1;

	if (!config->latent.rank)
		return 1.0f / sqrtf(config->query_scalar != 0 ? config->query_scalar : (float)config->head_dim);
	if (config->rope.type != ROPE_DEFAULT && config->rope.mscale_all_dim > 0)
		m = model_yarn_magnitude(config->rope.factor, config->rope.mscale_all_dim);
	return (float)(m * m / sqrt((double)config->latent.nope + config->latent.rope));
}

struct attention_config model_attention(
	const struct model_config *config, const struct device_info *info)
{
	return (struct attention_config){
		.n_layers = config->n_layers,
		.n_heads = config->n_heads,
		.n_kv_heads = config->n_kv_heads,
		.head_dim = model_config_kv_dim(config),
		.latent = config->latent,
		.scale = model_config_scale(config),
		.soft_cap = config->score_cap,
		.windows = config->windows,
		.max_decode_query = 1,
		.activation_dtype = info->activation_dtype,
		.kv_dtype = model_config_kv_dtype(config, info),
	};
}

struct kv_config model_kv(
	const struct model_config *config, const struct device_info *info, uint32_t page_tokens)
{
	return (struct kv_config){
		.n_layers = config->n_layers,
		.n_kv_heads = config->n_kv_heads,
		.head_dim = model_config_kv_dim(config),
		.page_tokens = page_tokens,
		.dtype = model_config_kv_dtype(config, info),
		.keys_only = config->latent.rank != 0,
	};
}

void model_kv_sets(const struct model_config *config, uint32_t max_seq_len, uint32_t page_tokens, bool has_draft,
	struct kv_sets *ret)
{
	kv_sets_divide(has_draft ? NULL : config->windows, config->n_layers, max_seq_len, page_tokens, ret);
}
