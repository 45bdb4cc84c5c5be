/* SPDX-License-Identifier: MIT */
#include "daemon/http/params.h"

#include <math.h>

#define FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)

json_t *params_parse(const char *body, size_t n, struct api_error *error)
{
	json_error_t why;

	if (n == 0) {
		api_error_set(error, 400, NULL, NULL, "the request has no body: send a JSON object");
		return NULL;
	}
	json_t *object = json_loadb(body, n, FLAGS, &why);
	/* Integers beyond 64 bits are valid JSON, if only in fields that are ignored. */
	if (!object && json_error_code(&why) == json_error_numeric_overflow)
		object = json_loadb(body, n, FLAGS | JSON_DECODE_INT_AS_REAL, &why);
	if (!object) {
		api_error_set(error, 400, NULL, NULL, "the body is not JSON: line %d, column %d: %s",
			why.line, why.column, why.text);
		return NULL;
	}
	if (json_is_object(object))
		return object;
	json_decref(object);
	api_error_set(error, 400, NULL, NULL, "the body must be a JSON object");
	return NULL;
}

json_t *params_get(const json_t *object, const char *name)
{
	json_t *value = json_object_get(object, name);

	return json_is_null(value) ? NULL : value;
}

bool params_bool(const json_t *object, const char *name, bool *ret, struct api_error *error)
{
	const json_t *value = params_get(object, name);

	if (!value)
		return true;
	if (!json_is_boolean(value))
		return api_error_set(error, 400, NULL, name, "%s must be true or false", name);
	*ret = json_is_true(value);
	return true;
}

bool params_number(const json_t *object, const char *name, double least, double most, double *ret,
	struct api_error *error)
{
	const json_t *value = params_get(object, name);

	if (!value)
		return true;
	if (!json_is_number(value))
		return api_error_set(error, 400, NULL, name, "%s must be a number", name);
	double number = json_number_value(value);
	if (!isfinite(number) || number < least || number > most)
		return api_error_set(error, 400, NULL, name, "%s is %g: it must be from %g to %g", name,
			number, least, most);
	*ret = number;
	return true;
}

bool params_is_integer(const json_t *value, int64_t *ret)
{
	double real = json_real_value(value);

	if (json_is_integer(value)) {
		*ret = json_integer_value(value);
		return true;
	}
	/* As far as a double has each whole number. */
	if (!json_is_real(value) || real != floor(real) || fabs(real) > 9007199254740992.0)
		return false;
	*ret = (int64_t)real;
	return true;
}

bool params_integer(const json_t *object, const char *name, int64_t least, int64_t most, int64_t *ret,
	struct api_error *error)
{
	const json_t *value = params_get(object, name);

	if (!value)
		return true;
	int64_t number;
	if (!params_is_integer(value, &number))
		return api_error_set(error, 400, NULL, name, "%s must be an integer", name);
	if (number < least || number > most)
		return api_error_set(error, 400, NULL, name, "%s is %lld: it must be from %lld to %lld", name,
			(long long)number, (long long)least, (long long)most);
	*ret = number;
	return true;
}

bool params_string(const json_t *object, const char *name, const char **ret, struct api_error *error)
{
	const json_t *value = params_get(object, name);

	if (!value)
		return true;
	if (!json_is_string(value))
		return api_error_set(error, 400, NULL, name, "%s must be a string", name);
	*ret = json_string_value(value);
	return true;
}

static bool params_is_empty(const json_t *value)
{
	return !value || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
		(json_is_object(value) && json_object_size(value) == 0);
}

bool params_refuse(const json_t *object, const char *const *names, struct api_error *error)
{
	for (; *names; names++) {
		if (!params_is_empty(params_get(object, *names)))
			return api_error_set(error, 400, "unsupported", *names,
				"%s is not supported", *names);
	}
	return true;
}
