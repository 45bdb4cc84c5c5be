/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_FIELD_H
#define MIMEO_DAEMON_MODEL_FIELD_H

/*
 * Fields of a JSON object that nobody vouches for: type and range are checked, and an error names
 * the file and the field. A field that is null counts as absent unless field_state is asked.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/model.h"

struct field_object {
	const json_t *json;
	const char *file;   /* for errors */
	const char *prefix; /* for errors: "rope_scaling." or "" */
	struct model_error *error;
};

/* Parse a whole file; the root must be an object, and no key may come twice. */
int field_parse(const char *file, const char *text, size_t bytes, json_t **ret,
	struct model_error *error);

enum field_state { FIELD_ABSENT, FIELD_NULL, FIELD_THERE };
enum field_state field_state(const struct field_object *object, const char *key);

/* Each reads one field: 0 and *ret; an absent one gives `absent`. -EINVAL with a sentence. */
int field_u32(const struct field_object *object, const char *key, uint32_t min, uint32_t max,
	uint32_t absent, uint32_t *ret);
int field_real(const struct field_object *object, const char *key, double min, double max,
	double absent, double *ret);
int field_bool(const struct field_object *object, const char *key, bool absent, bool *ret);
/* *ret lives as long as the object; `absent` may be NULL. */
int field_string(const struct field_object *object, const char *key, const char *absent,
	const char **ret);
/* As above, for fields that have to be there. */
int field_u32_needed(const struct field_object *object, const char *key, uint32_t min, uint32_t max,
	uint32_t *ret);
int field_real_needed(const struct field_object *object, const char *key, double min, double max,
	double *ret);
/* A member object: 0 and *ret (its json NULL if absent). `prefix` becomes its prefix. */
int field_member(const struct field_object *object, const char *key, const char *prefix,
	struct field_object *ret);

#endif
