/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_FIELD_H
#define MIMEO_DAEMON_MODEL_FIELD_H

/*
 * Fields of an untrusted JSON object: type and range are checked, and an error names the file and
 * the field. A field that is null counts as absent unless field_state is asked.
 *
 * Errors are sticky: the first one is kept, and later reads go on. A read that fails returns `min`,
 * false or `absent`, so that a parser reads all its fields and then looks at field_file.rc once.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/error.h"
#include "ipc/cleanup.h"

DEFINE_CLEANUP(json, json_t, json_decref)

/* The file that fields are read from. */
struct field_file {
	const char *path;
	struct model_error *error;
	int rc; /* 0, or the first failure, whose sentence is in `error` */
};

struct field_object {
	const json_t *json;      /* NULL: an object without fields */
	const char *prefix;      /* for errors: "rope_scaling." or "" */
	struct field_file *file; /* [1] */
};

/* Parse a whole file; the root must be an object, and no key may come twice. *ret is the caller's
 * (json_decref). */
int field_parse(const char *path, const char *text, size_t bytes, json_t **ret,
	struct model_error *error);
/* Keep "path: prefix" and the sentence, and rc, unless the file has failed before. Returns the
 * file's rc. */
int field_fail(const struct field_object *object, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

enum field_state { FIELD_ABSENT, FIELD_NULL, FIELD_THERE };
enum field_state field_state(const struct field_object *object, const char *key);

/* The field's value, or `absent`, which need not lie within the range. */
uint32_t field_u32(const struct field_object *object, const char *key, uint32_t min, uint32_t max,
	uint32_t absent);
double field_real(const struct field_object *object, const char *key, double min, double max,
	double absent);
bool field_bool(const struct field_object *object, const char *key, bool absent);
/* It lives as long as the object; `absent` may be NULL. */
const char *field_string(
	const struct field_object *object, const char *key, const char *absent);
/* As above, for required fields. */
uint32_t field_u32_needed(
	const struct field_object *object, const char *key, uint32_t min, uint32_t max);
double field_real_needed(
	const struct field_object *object, const char *key, double min, double max);
/* A member object, its json NULL if it is absent. `prefix` becomes its prefix. */
struct field_object field_member(
	const struct field_object *object, const char *key, const char *prefix);

#endif
