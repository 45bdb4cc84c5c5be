/* SPDX-License-Identifier: MIT */

/* The fields that Qwen3-MoE adds to config.json. transformers knows the number of experts by two names. */

#include <errno.h>

#include "daemon/model/hf_config.h"

static uint32_t hf_qwen3_moe_parse_count(const struct field_object *root)
{
	const char *key = field_state(root, "num_experts") == FIELD_ABSENT ? "num_local_experts" : "num_experts";

	if (field_state(root, key) != FIELD_THERE)
		field_fail(root, -EINVAL, "num_experts is missing");
	return field_u32(root, key, 0, MODEL_EXPERTS_MAX, 0);
}

static void hf_qwen3_moe_parse_dense(
	const struct field_object *root, const struct model_config *config, struct model_experts *e)
{
	const json_t *list = json_object_get(root->json, "mlp_only_layers");

	if (list && !json_is_null(list) && !json_is_array(list))
		field_fail(root, -EINVAL, "mlp_only_layers is not a list of layers");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *item = json_array_get(list, i);
		json_int_t layer = json_integer_value(item);

		if (!json_is_integer(item))
			field_fail(root, -EINVAL, "mlp_only_layers[%zu] is not an integer", i);
		else if (layer < 0 || layer >= (json_int_t)config->n_layers)
			field_fail(root, -EINVAL, "mlp_only_layers[%zu] %" JSON_INTEGER_FORMAT
				" is not a layer: num_hidden_layers is %u", i, layer, config->n_layers);
		else
			e->layers[layer] = false;
	}
}

/* Whether any layer has experts. */
static bool hf_qwen3_moe_parse_layers(
	const struct field_object *root, const struct model_config *config, struct model_experts *e)
{
	uint32_t step = field_u32(root, "decoder_sparse_step", 1, INT32_MAX, 1);
	bool any = false;

	for (uint32_t layer = 0; layer < config->n_layers; layer++)
		e->layers[layer] = (layer + 1) % step == 0;
	hf_qwen3_moe_parse_dense(root, config, e);
	for (uint32_t layer = 0; layer < config->n_layers; layer++)
		any |= e->layers[layer];
	return any;
}

void hf_qwen3_moe_parse(const struct field_object *root, struct model_config *config)
{
	struct model_experts *e = &config->experts;

	e->n = hf_qwen3_moe_parse_count(root);
	/* A model whose layers are all dense has no experts, and no other field counts. */
	if (!e->n || !hf_qwen3_moe_parse_layers(root, config, e)) {
		*e = (struct model_experts){0};
		return;
	}
	e->n_active = field_u32_needed(root, "num_experts_per_tok", 1, e->n);
	e->intermediate_size = field_u32_needed(root, "moe_intermediate_size", 1, HF_WIDTH_MAX / 64);
	e->n_groups = e->n_groups_active = 1;
	e->score = MOE_SOFTMAX;
	e->normalise = field_bool(root, "norm_topk_prob", false);
	e->scale = 1;
}
