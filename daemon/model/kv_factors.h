/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_KV_FACTORS_H
#define MIMEO_DAEMON_MODEL_KV_FACTORS_H

/*
 * The factors of a cache in fp8 (struct kv_factors): each layer's self_attn.k_scale and v_scale, as vLLM and
 * compressed-tensors write them. Latent attention has one factor, k_scale. A layer without the tensors has 1.
 */

#include "daemon/model/model.h"
#include "daemon/model/safetensors.h"

/* Set the model's factors, if its config asks for fp8. Refused are a kv_cache_scheme of other numbers (`quantisation`,
 * NULL: there is none), and tensors that are no factors. 0, or -errno with a sentence. */
int kv_factors_read(const struct safetensors *checkpoint, const char *directory,
	const struct quantisation *quantisation, struct model *model, struct model_error *error);
/* Is it the name of a tensor of that kind? */
bool kv_factors_has(const char *name);

#endif
