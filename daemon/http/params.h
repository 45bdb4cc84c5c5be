/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_HTTP_PARAMS_H
#define MIMEO_DAEMON_HTTP_PARAMS_H

/*
 * Fields of a request's JSON object. Each function reads one: *ret stays as it is where the field is absent
 * or null; a wrong type or a value out of range is a 400 that names the field, and the function returns
 * false.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/http/api_error.h"

/* The body as an object, to be released by json_decref; NULL after an error. */
json_t *params_parse(const char *body, size_t n, struct api_error *error);

bool params_bool(const json_t *object, const char *name, bool *ret, struct api_error *error);
bool params_number(const json_t *object, const char *name, double least, double most, double *ret,
	struct api_error *error);
bool params_integer(const json_t *object, const char *name, int64_t least, int64_t most, int64_t *ret,
	struct api_error *error);
/* The text lives as long as the object. */
bool params_string(const json_t *object, const char *name, const char **ret, struct api_error *error);

/* A field that is known and not supported: refused unless it is absent, null, false, or has an empty list or
 * object. */
bool params_refuse(const json_t *object, const char *const *names, struct api_error *error);

/* A whole number, which JSON may write with a fraction of zero: 1 or 1.0. */
bool params_is_integer(const json_t *value, int64_t *ret);
/* The member, or NULL where it is absent or null. */
json_t *params_get(const json_t *object, const char *name);

#endif
