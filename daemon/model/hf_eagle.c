/* SPDX-License-Identifier: MIT */

/*
 * What config.json of a draft has beside a Llama's fields, by the names that published heads use
 * (those of SafeAILab, SpecForge and NVIDIA). What would change the arithmetic, and is not done
 * here, is refused.
 */

#include <errno.h>

#include "daemon/model/error.h"
#include "daemon/model/hf_config.h"

/* ---- what is refused ---- */

static int refuse_true(const struct field_object *object, const char *key)
{
	bool set;
	int rc = field_bool(object, key, false, &set);

	if (rc || !set)
		return rc;
	return model_fail(object->error, -ENOTSUP, "%s: %s%s is not supported", object->file,
		object->prefix, key);
}

static int check_plain(const struct field_object *root, const struct model_config *config)
{
	static const char *const variants[] = {"add_para_norm", "norm_before_residual",
		"norm_before_fc", "parallel_drafting"};
	double scale = 1;
	uint32_t hidden;
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof(variants) / sizeof(variants[0]); i++)
		rc = refuse_true(root, variants[i]);
	if (!rc)
		rc = field_real(root, "logit_scale", -1e9, 1e9, 1, &scale);
	if (!rc && scale != 1)
		rc = model_fail(root->error, -ENOTSUP,
			"%s: logit_scale %g is not supported, only 1 is", root->file, scale);
	if (!rc)
		rc = field_u32(root, "target_hidden_size", 1, HF_WIDTH_MAX, config->hidden_size,
			&hidden);
	if (!rc && hidden != config->hidden_size)
		rc = model_fail(root->error, -ENOTSUP,
			"%s: target_hidden_size %u is not hidden_size %u", root->file, hidden,
			config->hidden_size);
	if (!rc && config->n_layers != 1)
		rc = model_fail(root->error, -ENOTSUP,
			"%s: num_hidden_layers %u: a draft with more layers than one is not "
			"supported",
			root->file, config->n_layers);
	return rc;
}

/* ---- EAGLE-3 ---- */

/* An absent or empty list is the usual layers. */
static int parse_layers(const struct field_object *object, struct model_draft *draft)
{
	const char *key = "eagle_aux_hidden_state_layer_ids";
	const json_t *list = json_object_get(object->json, key);

	if (!list || json_is_null(list) || (json_is_array(list) && !json_array_size(list)))
		return 0;
	if (!json_is_array(list) || json_array_size(list) != MODEL_FEATURES)
		return model_fail(object->error, -ENOTSUP,
			"%s: %s%s is not a list of %u layers", object->file, object->prefix, key,
			MODEL_FEATURES);
	for (uint32_t i = 0; i < MODEL_FEATURES; i++) {
		const json_t *layer = json_array_get(list, i);

		if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
			json_integer_value(layer) > INT32_MAX)
			return model_fail(object->error, -EINVAL, "%s: %s%s[%u] is no layer",
				object->file, object->prefix, key, i);
		draft->layers[i] = (uint32_t)json_integer_value(layer);
	}
	draft->names_layers = true;
	return 0;
}

static int parse_eagle3(const struct field_object *root, struct model_draft *draft)
{
	struct field_object eagle;
	bool uses_features = true;
	int rc = field_member(root, "eagle_config", "eagle_config.", &eagle);

	if (!rc && eagle.json)
		rc = field_bool(&eagle, "use_aux_hidden_state", true, &uses_features);
	if (!rc && !uses_features)
		rc = model_fail(root->error, -ENOTSUP,
			"%s: eagle_config.use_aux_hidden_state false is not supported", root->file);
	if (!rc)
		rc = parse_layers(root, draft);
	if (!rc && eagle.json)
		rc = parse_layers(&eagle, draft);
	return rc;
}

int hf_eagle_parse(const struct field_object *root, struct model_config *config)
{
	struct model_draft *draft = &config->draft;
	int rc = check_plain(root, config);

	if (!rc)
		rc = field_u32(root, "draft_vocab_size", 1, config->vocab_size,
			config->vocab_size, &draft->vocab_size);
	if (rc || config->family == MODEL_EAGLE3)
		return rc ? rc : parse_eagle3(root, draft);
	if (draft->vocab_size != config->vocab_size)
		return model_fail(root->error, -ENOTSUP,
			"%s: draft_vocab_size %u is not vocab_size %u, and an EAGLE draft has its "
			"target's head",
			root->file, draft->vocab_size, config->vocab_size);
	return 0;
}
