/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf_tensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/gguf.h"
#include "daemon/model/gguf_blocks.h"

/* ---- the cursor ---- */

void gguf_refuse(struct gguf_cursor *cursor, const char *format, ...)
{
	char why[400];
	va_list args;

	if (cursor->rc)
		return;
	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	cursor->rc = model_fail(cursor->error, -EINVAL, "%s: %s", cursor->path, why);
}

const uint8_t *gguf_take(struct gguf_cursor *cursor, uint64_t bytes)
{
	const uint8_t *taken = cursor->bytes + cursor->at;

	assert(cursor->at <= cursor->n && cursor->n <= cursor->file_bytes);
	if (cursor->rc)
		return NULL;
	if (bytes > cursor->file_bytes - cursor->at) {
		gguf_refuse(cursor,
			"its header leaves the file, which has %" PRIu64 " bytes: %" PRIu64
			" bytes at byte %zu",
			cursor->file_bytes, bytes, cursor->at);
		return NULL;
	}
	if (bytes > cursor->n - cursor->at) {
		cursor->rc = GGUF_MORE;
		return NULL;
	}
	cursor->at += (size_t)bytes;
	return taken;
}

uint64_t gguf_take_uint(struct gguf_cursor *cursor, uint32_t bytes)
{
	const uint8_t *taken = gguf_take(cursor, bytes);
	uint64_t value = 0;

	assert(bytes <= sizeof(value));
	for (uint32_t i = 0; taken && i < bytes; i++)
		value |= (uint64_t)taken[i] << (8 * i);
	return value;
}

const char *gguf_take_string(struct gguf_cursor *cursor, size_t limit, size_t *ret_length)
{
	uint64_t length = gguf_take_uint(cursor, 8);
	const uint8_t *text;

	if (!cursor->rc && length > limit)
		gguf_refuse(cursor, "a name of %" PRIu64 " bytes; the limit is %zu", length, limit);
	text = gguf_take(cursor, length);
	*ret_length = text ? (size_t)length : 0;
	return (const char *)text;
}

void gguf_take_name(struct gguf_cursor *cursor, const char *what, char *ret, size_t size)
{
	size_t length;
	const char *text = gguf_take_string(cursor, size - 1, &length);

	if (!text)
		return;
	if (!length || memchr(text, 0, length)) {
		gguf_refuse(cursor, "%s is empty or has a NUL", what);
		return;
	}
	memcpy(ret, text, length);
	ret[length] = 0;
}

/* ---- one tensor ---- */

/* A row is a run of whole blocks. */
static void gguf_size_tensor(
	struct gguf_cursor *cursor, uint32_t number, struct safetensors_tensor *tensor)
{
	const struct gguf_type *type = gguf_type_find(number);
	uint64_t elements = 1;

	for (uint32_t i = 0; i < tensor->n_dims; i++) {
		if (!tensor->shape[i] ||
			__builtin_mul_overflow(elements, tensor->shape[i], &elements)) {
			gguf_refuse(cursor, "tensor \"%s\": its shape is empty or overflows",
				tensor->name);
			return;
		}
	}
	snprintf(tensor->dtype_name, sizeof(tensor->dtype_name), "%" PRIu32, number);
	if (!type)
		return;
	snprintf(tensor->dtype_name, sizeof(tensor->dtype_name), "%s", type->name);
	tensor->usable = type->usable;
	tensor->dtype = type->dtype;
	tensor->format = type->format;
	if (tensor->shape[tensor->n_dims - 1] % type->elements)
		gguf_refuse(cursor,
			"tensor \"%s\": rows of %" PRIu64 " elements are not made of blocks of %u, "
			"as type %s needs",
			tensor->name, tensor->shape[tensor->n_dims - 1], type->elements, type->name);
	else if (__builtin_mul_overflow(elements / type->elements, type->bytes, &tensor->bytes))
		gguf_refuse(cursor, "tensor \"%s\": its shape is empty or overflows", tensor->name);
}

/* The offset is from where the data begins, which is not known yet. */
static void gguf_take_tensor(
	struct gguf_cursor *cursor, uint32_t alignment, struct safetensors_tensor *tensor)
{
	uint64_t n_dims = gguf_take_uint(cursor, 4);

	if (!cursor->rc && (!n_dims || n_dims > GGUF_DIMS_MAX))
		gguf_refuse(cursor, "tensor \"%s\": %" PRIu64 " dimensions; the range is 1 to %u",
			tensor->name, n_dims, GGUF_DIMS_MAX);
	if (cursor->rc)
		return;
	tensor->n_dims = (uint32_t)n_dims;
	for (uint32_t i = 0; i < tensor->n_dims; i++)
		tensor->shape[tensor->n_dims - 1 - i] = gguf_take_uint(cursor, 8);
	uint32_t type = (uint32_t)gguf_take_uint(cursor, 4);
	tensor->offset = gguf_take_uint(cursor, 8);
	if (cursor->rc)
		return;
	if (tensor->offset % alignment)
		gguf_refuse(cursor,
			"tensor \"%s\": offset %" PRIu64
			" is not a multiple of general.alignment %u",
			tensor->name, tensor->offset, alignment);
	gguf_size_tensor(cursor, type, tensor);
}

/* ---- all of them ---- */

static int gguf_by_offset(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int gguf_by_name(const void *a, const void *b)
{
	return strcmp(((const struct safetensors_tensor *)a)->name,
		((const struct safetensors_tensor *)b)->name);
}

/* Sorted by offset. */
static void gguf_place_tensors(struct gguf_cursor *cursor, uint64_t data_start,
	struct safetensors_tensor *tensors, uint32_t n)
{
	uint64_t data_bytes = cursor->file_bytes - data_start, end = 0;

	if (cursor->file_bytes < data_start) {
		gguf_refuse(cursor, "ends before the data of its tensors");
		return;
	}
	for (uint32_t i = 0; i < n && !cursor->rc; i++) {
		struct safetensors_tensor *t = &tensors[i];

		if (t->offset > data_bytes || t->bytes > data_bytes - t->offset)
			gguf_refuse(cursor,
				"tensor \"%s\": %" PRIu64 " bytes at offset %" PRIu64
				" leave the file, which has %" PRIu64 " bytes of data",
				t->name, t->bytes, t->offset, data_bytes);
		else if (i && t->offset < end)
			gguf_refuse(cursor, "tensor \"%s\": its data overlaps that of \"%s\"",
				t->name, tensors[i - 1].name);
		end = t->offset + t->bytes;
		t->offset += data_start;
	}
}

void gguf_take_tensors(struct gguf_cursor *cursor, uint32_t n, uint32_t alignment,
	struct safetensors_tensor *tensors, uint32_t *ret_n)
{
	char name[GGUF_NAME_MAX + 1];

	for (*ret_n = 0; *ret_n < n && !cursor->rc;) {
		struct safetensors_tensor *tensor = &tensors[*ret_n];

		gguf_take_name(cursor, "a tensor's name", name, sizeof(name));
		if (cursor->rc)
			return;
		tensor->name = strdup(name);
		if (!tensor->name) {
			cursor->rc = model_fail(
				cursor->error, -ENOMEM, "%s: no memory for its header", cursor->path);
			return;
		}
		++*ret_n;
		gguf_take_tensor(cursor, alignment, tensor);
	}
	if (cursor->rc || !n)
		return;
	qsort(tensors, n, sizeof(*tensors), gguf_by_offset);
	gguf_place_tensors(cursor, (cursor->at + alignment - 1) / alignment * alignment, tensors, n);
	qsort(tensors, n, sizeof(*tensors), gguf_by_name);
	for (uint32_t i = 1; i < n && !cursor->rc; i++) {
		if (!strcmp(tensors[i - 1].name, tensors[i].name))
			gguf_refuse(cursor, "tensor \"%s\" comes twice", tensors[i].name);
	}
}
