/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_GGUF_FILE_H
#define MIMEO_TESTS_MODEL_GGUF_FILE_H

/* GGUF files, written field by field. */

#include "tests/model/fixture.h"

#include <errno.h>

#include "daemon/model/gguf.h"

struct gguf_bytes {
	uint8_t *data;
	size_t n, size;
};

struct gguf_file {
	uint32_t version;
	uint64_t n_fields, n_tensors;
	struct gguf_bytes fields, tensors;
};

#define GGUF_FILE_INIT {.version = 3}

static inline void put_bytes(struct gguf_bytes *to, const void *data, size_t n)
{
	if (to->n + n >= to->size) {
		to->size = 2 * (to->n + n) + 64;
		to->data = realloc(to->data, to->size);
		assert_non_null(to->data);
	}
	memcpy(to->data + to->n, data, n);
	to->n += n;
}

static inline void put_uint(struct gguf_bytes *to, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		put_bytes(to, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}

static inline void put_string(struct gguf_bytes *to, const char *text)
{
	put_uint(to, strlen(text), 8);
	put_bytes(to, text, strlen(text));
}

/* A field whose value follows. */
static inline struct gguf_bytes *put_key(
	struct gguf_file *file, const char *key, enum gguf_value type)
{
	file->n_fields++;
	put_string(&file->fields, key);
	put_uint(&file->fields, type, 4);
	return &file->fields;
}

static inline void put_u32(struct gguf_file *file, const char *key, uint32_t value)
{
	put_uint(put_key(file, key, GGUF_U32), value, 4);
}

static inline void put_f32(struct gguf_file *file, const char *key, float value)
{
	put_bytes(put_key(file, key, GGUF_F32), &value, 4);
}

static inline void put_text(struct gguf_file *file, const char *key, const char *text)
{
	put_string(put_key(file, key, GGUF_STRING), text);
}

/* An array of n elements, which follow. */
static inline struct gguf_bytes *put_array(
	struct gguf_file *file, const char *key, enum gguf_value type, uint64_t n)
{
	struct gguf_bytes *to = put_key(file, key, GGUF_ARRAY);

	put_uint(to, type, 4);
	put_uint(to, n, 8);
	return to;
}

/* cols 0: a vector. */
static inline void put_tensor(struct gguf_file *file, const char *name, uint64_t rows, uint64_t cols,
	uint32_t type, uint64_t offset)
{
	file->n_tensors++;
	put_string(&file->tensors, name);
	put_uint(&file->tensors, cols ? 2 : 1, 4);
	if (cols)
		put_uint(&file->tensors, cols, 8);
	put_uint(&file->tensors, rows, 8);
	put_uint(&file->tensors, type, 4);
	put_uint(&file->tensors, offset, 8);
}

/* The header, padded to 32 bytes, and what the builder held is freed. */
static inline struct gguf_bytes gguf_file_finish(struct gguf_file *file)
{
	struct gguf_bytes all = {0};

	put_bytes(&all, "GGUF", 4);
	put_uint(&all, file->version, 4);
	put_uint(&all, file->n_tensors, 8);
	put_uint(&all, file->n_fields, 8);
	put_bytes(&all, file->fields.n ? file->fields.data : (uint8_t *)"", file->fields.n);
	put_bytes(&all, file->tensors.n ? file->tensors.data : (uint8_t *)"", file->tensors.n);
	while (all.n % 32)
		put_uint(&all, 0, 1);
	free(file->fields.data);
	free(file->tensors.data);
	all.size = all.n + 1;
	all.data = realloc(all.data, all.size); /* so that sanitizers see its end */
	assert_non_null(all.data);
	return all;
}

#define WHOLE (1u << 20) /* bytes of a file whose header alone is given */

/* Parse the file, as the beginning of one of that many bytes, or of its own. */
static inline int gguf_file_parse(struct gguf_file *file, uint64_t file_bytes, struct gguf *ret,
	struct model_error *error)
{
	struct gguf_bytes bytes = gguf_file_finish(file);
	int rc = gguf_parse("x.gguf", bytes.data, bytes.n,
		file_bytes > bytes.n ? file_bytes : bytes.n, ret, error);

	free(bytes.data);
	return rc;
}

static inline void gguf_file_refused(struct gguf_file file, uint64_t file_bytes, const char *words)
{
	struct gguf gguf;
	struct model_error error = {""};

	assert_int_equal(gguf_file_parse(&file, file_bytes, &gguf, &error), -EINVAL);
	assert_contains(error.text, "x.gguf: ");
	assert_contains(error.text, words);
}

/* The fields of a small model of the architecture, but for those that the caller puts itself. */
static inline void put_model_fields(
	struct gguf_file *file, const char *architecture, const char *without)
{
	static const struct {
		const char *key;
		uint32_t value;
	} sizes[] = {
		{"context_length", 128}, {"embedding_length", 64}, {"block_count", 2},
		{"feed_forward_length", 96}, {"attention.head_count", 4},
		{"attention.head_count_kv", 2},
	};
	char key[96];

	if (strcmp(without, "general.architecture"))
		put_text(file, "general.architecture", architecture);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		snprintf(key, sizeof(key), "%s.%s", architecture, sizes[i].key);
		if (strcmp(key, without))
			put_u32(file, key, sizes[i].value);
	}
	snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", architecture);
	if (strcmp(key, without))
		put_f32(file, key, 1e-5f);
}

#endif
