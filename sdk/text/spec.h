/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_SPEC_H
#define MIMEO_SDK_TEXT_SPEC_H

/*
 * A component of an untrusted tokenizer.json: an object with a "type" and fields. Types and ranges
 * are checked, and errors name the component, the field and its value.
 *
 * Errors are sticky: the first one is kept in spec_file.rc, and later reads go on with `absent`, so
 * that a parser reads all fields and then looks at rc once. A field that is null counts as absent.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "ipc/cleanup.h"
#include "sdk/text/fault.h"

DEFINE_CLEANUP(json, json_t, json_decref)

#define SPEC_WHERE_MAX 96

struct spec_file {
	const struct fault *fault;
	int rc; /* 0, UNSUPPORTED, INVALID or NO_MEMORY */
};

struct spec {
	const json_t *json;         /* an object */
	char where[SPEC_WHERE_MAX]; /* such as pre_tokenizer.pretokenizers[1] */
	struct spec_file *file;
};

/* Keep "where: sentence" and `status` unless the file has failed before. Returns the file's rc. */
int spec_fail(const struct spec *spec, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same of a field whose value is not understood, which is UNSUPPORTED. */
int spec_refuse(const struct spec *spec, const char *key);
int spec_no_memory(const struct spec *spec);

/* A member object; false: it is absent or not an object, which is an error. */
bool spec_member(const struct spec *spec, const char *key, struct spec *ret);
/* The elements of a member array, which are objects. */
size_t spec_count(const struct spec *spec, const char *key, size_t most);
bool spec_element(const struct spec *spec, const char *key, size_t index, struct spec *ret);

/* "type", or "" after an error. */
const char *spec_type(const struct spec *spec);
/* Refuse fields other than "type" and these (a list that ends in NULL). An unknown field that is
 * null or false is taken for an option that later versions added and that is not in use. */
void spec_allow(const struct spec *spec, const char *const *known);

/* NULL: absent or null. */
const json_t *spec_field(const struct spec *spec, const char *key);
bool spec_bool(const struct spec *spec, const char *key, bool absent);
uint32_t spec_u32(const struct spec *spec, const char *key, uint32_t most, uint32_t absent);
/* Required. "" after an error. The string may hold U+0000. */
const char *spec_string(const struct spec *spec, const char *key, size_t *ret_length);
/* NULL if it is absent or null. */
const char *spec_string_or_null(const struct spec *spec, const char *key, size_t *ret_length);
/* Required: a string of one character. 0 after an error. */
uint32_t spec_character(const struct spec *spec, const char *key);
/* The index of a required string in `names` [n]; 0 after an error. */
unsigned spec_choice(
	const struct spec *spec, const char *key, const char *const *names, unsigned n);

#endif
