/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_KV_FACTORS_H
#define MIMEO_DAEMON_MODEL_KV_FACTORS_H

/*
 * The factors of a cache in fp8 (struct kv_factors): each layer's self_attn.k_scale and v_scale, as vLLM and
 * compressed-tensors write them, or self_attn.k_proj.k_scale and v_proj.v_scale, as ModelOpt does. Latent attention has
 * one factor, k_scale. A layer without the tensors has 1, unless kv_cache_scheme says that the files have them (AutoFP8
 * gives them other names, which are not read); ModelOpt's does not.
 */

#include "daemon/model/model.h"
#include "daemon/model/safetensors.h"

enum kv_factors_side { KV_FACTORS_KEYS, KV_FACTORS_VALUES, KV_FACTORS_SIDES };

/* Set the model's factors, if its config asks for fp8. Refused are a kv_cache_scheme of other numbers (`quantisation`,
 * NULL: there is none) or of factors that are not there, and tensors that are no factors. 0, or -errno with a
 * sentence. */
int kv_factors_read(const struct safetensors *checkpoint, const char *directory,
	const struct quantisation *quantisation, struct model *model, struct model_error *error);
/* The tensor of a layer's factor; NULL: it has none. */
const struct safetensors_tensor *kv_factors_find(const struct safetensors *checkpoint,
	const struct model_config *config, uint32_t layer, enum kv_factors_side side);

#endif
