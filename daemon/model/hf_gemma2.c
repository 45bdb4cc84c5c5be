/* SPDX-License-Identifier: MIT */

/* The fields that Gemma 2 adds to config.json, and what its class does without a field. */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "daemon/model/hf_config.h"

#define QUERY_SCALAR_DEFAULT 256.0
#define SCORE_CAP_DEFAULT 50.0
#define LOGIT_CAP_DEFAULT 30.0

/* null: no cap. */
static float hf_gemma2_parse_cap(const struct field_object *root, const char *key, double absent)
{
	return (float)field_real(root, key, 1e-3, 1e6, field_state(root, key) == FIELD_NULL ? 0 : absent);
}

void hf_gemma2_parse(const struct field_object *root, struct model_config *config)
{
	const char *act = field_string(root, "hidden_activation", "gelu_pytorch_tanh");

	if (strcmp(act, "gelu_pytorch_tanh"))
		field_fail(root, -ENOTSUP, "hidden_activation \"%.64s\" is not gelu_pytorch_tanh", act);
	if (field_bool(root, "use_bidirectional_attention", false))
		field_fail(root, -ENOTSUP, "use_bidirectional_attention true is not supported");
	config->norms_add_one = true;
	config->embedding_scale = (float)sqrt(config->hidden_size);
	config->query_scalar = (float)field_real(root, "query_pre_attn_scalar", 1e-3, 1e6, QUERY_SCALAR_DEFAULT);
	config->score_cap = hf_gemma2_parse_cap(root, "attn_logit_softcapping", SCORE_CAP_DEFAULT);
	config->logit_cap = hf_gemma2_parse_cap(root, "final_logit_softcapping", LOGIT_CAP_DEFAULT);
}
