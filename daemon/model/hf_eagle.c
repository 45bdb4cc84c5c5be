/* SPDX-License-Identifier: MIT */

/*
 * The fields of a draft model's config.json besides a Llama's, under the names that published draft models
 * use (those of SafeAILab, SpecForge and NVIDIA). A field that would change the arithmetic is refused.
 */

#include <errno.h>

#include "daemon/model/hf_config.h"

static void hf_eagle_refuse_variants(
	const struct field_object *root, const struct model_config *config)
{
	static const char *const variants[] = {"add_para_norm", "norm_before_residual",
		"norm_before_fc", "parallel_drafting"};
	double scale;
	uint32_t hidden;

	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
		if (field_bool(root, variants[i], false))
			field_fail(root, -ENOTSUP, "%s is not supported", variants[i]);
	}
	scale = field_real(root, "logit_scale", -1e9, 1e9, 1);
	if (scale != 1)
		field_fail(root, -ENOTSUP, "logit_scale %g is not supported, only 1 is", scale);
	hidden = field_u32(root, "target_hidden_size", 1, HF_WIDTH_MAX, config->hidden_size);
	if (hidden != config->hidden_size)
		field_fail(root, -ENOTSUP, "target_hidden_size %u is not hidden_size %u", hidden,
			config->hidden_size);
	if (config->n_layers != 1)
		field_fail(root, -ENOTSUP,
			"num_hidden_layers %u: a draft model with more than one layer is not "
			"supported",
			config->n_layers);
}

/* ---- EAGLE-3 ---- */

/* An absent or empty list is the usual layers. */
static void hf_eagle_parse_layers(const struct field_object *object, struct model_draft *draft)
{
	const char *key = "eagle_aux_hidden_state_layer_ids";
	const json_t *list = json_object_get(object->json, key);

	if (!list || json_is_null(list) || (json_is_array(list) && !json_array_size(list)))
		return;
	if (!json_is_array(list) || json_array_size(list) != MODEL_FEATURES) {
		field_fail(object, -ENOTSUP, "%s is not a list of %u layers", key, MODEL_FEATURES);
		return;
	}
	for (uint32_t i = 0; i < MODEL_FEATURES; i++) {
		const json_t *layer = json_array_get(list, i);

		if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
			json_integer_value(layer) > INT32_MAX)
			field_fail(object, -EINVAL, "%s[%u] is not a layer", key, i);
		draft->layers[i] = (uint32_t)json_integer_value(layer);
	}
	draft->names_layers = true;
}

static void hf_eagle_parse_eagle3(const struct field_object *root, struct model_draft *draft)
{
	const struct field_object eagle = field_member(root, "eagle_config", "eagle_config.");

	if (!field_bool(&eagle, "use_aux_hidden_state", true))
		field_fail(&eagle, -ENOTSUP, "use_aux_hidden_state false is not supported");
	hf_eagle_parse_layers(root, draft);
	hf_eagle_parse_layers(&eagle, draft);
}

void hf_eagle_parse(const struct field_object *root, struct model_config *config)
{
	struct model_draft *draft = &config->draft;

	hf_eagle_refuse_variants(root, config);
	draft->vocab_size = field_u32(
		root, "draft_vocab_size", 1, config->vocab_size, config->vocab_size);
	if (config->family == MODEL_EAGLE3)
		hf_eagle_parse_eagle3(root, draft);
	else if (draft->vocab_size != config->vocab_size)
		field_fail(root, -ENOTSUP,
			"draft_vocab_size %u is not vocab_size %u, and an EAGLE draft model uses "
			"its target's head",
			draft->vocab_size, config->vocab_size);
}
