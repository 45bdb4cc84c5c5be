/* SPDX-License-Identifier: MIT */
#include "daemon/model/hf_kv.h"

#include <stdio.h>
#include <string.h>

#include "daemon/model/hf_rules.h"

static bool hf_kv_is_name(const json_t *scheme)
{
	const char *name = json_string_value(scheme);

	return name && (!strcmp(name, "static") || !strcmp(name, "FP8"));
}

void hf_kv_parse(const struct field_object *object, const char *key, struct quantisation *ret)
{
	static const struct hf_rule rules[] = {
		{"num_bits", "8", true},
		{"type", "\"float\"", true},
		{"symmetric", "true", false},
		{"strategy", "\"tensor\"", false},
		{"dynamic", "false", false},
		{"group_size", "-1", false},
		{"block_structure", "[]", false},
		{"actorder", "false", false},
		{"scale_dtype", NULL, false},
		{"zp_dtype", NULL, false},
		{"observer", NULL, false},
		{"observer_kwargs", NULL, false},
	};
	const json_t *scheme = json_object_get(object->json, key);
	struct field_file file = {.path = object->file->path, .error = &ret->kv_error};
	const struct field_object whole = {object->json, object->prefix, &file};
	char prefix[96];

	snprintf(prefix, sizeof(prefix), "%s%s.", object->prefix, key);
	if (json_is_object(scheme))
		hf_rules_check(&(struct field_object){scheme, prefix, &file}, rules, sizeof(rules) / sizeof(rules[0]));
	else if (scheme && !json_is_null(scheme) && !hf_kv_is_name(scheme))
		hf_rules_refuse(&whole, key, scheme);
	ret->kv_factors = scheme && !json_is_null(scheme);
	ret->kv_rc = file.rc;
}
