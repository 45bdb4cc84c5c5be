/* SPDX-License-Identifier: MIT */

/* quantization_config of compressed-tensors: groups of modules, the weights of each with a scheme of their own. */

#include "daemon/model/hf_compressed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/hf_rules.h"

#define N_RULES(rules) (sizeof(rules) / sizeof((rules)[0]))
#define GROUPS "quantization_config.config_groups."
#define FORMATS "\"float-quantized\"|\"naive-quantized\"|\"pack-quantized\""
#define MIXED "mixed-precision" /* each group has its format */

/* Members that say what other numbers than the weights are quantised to. */
static void hf_compressed_check_inputs(const struct field_object *group)
{
	static const struct hf_rule rules[] = {
		{"num_bits", "8", true},
		{"type", "\"float\"|\"int\"", true},
		{"symmetric", NULL, false},
		{"strategy", NULL, false},
		{"group_size", NULL, false},
		{"block_structure", NULL, false},
		{"dynamic", NULL, false},
		{"actorder", NULL, false},
		{"scale_dtype", NULL, false},
		{"zp_dtype", NULL, false},
		{"observer", NULL, false},
		{"observer_kwargs", NULL, false},
	};
	char prefix[192];
	struct field_object inputs;

	snprintf(prefix, sizeof(prefix), "%sinput_activations.", group->prefix);
	inputs = field_member(group, "input_activations", prefix);
	if (inputs.json)
		hf_rules_check(&inputs, rules, N_RULES(rules));
}

static void hf_compressed_parse_float(const struct field_object *weights, struct quantisation_scheme *ret)
{
	static const struct hf_rule rules[] = {
		{"num_bits", "8", true},
		{"type", "\"float\"", true},
		{"symmetric", "true", false},
		{"strategy", "\"channel\"|\"tensor\"|\"block\"", true},
		{"group_size", "-1", false},
		{"block_structure", NULL, false},
		{"dynamic", "false", false},
		{"actorder", "false", false},
		{"scale_dtype", NULL, false},
		{"zp_dtype", NULL, false},
		{"observer", NULL, false},
		{"observer_kwargs", NULL, false},
	};
	const char *strategy = field_string(weights, "strategy", "");

	hf_rules_check(weights, rules, N_RULES(rules));
	ret->method = QUANTISATION_FP8;
	if (!strcmp(strategy, "block"))
		hf_rules_block(weights, "block_structure", &ret->block_rows, &ret->block_cols);
	else
		ret->block_rows = !strcmp(strategy, "channel");
}

static void hf_compressed_parse_packed(const struct field_object *weights, struct quantisation_scheme *ret)
{
	static const struct hf_rule rules[] = {
		{"num_bits", "4", true},
		{"type", "\"int\"", true},
		{"symmetric", "true|false", false},
		{"strategy", "\"channel\"|\"group\"", true},
		{"group_size", NULL, false},
		{"block_structure", "[]", false},
		{"dynamic", "false", false},
		{"actorder", "false|\"weight\"|\"static\"|\"group\"|\"dynamic\"", false},
		{"scale_dtype", NULL, false},
		{"zp_dtype", NULL, false},
		{"observer", NULL, false},
		{"observer_kwargs", NULL, false},
	};
	const char *order;

	hf_rules_check(weights, rules, N_RULES(rules));
	if (weights->file->rc)
		return;
	order = json_string_value(json_object_get(weights->json, "actorder"));
	ret->method = QUANTISATION_PACKED;
	ret->block_rows = 1;
	ret->symmetric = field_bool(weights, "symmetric", true);
	ret->needs_groups = order && (!strcmp(order, "group") || !strcmp(order, "dynamic"));
	if (!strcmp(field_string(weights, "strategy", ""), "channel"))
		return;
	if (field_state(weights, "group_size") != FIELD_THERE)
		field_fail(weights, -EINVAL, "group_size is missing");
	ret->block_cols = hf_rules_group(weights, "group_size");
}

static void hf_compressed_parse_group(const struct field_object *groups, const char *name,
	const char *format, struct quantisation_scheme *ret)
{
	static const struct hf_rule rules[] = {
		{"targets", NULL, true},
		{"weights", NULL, true},
		{"input_activations", NULL, false},
		{"format", FORMATS, false},
	};
	char prefix[128], weights_prefix[160];
	struct field_object group, weights;

	snprintf(prefix, sizeof(prefix), GROUPS "%.64s.", name);
	snprintf(weights_prefix, sizeof(weights_prefix), "%sweights.", prefix);
	group = field_member(groups, name, prefix);
	weights = field_member(&group, "weights", weights_prefix);
	hf_rules_check(&group, rules, N_RULES(rules));
	if (group.file->rc)
		return;
	format = field_string(&group, "format", format);
	if (!strcmp(format, MIXED))
		field_fail(&group, -EINVAL, "format is missing, and that of all is \"" MIXED "\"");
	hf_compressed_check_inputs(&group);
	if (!strcmp(format, "pack-quantized"))
		hf_compressed_parse_packed(&weights, ret);
	else
		hf_compressed_parse_float(&weights, ret);
	ret->targets.exact = true;
	hf_rules_modules(&group, "targets", &ret->targets);
	ret->targets_all = modules_match_kind(&ret->targets, false, "Linear", NULL) == MODULES_YES;
}

/* It has to leave the weights dense. */
static void hf_compressed_check_sparsity(const struct field_object *object)
{
	const json_t *sparsity = json_object_get(object->json, "sparsity_config");
	const char *format = json_string_value(json_object_get(sparsity, "format"));

	if (!sparsity || json_is_null(sparsity) ||
		(json_is_object(sparsity) && !json_object_size(sparsity)) ||
		(format && !strcmp(format, "dense")))
		return;
	hf_rules_refuse(object, "sparsity_config", sparsity);
}

void hf_compressed_parse(const struct field_object *object, struct quantisation *ret)
{
	static const struct hf_rule rules[] = {
		{"quant_method", NULL, true},
		{"format", FORMATS "|\"" MIXED "\"", true},
		{"quantization_status", "\"compressed\"|\"frozen\"", false},
		{"config_groups", NULL, true},
		{"ignore", NULL, false},
		{"global_compression_ratio", NULL, false},
		{"sparsity_config", NULL, false},
		{"transform_config", "{}", false},
		{"run_compressed", NULL, false},
		{"kv_cache_scheme", NULL, false},
		{"version", NULL, false},
	};
	const struct field_object groups = field_member(object, "config_groups", GROUPS);
	const char *name;
	json_t *group;

	hf_rules_check(object, rules, N_RULES(rules));
	hf_compressed_check_sparsity(object);
	if (object->file->rc)
		return;
	if (!json_object_size(groups.json) || json_object_size(groups.json) > QUANTISATION_SCHEMES_MAX) {
		field_fail(object, -ENOTSUP, "config_groups has %zu groups, not 1 to %u", json_object_size(groups.json),
			QUANTISATION_SCHEMES_MAX);
		return;
	}
	json_object_foreach((json_t *)groups.json, name, group)
		hf_compressed_parse_group(
			&groups, name, field_string(object, "format", ""), &ret->schemes[ret->n_schemes++]);
	ret->excluded_key = "quantization_config.ignore";
	ret->excluded.exact = true;
	hf_rules_modules(object, "ignore", &ret->excluded);
}
