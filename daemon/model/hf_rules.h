/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_RULES_H
#define MIMEO_DAEMON_MODEL_HF_RULES_H

/* Fields of quantization_config, by rules that know all of an object's fields. Errors are the
 * file's (field.h) and name field and value. */

#include "daemon/model/field.h"
#include "daemon/model/modules.h"

/* A known field, and its accepted values as compact JSON with | between them; NULL: any value. null
 * counts as absent. */
struct hf_rule {
	const char *key, *accepted;
	bool is_needed;
};

/* Refuse values that the rules do not accept, and fields without a rule. */
void hf_rules_check(const struct field_object *object, const struct hf_rule *rules, size_t n_rules);
/* Keep "key value is not supported", value as JSON, cut. */
void hf_rules_refuse(const struct field_object *object, const char *key, const json_t *value);
/* A group's columns: 0 if the field is -1, null or absent. */
uint32_t hf_rules_group(const struct field_object *object, const char *key);
/* A list of two sizes. */
void hf_rules_block(
	const struct field_object *object, const char *key, uint32_t *ret_rows, uint32_t *ret_cols);
/* Append the field's names, if it is there. */
void hf_rules_modules(const struct field_object *object, const char *key, struct modules *modules);

#endif
