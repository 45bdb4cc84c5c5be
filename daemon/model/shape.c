/* SPDX-License-Identifier: MIT */
#include "daemon/model/model.h"

#include <math.h>

struct attention_config model_attention(
	const struct model_config *config, const struct device_info *info)
{
	return (struct attention_config){
		.n_layers = config->n_layers,
		.n_heads = config->n_heads,
		.n_kv_heads = config->n_kv_heads,
		.head_dim = config->head_dim,
		.scale = 1.0f / sqrtf((float)config->head_dim), /* in all these families */
		.windows = config->windows,
		.max_decode_query = 1,
		.activation_dtype = info->activation_dtype,
		.kv_dtype = info->kv_dtype,
	};
}

struct kv_config model_kv(
	const struct model_config *config, const struct device_info *info, uint32_t page_tokens)
{
	return (struct kv_config){
		.n_layers = config->n_layers,
		.n_kv_heads = config->n_kv_heads,
		.head_dim = config->head_dim,
		.page_tokens = page_tokens,
		.dtype = info->kv_dtype,
	};
}
