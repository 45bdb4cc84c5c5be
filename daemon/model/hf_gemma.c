/* SPDX-License-Identifier: MIT */

/* The fields that Gemma 2 and 3 add to config.json, and what their classes do without a field. */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "daemon/model/hf_config.h"

#define QUERY_SCALAR_DEFAULT 256.0
#define SCORE_CAP_DEFAULT 50.0
#define LOGIT_CAP_DEFAULT 30.0
#define LOCAL_THETA_DEFAULT 10000.0
#define PATTERN_DEFAULT 6

/* null: no cap. */
static float hf_gemma_parse_cap(const struct field_object *root, const char *key, double absent)
{
	return (float)field_real(root, key, 1e-3, 1e6, field_state(root, key) == FIELD_NULL ? 0 : absent);
}

static void hf_gemma_parse_common(const struct field_object *root, struct model_config *config)
{
	const char *act = field_string(root, "hidden_activation", "gelu_pytorch_tanh");

	if (strcmp(act, "gelu_pytorch_tanh"))
		field_fail(root, -ENOTSUP, "hidden_activation \"%.64s\" is not gelu_pytorch_tanh", act);
	if (field_bool(root, "use_bidirectional_attention", false))
		field_fail(root, -ENOTSUP, "use_bidirectional_attention true is not supported");
	config->norms_add_one = true;
	config->embedding_scale = (float)sqrt(config->hidden_size);
	config->query_scalar = (float)field_real(root, "query_pre_attn_scalar", 1e-3, 1e6, QUERY_SCALAR_DEFAULT);
}

void hf_gemma2_parse(const struct field_object *root, struct model_config *config)
{
	hf_gemma_parse_common(root, config);
	config->score_cap = hf_gemma_parse_cap(root, "attn_logit_softcapping", SCORE_CAP_DEFAULT);
	config->logit_cap = hf_gemma_parse_cap(root, "final_logit_softcapping", LOGIT_CAP_DEFAULT);
}

void hf_gemma3_parse(const struct field_object *root, struct model_config *config)
{
	hf_gemma_parse_common(root, config);
	/* its class has the field, and no layer of it reads it */
	if (field_state(root, "attn_logit_softcapping") == FIELD_THERE)
		field_fail(root, -ENOTSUP, "attn_logit_softcapping is not supported for Gemma 3");
	config->logit_cap = hf_gemma_parse_cap(root, "final_logit_softcapping", 0);
}

bool hf_gemma3_layer_slides(const struct field_object *root, uint32_t layer)
{
	return (layer + 1) % field_u32(root, "sliding_window_pattern", 1, INT32_MAX, PATTERN_DEFAULT) != 0;
}

/* ---- rope: that of layers with a window has a base of its own, and is never scaled ---- */

static double hf_gemma3_parse_local(const struct field_object *root, const struct field_object *parameters)
{
	const struct field_object local =
		field_member(parameters, "sliding_attention", "rope_parameters.sliding_attention.");
	const char *type = field_string(&local, "rope_type", "default");

	if (strcmp(type, "default"))
		field_fail(&local, -ENOTSUP, "rope_type \"%.64s\" is not default", type);
	return field_real(&local, "rope_theta", 1.0001, 1e15,
		field_real(root, "rope_local_base_freq", 1.0001, 1e15, LOCAL_THETA_DEFAULT));
}

struct field_object hf_gemma3_rope(
	const struct field_object *root, struct field_object *ret_newer, struct model_config *config)
{
	const struct field_object older = field_member(root, "rope_scaling", "rope_scaling.");
	const char *key;
	json_t *value;

	*ret_newer = field_member(root, "rope_parameters", "rope_parameters.");
	json_object_foreach((json_t *)ret_newer->json, key, value)
	{
		if (strcmp(key, "full_attention") && strcmp(key, "sliding_attention"))
			field_fail(ret_newer, -ENOTSUP,
				"%s is neither full_attention nor sliding_attention: rope settings of Gemma 3 are by "
				"layer type", key);
	}
	config->local_theta = hf_gemma3_parse_local(root, ret_newer);
	*ret_newer = field_member(ret_newer, "full_attention", "rope_parameters.full_attention.");
	return older.json && json_object_size(older.json) > 0 ? older : *ret_newer;
}
