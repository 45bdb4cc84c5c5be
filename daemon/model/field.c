/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"

/* Nothing that a model directory holds has more values than this; it bounds the parser's memory. */
#define VALUES_MAX 4000000u

int field_parse(const char *file, const char *text, size_t bytes, json_t **ret,
	struct model_error *error)
{
	json_error_t reason;
	uint32_t n_values = 0;
	json_t *json;

	for (size_t i = 0; i < bytes; i++)
		n_values += text[i] == ',' || text[i] == '[' || text[i] == '{';
	if (n_values > VALUES_MAX)
		return model_fail(
			error, -EINVAL, "%s: holds more than %u values", file, VALUES_MAX);
	json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &reason);
	if (!json)
		return model_fail(error, -EINVAL, "%s: line %d: is not valid JSON: %s", file,
			reason.line, reason.text);
	if (!json_is_object(json)) {
		json_decref(json);
		return model_fail(error, -EINVAL, "%s: is not a JSON object", file);
	}
	*ret = json;
	return 0;
}

static int refuse(const struct field_object *object, const char *key, const char *why)
{
	return model_fail(
		object->error, -EINVAL, "%s: %s%s %s", object->file, object->prefix, key, why);
}

static const json_t *find(const struct field_object *object, const char *key)
{
	const json_t *json = json_object_get(object->json, key);

	return json_is_null(json) ? NULL : json;
}

enum field_state field_state(const struct field_object *object, const char *key)
{
	const json_t *json = json_object_get(object->json, key);

	return !json ? FIELD_ABSENT : json_is_null(json) ? FIELD_NULL : FIELD_THERE;
}

int field_u32(const struct field_object *object, const char *key, uint32_t min, uint32_t max,
	uint32_t absent, uint32_t *ret)
{
	const json_t *json = find(object, key);
	json_int_t value;

	if (!json) {
		*ret = absent;
		return 0;
	}
	if (!json_is_integer(json))
		return refuse(object, key, "is not an integer");
	value = json_integer_value(json);
	if (value < (json_int_t)min || value > (json_int_t)max)
		return model_fail(object->error, -EINVAL,
			"%s: %s%s %" JSON_INTEGER_FORMAT " is not between %u and %u", object->file,
			object->prefix, key, value, min, max);
	*ret = (uint32_t)value;
	return 0;
}

int field_real(const struct field_object *object, const char *key, double min, double max,
	double absent, double *ret)
{
	const json_t *json = find(object, key);
	double value;

	if (!json) {
		*ret = absent;
		return 0;
	}
	if (!json_is_number(json))
		return refuse(object, key, "is not a number");
	value = json_number_value(json);
	if (!(value >= min && value <= max))
		return model_fail(object->error, -EINVAL, "%s: %s%s %g is not between %g and %g",
			object->file, object->prefix, key, value, min, max);
	*ret = value;
	return 0;
}

int field_bool(const struct field_object *object, const char *key, bool absent, bool *ret)
{
	const json_t *json = find(object, key);

	if (!json) {
		*ret = absent;
		return 0;
	}
	if (!json_is_boolean(json))
		return refuse(object, key, "is neither true nor false");
	*ret = json_is_true(json);
	return 0;
}

int field_string(const struct field_object *object, const char *key, const char *absent,
	const char **ret)
{
	const json_t *json = find(object, key);

	if (!json) {
		*ret = absent;
		return 0;
	}
	if (!json_is_string(json))
		return refuse(object, key, "is not a string");
	*ret = json_string_value(json);
	return 0;
}

int field_u32_needed(const struct field_object *object, const char *key, uint32_t min, uint32_t max,
	uint32_t *ret)
{
	if (!find(object, key))
		return refuse(object, key, "is missing");
	return field_u32(object, key, min, max, 0, ret);
}

int field_real_needed(const struct field_object *object, const char *key, double min, double max,
	double *ret)
{
	if (!find(object, key))
		return refuse(object, key, "is missing");
	return field_real(object, key, min, max, 0, ret);
}

int field_member(const struct field_object *object, const char *key, const char *prefix,
	struct field_object *ret)
{
	const json_t *json = find(object, key);

	if (json && !json_is_object(json))
		return refuse(object, key, "is not an object");
	*ret = (struct field_object){
		.json = json, .file = object->file, .prefix = prefix, .error = object->error};
	return 0;
}
