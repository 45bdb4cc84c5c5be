/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"

/* Bounds the parser's memory; files of real models have fewer values. */
#define VALUES_MAX 4000000u

int field_parse(const char *path, const char *text, size_t bytes, json_t **ret,
	struct model_error *error)
{
	json_error_t reason;
	uint32_t n_values = 0;
	json_t *json;

	for (size_t i = 0; i < bytes; i++)
		n_values += text[i] == ',' || text[i] == '[' || text[i] == '{';
	if (n_values > VALUES_MAX)
		return model_fail(
			error, -EINVAL, "%s: more than %u values", path, VALUES_MAX);
	json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &reason);
	if (!json)
		return model_fail(error, -EINVAL, "%s: line %d: is not valid JSON: %s", path,
			reason.line, reason.text);
	if (!json_is_object(json)) {
		json_decref(json);
		return model_fail(error, -EINVAL, "%s: is not a JSON object", path);
	}
	*ret = json;
	return 0;
}

int field_fail(const struct field_object *object, int rc, const char *format, ...)
{
	struct field_file *file = object->file;
	char sentence[400];
	va_list args;

	assert(rc < 0);
	if (file->rc)
		return file->rc;
	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	file->rc = model_fail(
		file->error, rc, "%s: %s%s", file->path, object->prefix, sentence);
	return file->rc;
}

static const json_t *field_find(const struct field_object *object, const char *key)
{
	const json_t *json = json_object_get(object->json, key);

	return json_is_null(json) ? NULL : json;
}

enum field_state field_state(const struct field_object *object, const char *key)
{
	const json_t *json = json_object_get(object->json, key);

	return !json ? FIELD_ABSENT : json_is_null(json) ? FIELD_NULL : FIELD_THERE;
}

uint32_t field_u32(const struct field_object *object, const char *key, uint32_t min, uint32_t max,
	uint32_t absent)
{
	const json_t *json = field_find(object, key);
	json_int_t value = json_integer_value(json);

	if (!json)
		return absent;
	if (json_is_integer(json) && value >= (json_int_t)min && value <= (json_int_t)max)
		return (uint32_t)value;
	if (!json_is_integer(json))
		field_fail(object, -EINVAL, "%s is not an integer", key);
	else
		field_fail(object, -EINVAL, "%s %" JSON_INTEGER_FORMAT " is not between %u and %u",
			key, value, min, max);
	return min;
}

double field_real(const struct field_object *object, const char *key, double min, double max,
	double absent)
{
	const json_t *json = field_find(object, key);
	double value = json_number_value(json);

	if (!json)
		return absent;
	if (json_is_number(json) && value >= min && value <= max)
		return value;
	if (!json_is_number(json))
		field_fail(object, -EINVAL, "%s is not a number", key);
	else
		field_fail(object, -EINVAL, "%s %g is not between %g and %g", key, value, min, max);
	return min;
}

bool field_bool(const struct field_object *object, const char *key, bool absent)
{
	const json_t *json = field_find(object, key);

	if (!json)
		return absent;
	if (!json_is_boolean(json))
		field_fail(object, -EINVAL, "%s is neither true nor false", key);
	return json_is_true(json);
}

const char *field_string(const struct field_object *object, const char *key, const char *absent)
{
	const json_t *json = field_find(object, key);

	if (json && !json_is_string(json))
		field_fail(object, -EINVAL, "%s is not a string", key);
	return json_is_string(json) ? json_string_value(json) : absent;
}

uint32_t field_u32_needed(
	const struct field_object *object, const char *key, uint32_t min, uint32_t max)
{
	if (!field_find(object, key))
		field_fail(object, -EINVAL, "%s is missing", key);
	return field_u32(object, key, min, max, min);
}

double field_real_needed(
	const struct field_object *object, const char *key, double min, double max)
{
	if (!field_find(object, key))
		field_fail(object, -EINVAL, "%s is missing", key);
	return field_real(object, key, min, max, min);
}

struct field_object field_member(
	const struct field_object *object, const char *key, const char *prefix)
{
	const json_t *json = field_find(object, key);

	if (json && !json_is_object(json))
		field_fail(object, -EINVAL, "%s is not an object", key);
	return (struct field_object){.json = json_is_object(json) ? json : NULL,
		.prefix = prefix,
		.file = object->file};
}
