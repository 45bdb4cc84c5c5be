/* SPDX-License-Identifier: MIT */
#include "daemon/model/hf_rules.h"

#include <errno.h>
#include <string.h>

#include "daemon/model/hf_config.h"

void hf_rules_refuse(const struct field_object *object, const char *key, const json_t *value)
{
	CLEANUP(cleanup_free) char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

	field_fail(object, -ENOTSUP, "%s %.128s is not supported", key, text ? text : "");
}

static bool hf_rules_accepts(const char *accepted, const json_t *value)
{
	CLEANUP(cleanup_free) char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
	size_t length = text ? strlen(text) : 0;

	for (const char *at = accepted; length && at; at = strchr(at, '|')) {
		at += *at == '|';
		if (!strncmp(at, text, length) && (!at[length] || at[length] == '|'))
			return true;
	}
	return false;
}

static const struct hf_rule *hf_rules_find(
	const struct hf_rule *rules, size_t n_rules, const char *key)
{
	for (size_t i = 0; i < n_rules; i++) {
		if (!strcmp(rules[i].key, key))
			return &rules[i];
	}
	return NULL;
}

void hf_rules_check(const struct field_object *object, const struct hf_rule *rules, size_t n_rules)
{
	const char *key;
	json_t *value;

	for (size_t i = 0; i < n_rules; i++) {
		if (rules[i].is_needed && field_state(object, rules[i].key) != FIELD_THERE)
			field_fail(object, -EINVAL, "%s is missing", rules[i].key);
	}
	json_object_foreach((json_t *)object->json, key, value)
	{
		const struct hf_rule *rule = hf_rules_find(rules, n_rules, key);

		if (json_is_null(value))
			continue;
		if (!rule || (rule->accepted && !hf_rules_accepts(rule->accepted, value)))
			hf_rules_refuse(object, key, value);
	}
}

/* ---- values ---- */

uint32_t hf_rules_group(const struct field_object *object, const char *key)
{
	const json_t *value = json_object_get(object->json, key);

	if (json_is_integer(value) && json_integer_value(value) == -1)
		return 0;
	return field_u32(object, key, 1, HF_WIDTH_MAX, 0);
}

void hf_rules_block(
	const struct field_object *object, const char *key, uint32_t *ret_rows, uint32_t *ret_cols)
{
	const json_t *list = json_object_get(object->json, key);
	json_int_t size[2] = {0};

	for (size_t i = 0; i < 2 && json_is_array(list) && json_array_size(list) == 2; i++)
		size[i] = json_integer_value(json_array_get(list, i));
	if (size[0] < 1 || size[1] < 1 || size[0] > HF_WIDTH_MAX || size[1] > HF_WIDTH_MAX) {
		hf_rules_refuse(object, key, list);
		return;
	}
	*ret_rows = (uint32_t)size[0];
	*ret_cols = (uint32_t)size[1];
}

void hf_rules_modules(const struct field_object *object, const char *key, struct modules *modules)
{
	const json_t *list = json_object_get(object->json, key);

	if (!list || json_is_null(list))
		return;
	if (!json_is_array(list)) {
		hf_rules_refuse(object, key, list);
		return;
	}
	for (size_t i = 0; i < json_array_size(list) && !object->file->rc; i++) {
		const char *text = json_string_value(json_array_get(list, i));
		int rc = text ? modules_add(modules, text) : -EINVAL;

		if (rc == -ENOMEM)
			field_fail(object, rc, "no memory for %s", key);
		else if (rc)
			field_fail(object, rc, "%s[%zu] \"%.64s\" is not supported", key, i,
				text ? text : "(not a string)");
	}
}
