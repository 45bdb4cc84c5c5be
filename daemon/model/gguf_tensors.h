/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_TENSORS_H
#define MIMEO_DAEMON_MODEL_GGUF_TENSORS_H

/* A header's bytes, taken one value after another, and the entries of tensors among them. Errors are sticky: after the
 * first one nothing is taken, and values are 0 or NULL. */

#include "daemon/model/safetensors.h"

struct gguf_cursor {
	const char *path;
	const uint8_t *bytes; /* [n], the beginning of a file of file_bytes */
	size_t n, at;
	uint64_t file_bytes;
	int rc; /* 0, GGUF_MORE, or -errno with a sentence */
	struct model_error *error;
};

void gguf_refuse(struct gguf_cursor *cursor, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A run of bytes. */
const uint8_t *gguf_take(struct gguf_cursor *cursor, uint64_t bytes);
/* Of at most 8 bytes. */
uint64_t gguf_take_uint(struct gguf_cursor *cursor, uint32_t bytes);
/* u64 length and bytes, not terminated. */
const char *gguf_take_string(struct gguf_cursor *cursor, size_t limit, size_t *ret_length);
/* A string of 1 to size - 1 bytes without NUL; `what` is for errors. */
void gguf_take_name(struct gguf_cursor *cursor, const char *what, char *ret, size_t size);

/* The entries of n tensors and the place of their data. On success tensors are sorted by name; on failure the first
 * *ret_n have names. */
void gguf_take_tensors(struct gguf_cursor *cursor, uint32_t n, uint32_t alignment,
	struct safetensors_tensor *tensors, uint32_t *ret_n);

#endif
