/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"
#include "daemon/model/file.h"
#include "daemon/model/gguf_tensors.h"
#include "ipc/cleanup.h"

#define FIRST_READ (1u << 20)
#define READ_GROWTH 16u

/* ---- values ---- */

static uint32_t gguf_value_bytes(uint32_t type)
{
	static const uint8_t bytes[] = {
		[GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4,
		[GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8,
		[GGUF_F64] = 8,
	};

	return type < sizeof(bytes) ? bytes[type] : 0;
}

/* An integer above INT64_MAX becomes INT64_MAX, which no field allows. */
static json_t *gguf_scalar(struct gguf_cursor *cursor, uint32_t type)
{
	union {
		uint64_t bits;
		double value;
	} wide;
	union {
		uint32_t bits;
		float value;
	} narrow;
	uint32_t bytes = gguf_value_bytes(type);
	uint64_t bits = gguf_take_uint(cursor, bytes);
	uint32_t unused = 64 - 8 * bytes;

	switch ((enum gguf_value)type) {
	case GGUF_F32:
		narrow.bits = (uint32_t)bits;
		return json_real((double)narrow.value);
	case GGUF_F64:
		wide.bits = bits;
		return json_real(wide.value);
	case GGUF_BOOL:
		return bits <= 1 ? json_boolean(bits) : NULL;
	case GGUF_I8:
	case GGUF_I16:
	case GGUF_I32:
	case GGUF_I64:
		return json_integer((json_int_t)(int64_t)(bits << unused) >> unused);
	default:
		return json_integer(bits > INT64_MAX ? INT64_MAX : (json_int_t)bits);
	}
}

static json_t *gguf_string(struct gguf_cursor *cursor)
{
	size_t length = 0;
	const char *text = gguf_take_string(cursor, SIZE_MAX, &length);
	json_t *json = text && !memchr(text, 0, length) ? json_stringn(text, length) : NULL;

	return json ? json : json_null();
}

static void gguf_take_array(struct gguf_cursor *cursor, const char *key, struct gguf *gguf)
{
	uint32_t type = (uint32_t)gguf_take_uint(cursor, 4), bytes = gguf_value_bytes(type);
	uint64_t n = gguf_take_uint(cursor, 8), size;
	struct gguf_array *array = &gguf->arrays[gguf->n_arrays];

	if (cursor->rc)
		return;
	if (type != GGUF_STRING && !bytes) {
		gguf_refuse(cursor, "%s is an array of type %" PRIu32 ", which is not supported",
			key, type);
		return;
	}
	*array = (struct gguf_array){
		.type = (enum gguf_value)type, .n = n, .data = cursor->bytes + cursor->at};
	if (type == GGUF_STRING) {
		for (uint64_t i = 0; i < n && !cursor->rc; i++)
			gguf_take_string(cursor, SIZE_MAX, &(size_t){0});
	} else if (__builtin_mul_overflow(n, bytes, &size)) {
		gguf_refuse(cursor, "%s: a length of %" PRIu64 " overflows", key, n);
	} else {
		gguf_take(cursor, size);
	}
	if (cursor->rc)
		return;
	array->key = strdup(key);
	if (!array->key)
		cursor->rc = model_fail(
			cursor->error, -ENOMEM, "%s: no memory for its header", cursor->path);
	else
		gguf->n_arrays++;
}

static json_t *gguf_value(struct gguf_cursor *cursor, const char *key, struct gguf *gguf)
{
	uint32_t type = (uint32_t)gguf_take_uint(cursor, 4);
	json_t *json;

	if (cursor->rc)
		return NULL;
	if (type == GGUF_ARRAY) {
		gguf_take_array(cursor, key, gguf);
		return json_array();
	}
	if (type == GGUF_STRING)
		return gguf_string(cursor);
	if (!gguf_value_bytes(type)) {
		gguf_refuse(cursor, "%s has type %" PRIu32 ", which is not known", key, type);
		return NULL;
	}
	json = gguf_scalar(cursor, type);
	if (!json)
		gguf_refuse(cursor, "%s is neither a finite number nor a boolean", key);
	return json;
}

static void gguf_take_field(struct gguf_cursor *cursor, struct gguf *gguf)
{
	char key[GGUF_KEY_MAX + 1];
	CLEANUP(cleanup_json) json_t *value = NULL;

	gguf_take_name(cursor, "a key", key, sizeof(key));
	if (cursor->rc)
		return;
	value = gguf_value(cursor, key, gguf);
	if (cursor->rc)
		return;
	if (json_object_get(gguf->fields, key))
		gguf_refuse(cursor, "%s comes twice", key);
	else if (!value || json_object_set(gguf->fields, key, value))
		gguf_refuse(cursor, "key \"%s\" is not UTF-8", key);
}

/* Strings that are null would count as absent: refuse them where a field may be read. */
static void gguf_refuse_null(struct gguf_cursor *cursor, const json_t *fields)
{
	const char *name = json_string_value(json_object_get(fields, "general.architecture"));
	size_t length = name ? strlen(name) : 0;
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)fields, key, value) {
		bool is_read = !strncmp(key, "tokenizer.ggml.", strlen("tokenizer.ggml.")) ||
			       !strcmp(key, "general.architecture") ||
			       (name && !strncmp(key, name, length) && key[length] == '.');

		if (is_read && json_is_null(value)) {
			gguf_refuse(cursor, "%s is not UTF-8 or has a NUL", key);
			return;
		}
	}
}

/* ---- the header ---- */

static void gguf_take_counts(
	struct gguf_cursor *cursor, uint64_t *ret_tensors, uint64_t *ret_fields)
{
	const uint8_t *magic = gguf_take(cursor, 4);
	uint32_t version;

	if (magic && memcmp(magic, "GGUF", 4)) {
		gguf_refuse(cursor, "does not begin with \"GGUF\"");
		return;
	}
	version = (uint32_t)gguf_take_uint(cursor, 4);
	*ret_tensors = gguf_take_uint(cursor, 8);
	*ret_fields = gguf_take_uint(cursor, 8);
	if (cursor->rc)
		return;
	if (version != 2 && version != 3)
		gguf_refuse(cursor, "version %" PRIu32 " is neither 2 nor 3", version);
	else if (*ret_tensors > GGUF_TENSORS_MAX)
		gguf_refuse(cursor, "%" PRIu64 " tensors; the limit is %u", *ret_tensors,
			GGUF_TENSORS_MAX);
	else if (*ret_fields > GGUF_FIELDS_MAX)
		gguf_refuse(cursor, "%" PRIu64 " fields of metadata; the limit is %u", *ret_fields,
			GGUF_FIELDS_MAX);
}

static uint32_t gguf_alignment(struct gguf_cursor *cursor, const json_t *fields)
{
	struct field_file file = {.path = cursor->path, .error = cursor->error};
	const struct field_object root = {.json = fields, .prefix = "", .file = &file};
	uint32_t alignment = field_u32(&root, "general.alignment", 1, GGUF_ALIGNMENT_MAX, 32);

	if (alignment & (alignment - 1))
		field_fail(&root, -EINVAL, "general.alignment %u is not a power of two", alignment);
	cursor->rc = file.rc;
	return alignment;
}

static void gguf_take_header(struct gguf_cursor *cursor, struct gguf *gguf)
{
	uint64_t n_tensors = 0, n_fields = 0;

	gguf_take_counts(cursor, &n_tensors, &n_fields);
	if (cursor->rc)
		return;
	gguf->fields = json_object();
	gguf->arrays = calloc(n_fields + 1, sizeof(*gguf->arrays));
	gguf->tensors = calloc(n_tensors + 1, sizeof(*gguf->tensors));
	if (!gguf->fields || !gguf->arrays || !gguf->tensors) {
		cursor->rc = model_fail(
			cursor->error, -ENOMEM, "%s: no memory for its header", cursor->path);
		return;
	}
	for (uint64_t i = 0; i < n_fields && !cursor->rc; i++)
		gguf_take_field(cursor, gguf);
	if (cursor->rc)
		return;
	gguf_refuse_null(cursor, gguf->fields);
	if (cursor->rc)
		return;
	uint32_t alignment = gguf_alignment(cursor, gguf->fields);
	if (!cursor->rc)
		gguf_take_tensors(cursor, (uint32_t)n_tensors, alignment, gguf->tensors,
			&gguf->n_tensors);
}

int gguf_parse(const char *path, const uint8_t *bytes, size_t n, uint64_t file_bytes,
	struct gguf *ret, struct model_error *error)
{
	CLEANUP(gguf_deinit) struct gguf gguf = {.fd = -1};
	struct gguf_cursor cursor = {
		.path = path, .bytes = bytes, .n = n, .file_bytes = file_bytes, .error = error};

	assert(n <= file_bytes);
	gguf_take_header(&cursor, &gguf);
	if (cursor.rc)
		return cursor.rc;
	*ret = gguf;
	gguf = (struct gguf){.fd = -1};
	return 0;
}

/* ---- files ---- */

static int gguf_read(struct gguf *gguf, uint64_t file_bytes, struct model_error *error)
{
	uint64_t limit = file_bytes < GGUF_HEADER_MAX ? file_bytes : GGUF_HEADER_MAX;
	uint64_t n = limit < FIRST_READ ? limit : FIRST_READ, have = 0;
	int rc;

	for (;;) {
		struct gguf parsed = {0};
		uint8_t *header = realloc(gguf->header, n + 1);

		if (!header)
			return model_fail(error, -ENOMEM, "%s: no memory for its header", gguf->path);
		gguf->header = header;
		rc = file_read(gguf->fd, gguf->path, have, header + have, n - have, error);
		if (rc)
			return rc;
		rc = gguf_parse(gguf->path, header, n, file_bytes, &parsed, error);
		if (!rc) {
			parsed.path = gguf->path;
			parsed.fd = gguf->fd;
			parsed.header = gguf->header;
			*gguf = parsed;
		}
		if (rc != GGUF_MORE)
			return rc;
		if (n == limit)
			return model_fail(error, -EINVAL,
				"%s: its header exceeds the limit of %u bytes", gguf->path,
				GGUF_HEADER_MAX);
		have = n;
		n = limit / READ_GROWTH < n ? limit : n * READ_GROWTH;
	}
}

static int gguf_refuse_split(const struct gguf *gguf, struct model_error *error)
{
	struct field_file file = {.path = gguf->path, .error = error};
	const struct field_object root = {.json = gguf->fields, .prefix = "", .file = &file};
	uint32_t n = field_u32(&root, "split.count", 0, UINT32_MAX, 0);

	if (n > 1)
		field_fail(&root, -ENOTSUP,
			"split.count %u: a model in several files is not supported: merge them", n);
	return file.rc;
}

int gguf_open(const char *path, struct gguf *ret, struct model_error *error)
{
	CLEANUP(gguf_deinit) struct gguf gguf = {.fd = -1};
	uint64_t file_bytes;
	int rc;

	gguf.path = strdup(path);
	if (!gguf.path)
		return model_fail(error, -ENOMEM, "%s: no memory for its header", path);
	rc = file_open(AT_FDCWD, path, path, &gguf.fd, &file_bytes, error);
	if (rc == -ENOENT)
		return model_fail(error, rc, "%s: does not exist", path);
	if (rc)
		return rc;
	rc = gguf_read(&gguf, file_bytes, error);
	if (rc)
		return rc;
	rc = gguf_refuse_split(&gguf, error);
	if (rc)
		return rc;
	*ret = gguf;
	gguf = (struct gguf){.fd = -1};
	return 0;
}

void gguf_deinit(struct gguf *gguf)
{
	safetensors_tensors_free(gguf->tensors, gguf->n_tensors);
	for (uint32_t i = 0; gguf->arrays && i < gguf->n_arrays; i++)
		free(gguf->arrays[i].key);
	free(gguf->arrays);
	json_decref(gguf->fields);
	free(gguf->header);
	cleanup_close(&gguf->fd);
	free(gguf->path);
	*gguf = (struct gguf){.fd = -1};
}

/* ---- look-up ---- */

const struct gguf_array *gguf_find_array(const struct gguf *gguf, const char *key)
{
	for (uint32_t i = 0; i < gguf->n_arrays; i++) {
		if (!strcmp(gguf->arrays[i].key, key))
			return &gguf->arrays[i];
	}
	return NULL;
}

const struct safetensors_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name)
{
	const struct safetensors view = {.tensors = gguf->tensors, .n_tensors = gguf->n_tensors};

	return safetensors_find(&view, name);
}

const char *gguf_next_string(const uint8_t **data, size_t *ret_length)
{
	const char *text = (const char *)*data + sizeof(uint64_t);
	uint64_t length;

	memcpy(&length, *data, sizeof(length));
	*ret_length = le64toh(length);
	*data += sizeof(length) + *ret_length;
	return text;
}
