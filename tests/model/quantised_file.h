/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_QUANTISED_FILE_H
#define MIMEO_TESTS_MODEL_QUANTISED_FILE_H

/* A model.safetensors with the tensors of one module, "m", written by hand, and its matrix. */

#include "tests/model/fixture.h"

#include <errno.h>

#include "daemon/model/quantised.h"

struct quantised_file {
	char header[4096];
	size_t header_bytes;
	uint8_t data[4096];
	size_t bytes;
};

/* `shape`: "2,3". */
static inline void file_add(struct quantised_file *file, const char *name, const char *dtype,
	const char *shape, const void *data, size_t bytes)
{
	assert_true(file->bytes + bytes <= sizeof(file->data));
	file->header_bytes += (size_t)snprintf(file->header + file->header_bytes,
		sizeof(file->header) - file->header_bytes,
		"%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
		file->header_bytes ? ',' : '{', name, dtype, shape, file->bytes,
		file->bytes + bytes);
	memcpy(file->data + file->bytes, data, bytes);
	file->bytes += bytes;
}

#define FILE_ADD(file, name, dtype, shape, ...)                                                    \
	file_add(file, name, dtype, shape, __VA_ARGS__, sizeof(__VA_ARGS__))

static inline void file_write(const struct quantised_file *file, const struct scratch *scratch)
{
	uint8_t *all = malloc(8 + sizeof(file->header) + sizeof(file->data));
	size_t length = file->header_bytes + 1;

	assert_non_null(all);
	for (int i = 0; i < 8; i++)
		all[i] = (uint8_t)(length >> (8 * i));
	memcpy(all + 8, file->header, file->header_bytes);
	all[8 + file->header_bytes] = '}';
	memcpy(all + 8 + length, file->data, file->bytes);
	scratch_write(scratch, "model.safetensors", all, 8 + length + file->bytes);
	free(all);
}

/* The matrix [rows, cols] of the file, `step` rows at a time: 0, or why not. */
static inline int file_widen(const struct quantised_file *file, const struct scratch *scratch,
	const struct quantisation_scheme *scheme, uint32_t rows, uint32_t cols, uint32_t step,
	float *ret, struct model_error *error)
{
	struct safetensors checkpoint;
	struct quantised_source source;
	struct quantised_sides sides = {0};
	char name[QUANTISED_NAME_MAX];
	int rc;

	file_write(file, scratch);
	assert_int_equal(safetensors_open(scratch->directory, &checkpoint, error), 0);
	rc = quantised_find(&checkpoint, scheme, "m", rows, cols, &source, name, error);
	if (!rc) {
		assert_non_null(source.format);
		rc = quantised_sides_read(&source, &checkpoint, &sides, error);
	}
	for (uint32_t at = 0; at < rows && !rc; at += step) {
		uint8_t *data = malloc(source.data->bytes);
		bool whole = quantised_is_transposed(&source);
		size_t skip = whole ? 0 : at * quantised_row_bytes(&source);
		uint32_t n = rows - at < step ? rows - at : step;

		assert_non_null(data);
		assert_true(pread(checkpoint.files[0].fd, data, source.data->bytes,
				    (off_t)source.data->offset) == (ssize_t)source.data->bytes);
		rc = quantised_widen(
			&source, &sides, data + skip, at, n, ret + (size_t)at * cols, error);
		free(data);
	}
	quantised_sides_deinit(&sides);
	safetensors_deinit(&checkpoint);
	return rc;
}

static inline void assert_widens(const struct quantised_file *file, const struct scratch *scratch,
	const struct quantisation_scheme *scheme, uint32_t rows, uint32_t cols, const float *want)
{
	struct model_error error = {""};
	float have[512];

	assert_true((size_t)rows * cols <= ARRAY_SIZE(have));
	for (uint32_t step = 1; step <= rows; step += rows > 1 ? rows - 1 : 1) {
		memset(have, 0xff, sizeof(have));
		if (file_widen(file, scratch, scheme, rows, cols, step, have, &error))
			fail_msg("%s", error.text);
		for (uint32_t i = 0; i < rows * cols; i++) {
			if (have[i] != want[i])
				fail_msg("[%u, %u] is %g, not %g", i / cols, i % cols,
					(double)have[i], (double)want[i]);
		}
	}
}

static inline void assert_refused(const struct quantised_file *file, const struct scratch *scratch,
	const struct quantisation_scheme *scheme, uint32_t rows, uint32_t cols, int want,
	const char *words)
{
	struct model_error error = {""};
	float have[512];

	assert_int_equal(
		file_widen(file, scratch, scheme, rows, cols, rows, have, &error), want);
	assert_contains(error.text, scratch->directory);
	assert_contains(error.text, words);
}

#endif
