/* SPDX-License-Identifier: MIT */
#include "sdk/text/spec.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <mimeo/types.h>

#include "sdk/text/utf8.h"

#define SPEC_VALUE_MAX 64 /* bytes of a value that a message shows */

int spec_fail(const struct spec *spec, int status, const char *format, ...)
{
	char sentence[256];
	va_list arguments;

	if (spec->file->rc < 0)
		return spec->file->rc;
	va_start(arguments, format);
	vsnprintf(sentence, sizeof(sentence), format, arguments);
	va_end(arguments);
	spec->file->rc = fault_set(spec->file->fault, status, "%s%s%s", spec->where,
		spec->where[0] ? ": " : "", sentence);
	return spec->file->rc;
}

int spec_refuse(const struct spec *spec, const char *key)
{
	CLEANUP(cleanup_free)
	char *value = json_dumps(json_object_get(spec->json, key), JSON_ENCODE_ANY | JSON_COMPACT);
	const char *type = json_string_value(json_object_get(spec->json, "type"));

	return spec_fail(spec, MIMEO_E_UNSUPPORTED, "%.40s%s%s %.*s%s is not supported",
		type ? type : "", type ? ": " : "", key, SPEC_VALUE_MAX, value ? value : "",
		value && strlen(value) > SPEC_VALUE_MAX ? "..." : "");
}

int spec_no_memory(const struct spec *spec)
{
	return spec_fail(spec, MIMEO_E_NO_MEMORY, "out of memory");
}

const json_t *spec_field(const struct spec *spec, const char *key)
{
	const json_t *json = json_object_get(spec->json, key);

	return json_is_null(json) ? NULL : json;
}

static void spec_enter(struct spec *ret, const struct spec *spec, const char *name)
{
	int n = snprintf(ret->where, sizeof(ret->where), "%s%s%s", spec->where,
		spec->where[0] ? "." : "", name);

	/* A path this long comes of nesting that is refused elsewhere. */
	if (n < 0 || (size_t)n >= sizeof(ret->where))
		ret->where[sizeof(ret->where) - 1] = '\0';
	ret->file = spec->file;
}

bool spec_member(const struct spec *spec, const char *key, struct spec *ret)
{
	const json_t *json = spec_field(spec, key);

	if (!json) {
		spec_fail(spec, MIMEO_E_INVALID, "%s is missing", key);
		return false;
	}
	if (!json_is_object(json)) {
		spec_fail(spec, MIMEO_E_INVALID, "%s is not an object", key);
		return false;
	}
	spec_enter(ret, spec, key);
	ret->json = json;
	return true;
}

size_t spec_count(const struct spec *spec, const char *key, size_t most)
{
	const json_t *json = spec_field(spec, key);

	if (!json_is_array(json)) {
		spec_fail(spec, MIMEO_E_INVALID, "%s is not a list", key);
		return 0;
	}
	if (json_array_size(json) > most) {
		spec_fail(spec, MIMEO_E_INVALID, "%s has %zu elements; the limit is %zu", key,
			json_array_size(json), most);
		return 0;
	}
	return json_array_size(json);
}

bool spec_element(const struct spec *spec, const char *key, size_t index, struct spec *ret)
{
	const json_t *json = json_array_get(spec_field(spec, key), index);
	char name[48];

	snprintf(name, sizeof(name), "%.24s[%zu]", key, index);
	if (!json_is_object(json)) {
		spec_fail(spec, MIMEO_E_INVALID, "%s is not an object", name);
		return false;
	}
	spec_enter(ret, spec, name);
	ret->json = json;
	return true;
}

const char *spec_type(const struct spec *spec)
{
	size_t length;

	return spec_string(spec, "type", &length);
}

void spec_allow(const struct spec *spec, const char *const *known)
{
	void *at = json_object_iter((json_t *)spec->json);

	for (; at; at = json_object_iter_next((json_t *)spec->json, at)) {
		const char *key = json_object_iter_key(at);
		const json_t *value = json_object_iter_value(at);
		const char *const *name = known;

		if (strcmp(key, "type") == 0 || json_is_null(value) || json_is_false(value))
			continue;
		while (*name && strcmp(*name, key) != 0)
			name++;
		if (!*name)
			spec_refuse(spec, key);
	}
}

bool spec_bool(const struct spec *spec, const char *key, bool absent)
{
	const json_t *json = spec_field(spec, key);

	if (!json)
		return absent;
	if (json_is_boolean(json))
		return json_is_true(json);
	spec_fail(spec, MIMEO_E_INVALID, "%s is neither true nor false", key);
	return absent;
}

uint32_t spec_u32(const struct spec *spec, const char *key, uint32_t most, uint32_t absent)
{
	const json_t *json = spec_field(spec, key);
	json_int_t value = json_integer_value(json);

	if (!json)
		return absent;
	if (json_is_integer(json) && value >= 0 && value <= (json_int_t)most)
		return (uint32_t)value;
	if (json_is_integer(json))
		spec_fail(spec, MIMEO_E_INVALID, "%s is %lld; the range is 0 to %u", key,
			(long long)value, most);
	else
		spec_fail(spec, MIMEO_E_INVALID, "%s is not an integer", key);
	return absent;
}

const char *spec_string_or_null(const struct spec *spec, const char *key, size_t *ret_length)
{
	const json_t *json = spec_field(spec, key);

	*ret_length = 0;
	if (!json)
		return NULL;
	if (!json_is_string(json)) {
		spec_fail(spec, MIMEO_E_INVALID, "%s is not a string", key);
		return NULL;
	}
	*ret_length = json_string_length(json);
	return json_string_value(json);
}

const char *spec_string(const struct spec *spec, const char *key, size_t *ret_length)
{
	const char *string = spec_string_or_null(spec, key, ret_length);

	if (string)
		return string;
	spec_fail(spec, MIMEO_E_INVALID, "%s is missing", key);
	return "";
}

uint32_t spec_character(const struct spec *spec, const char *key)
{
	size_t length;
	unsigned size;
	const char *string = spec_string(spec, key, &length);

	if (length > 0 && utf8_size(string[0]) == length)
		return utf8_decode(string, &size);
	spec_fail(spec, MIMEO_E_INVALID, "%s is not a single character", key);
	return 0;
}

unsigned spec_choice(const struct spec *spec, const char *key, const char *const *names, unsigned n)
{
	size_t length;
	const char *string = spec_string(spec, key, &length);

	for (unsigned i = 0; i < n; i++) {
		if (strlen(names[i]) == length && memcmp(names[i], string, length) == 0)
			return i;
	}
	spec_refuse(spec, key);
	return 0;
}
