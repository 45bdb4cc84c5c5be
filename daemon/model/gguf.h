/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_H
#define MIMEO_DAEMON_MODEL_GGUF_H

/*
 * GGUF files (ggml, docs/gguf.md), little-endian: magic "GGUF", version, counts, metadata (key, type, value), an entry
 * for each tensor (name, dimensions, type, offset), padding, the data. Opening reads and checks the header; no data is
 * touched.
 *
 * Everything but arrays is converted: values to JSON, so that they are read as fields of a configuration are (field.h),
 * and tensors to those of a checkpoint, with dimensions in row order. Tensors lie within the file, aligned and without
 * overlap; each has the size that its shape and type make.
 */

#include <jansson.h>

#include "daemon/model/safetensors.h"

#define GGUF_HEADER_MAX (256u << 20)
#define GGUF_FIELDS_MAX 4096u
#define GGUF_TENSORS_MAX 65536u
#define GGUF_KEY_MAX 255u /* bytes of a key */
#define GGUF_NAME_MAX 127u /* bytes of a tensor's name */
#define GGUF_DIMS_MAX 4u
#define GGUF_ALIGNMENT_MAX 65536u

enum gguf_value {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64,
};

/* An array of scalars or strings, within the header. */
struct gguf_array {
	char *key;
	enum gguf_value type; /* of its elements */
	uint64_t n;
	const uint8_t *data; /* a string: u64 length and bytes */
};

struct gguf {
	char *path;
	int fd;
	uint8_t *header;  /* arrays lie in it */
	json_t *fields;   /* key: value; an array is an empty list; a string that is not UTF-8 or has a NUL is null if
			   * nothing depends on it: it is not the architecture, one of its fields or of tokenizer.ggml */
	struct gguf_array *arrays;
	uint32_t n_arrays;
	struct safetensors_tensor *tensors; /* sorted by name */
	uint32_t n_tensors;
};

#define GGUF_MORE 1 /* the header is longer than the bytes given */

/* Read and check a file's header. `directory_fd` may be AT_FDCWD. 0, or -errno with a sentence. */
int gguf_open(const char *path, struct gguf *ret, struct model_error *error);
/* A zeroed one is allowed. */
void gguf_deinit(struct gguf *gguf);
/* The first n bytes of a file of file_bytes, which stay in place while *ret is used; path, fd and header of *ret are
 * not set. 0, GGUF_MORE, or -errno with a sentence. */
int gguf_parse(const char *path, const uint8_t *bytes, size_t n, uint64_t file_bytes,
	struct gguf *ret, struct model_error *error);

/* NULL: there is no array of that name. */
const struct gguf_array *gguf_find_array(const struct gguf *gguf, const char *key);
const struct safetensors_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);
/* Take the next string off an array's data. */
const char *gguf_next_string(const uint8_t **data, size_t *ret_length);

#endif
