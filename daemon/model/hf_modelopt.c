/* SPDX-License-Identifier: MIT */
#include "daemon/model/hf_modelopt.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/hf_kv.h"
#include "daemon/model/hf_rules.h"

#define N_RULES(rules) (sizeof(rules) / sizeof((rules)[0]))
#define GLOB_MAX 100u /* bytes */
#define PATTERN_MAX (2 * GLOB_MAX + 16)

DEFINE_CLEANUP(quantisation, struct quantisation, quantisation_free)

/* ---- excluded modules: names, and globs with * and ? ---- */

/* The regular expression that matches what fnmatch would, with one exception: a star at the end, behind a layer's
 * number ("layers.1*"), matches the modules within that layer and not layers.10. False: the glob is too long, or has a
 * set of characters. */
static bool hf_modelopt_pattern(const char *glob, char ret[PATTERN_MAX])
{
	const size_t length = strlen(glob);
	const bool is_tree = length >= 2 && glob[length - 1] == '*' && isdigit((unsigned char)glob[length - 2]);
	size_t n = 0;

	if (length > GLOB_MAX || strchr(glob, '['))
		return false;
	n += (size_t)snprintf(ret, PATTERN_MAX, "re:");
	for (size_t i = 0; i < length - is_tree; i++) {
		if (glob[i] == '*')
			ret[n++] = '.';
		else if (glob[i] != '?' && !isalnum((unsigned char)glob[i]) && glob[i] != '_')
			ret[n++] = '\\';
		ret[n++] = glob[i] == '?' ? '.' : glob[i];
	}
	snprintf(ret + n, PATTERN_MAX - n, "%s$", is_tree ? "(\\..*)?" : "");
	return true;
}

static void hf_modelopt_exclude(
	const struct field_object *object, const char *key, const char *text, struct modules *ret)
{
	char pattern[PATTERN_MAX];
	int rc;

	if (!strpbrk(text, "*?["))
		rc = strncmp(text, "re:", 3) ? modules_add(ret, text) : -ENOTSUP;
	else
		rc = hf_modelopt_pattern(text, pattern) ? modules_add(ret, pattern) : -ENOTSUP;
	if (rc == -ENOMEM)
		field_fail(object, rc, "no memory for %s", key);
	else if (rc)
		field_fail(object, rc, "%s has \"%.64s\", which is not supported", key, text);
}

static void hf_modelopt_parse_excluded(
	const struct field_object *object, const char *key, struct quantisation *ret)
{
	const json_t *list = json_object_get(object->json, key);
	const json_t *name;
	size_t i;

	if (!list || json_is_null(list))
		return;
	if (!json_is_array(list)) {
		hf_rules_refuse(object, key, list);
		return;
	}
	json_array_foreach((json_t *)list, i, name)
	{
		if (json_is_string(name))
			hf_modelopt_exclude(object, key, json_string_value(name), &ret->excluded);
		else
			field_fail(object, -EINVAL, "%s[%zu] is not a string", key, i);
	}
}

/* ---- both forms ---- */

#define ALGORITHMS "\"FP8\"|\"fp8\""

/* The only algorithm has a factor a tensor. `excluded`: the list's name with its object's. A file without factors of
 * keys and values wants 1 for them, whatever it says of a cache. */
static void hf_modelopt_take(
	const struct field_object *object, const char *excluded, const char *kv, struct quantisation *ret)
{
	ret->schemes[ret->n_schemes++] =
		(struct quantisation_scheme){.method = QUANTISATION_FP8, .targets_all = true};
	ret->excluded_key = excluded;
	hf_modelopt_parse_excluded(object, strrchr(excluded, '.') + 1, ret);
	hf_kv_parse(object, kv, ret);
	ret->kv_factors = false;
}

/* The members that hf_quant_config.json has, too. */
static void hf_modelopt_parse_nested(const struct field_object *object, struct quantisation *ret)
{
	static const struct hf_rule rules[] = {
		{"quant_algo", ALGORITHMS, true},
		{"kv_cache_quant_algo", NULL, false},
		{"exclude_modules", NULL, false},
		{"group_size", NULL, false}, /* of other algorithms */
	};

	hf_rules_check(object, rules, N_RULES(rules));
	hf_modelopt_take(object, "quantization.exclude_modules", "kv_cache_quant_algo", ret);
}

/* What quant_algo says again. */
static void hf_modelopt_check_groups(const struct field_object *object)
{
	static const struct hf_rule group_rules[] = {
		{"targets", "[\"Linear\"]", false},
		{"weights", NULL, true},
		{"input_activations", NULL, false},
	};
	static const struct hf_rule rules[] = {
		{"num_bits", "8", true},
		{"type", "\"float\"", true},
		{"dynamic", "false", false},
	};
	const struct field_object groups = field_member(object, "config_groups", "quantization_config.config_groups.");
	char prefix[128], weights_prefix[160];
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)groups.json, name, value)
	{
		snprintf(prefix, sizeof(prefix), "%s%.64s.", groups.prefix, name);
		snprintf(weights_prefix, sizeof(weights_prefix), "%sweights.", prefix);
		const struct field_object group = field_member(&groups, name, prefix);
		const struct field_object weights = field_member(&group, "weights", weights_prefix);

		hf_rules_check(&group, group_rules, N_RULES(group_rules));
		hf_rules_check(&weights, rules, N_RULES(rules));
	}
}

void hf_modelopt_parse(const struct field_object *object, struct quantisation *ret)
{
	static const struct hf_rule nested_rules[] = {
		{"quant_method", NULL, true},
		{"producer", NULL, false},
		{"quantization", NULL, true},
	};
	static const struct hf_rule rules[] = {
		{"quant_method", NULL, true},
		{"quant_algo", ALGORITHMS, true},
		{"config_groups", NULL, false},
		{"ignore", NULL, false},
		{"kv_cache_scheme", NULL, false},
		{"producer", NULL, false},
		{"quant_library", NULL, false},
	};
	const struct field_object nested =
		field_member(object, "quantization", "quantization_config.quantization.");

	if (nested.json) {
		hf_rules_check(object, nested_rules, N_RULES(nested_rules));
		hf_modelopt_parse_nested(&nested, ret);
		return;
	}
	hf_rules_check(object, rules, N_RULES(rules));
	hf_modelopt_check_groups(object);
	hf_modelopt_take(object, "quantization_config.ignore", "kv_cache_scheme", ret);
}

int hf_modelopt_parse_file(const char *path, const char *text, size_t bytes, struct quantisation **ret,
	struct model_error *error)
{
	static const struct hf_rule rules[] = {
		{"producer", NULL, false},
		{"quantization", NULL, true},
	};
	CLEANUP(cleanup_quantisation) struct quantisation *q = NULL;
	CLEANUP(cleanup_json) json_t *json = NULL;
	struct field_file file = {.path = path, .error = error};
	struct field_object root = {.prefix = "", .file = &file};
	int rc = field_parse(path, text, bytes, &json, error);

	if (rc)
		return rc;
	q = calloc(1, sizeof(*q));
	if (!q)
		return model_fail(error, -ENOMEM, "%s: no memory for quantization", path);
	root.json = json;
	hf_rules_check(&root, rules, N_RULES(rules));
	const struct field_object nested = field_member(&root, "quantization", "quantization.");

	hf_modelopt_parse_nested(&nested, q);
	if (file.rc)
		return file.rc;
	*ret = STEAL(q);
	return 0;
}
