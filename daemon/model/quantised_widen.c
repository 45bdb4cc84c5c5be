/* SPDX-License-Identifier: MIT */

/* The contents of side tensors, and data to float32. */

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/quantised_format.h"
#include "daemon/model/quantised_order.h"
#include "ipc/cleanup.h"
#include "kernels/convert.h"

/* No q is larger: e4m3 ends at 448. */
#define Q_MAX 512

/* ---- side tensors ---- */

static int quantised_read_tensor(const struct safetensors *checkpoint,
	const struct safetensors_tensor *tensor, void **ret, struct model_error *error)
{
	const struct safetensors_file *file = &checkpoint->files[tensor->file];
	CLEANUP(cleanup_free) void *bytes = malloc(tensor->bytes ? tensor->bytes : 1);
	int rc;

	if (!bytes)
		return model_fail(error, -ENOMEM, "%s: no memory for tensor \"%.128s\"", file->path,
			tensor->name);
	rc = file_read(file->fd, file->path, tensor->offset, bytes, tensor->bytes, error);
	if (rc)
		return rc;
	*ret = STEAL(bytes);
	return 0;
}

/* [rows, cols] of [cols, rows]. */
static void quantised_transpose(float *ret, const float *from, uint32_t rows, uint32_t cols)
{
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t c = 0; c < cols; c++)
			ret[(size_t)r * cols + c] = from[(size_t)c * rows + r];
	}
}

static int quantised_check_factors(const struct safetensors *checkpoint,
	const struct safetensors_tensor *tensor, const float *factors, size_t n,
	struct model_error *error)
{
	for (size_t i = 0; i < n; i++) {
		if (fabsf(factors[i]) <= FLT_MAX / Q_MAX)
			continue;
		return model_fail(error, -EINVAL,
			"%s: tensor \"%.128s\": element %zu, a factor, is %g",
			checkpoint->files[tensor->file].path, tensor->name, i, (double)factors[i]);
	}
	return 0;
}

static int quantised_read_factors(const struct quantised_source *source,
	const struct safetensors *checkpoint, float **ret, struct model_error *error)
{
	const struct safetensors_tensor *tensor = source->sides[QUANTISED_FACTORS];
	uint32_t rows = quantised_divide_up(source->rows, source->block_rows);
	uint32_t groups = quantised_n_groups(source);
	size_t n = (size_t)rows * groups;
	CLEANUP(cleanup_free) float *factors = calloc(n, sizeof(*factors));
	CLEANUP(cleanup_free) float *turned = NULL;
	CLEANUP(cleanup_free) void *bytes = NULL;
	int rc;

	assert(tensor->usable && tensor->bytes == n * dtype_bytes(tensor->dtype));
	if (source->format->is_transposed)
		turned = calloc(n, sizeof(*turned));
	if (!factors || (source->format->is_transposed && !turned))
		return model_fail(error, -ENOMEM, "%s: no memory for tensor \"%.128s\"",
			source->path, tensor->name);
	rc = quantised_read_tensor(checkpoint, tensor, &bytes, error);
	if (rc)
		return rc;
	weight_to_f32(factors, &(struct weight){.data = bytes, .dtype = tensor->dtype}, 0, n);
	rc = quantised_check_factors(checkpoint, tensor, factors, n, error);
	if (rc)
		return rc;
	if (turned)
		quantised_transpose(turned, factors, rows, groups);
	*ret = turned ? STEAL(turned) : STEAL(factors);
	return 0;
}

static int quantised_read_zeros(const struct quantised_source *source,
	const struct safetensors *checkpoint, float **ret, struct model_error *error)
{
	const struct safetensors_tensor *tensor = source->sides[QUANTISED_ZEROS];
	uint32_t groups = quantised_n_groups(source);
	CLEANUP(cleanup_free) float *zeros = calloc((size_t)source->rows * groups, sizeof(*zeros));
	CLEANUP(cleanup_free) void *words = NULL;
	int rc;

	if (!zeros)
		return model_fail(error, -ENOMEM, "%s: no memory for tensor \"%.128s\"",
			source->path, tensor->name);
	rc = quantised_read_tensor(checkpoint, tensor, &words, error);
	if (rc)
		return rc;
	for (uint32_t n = 0; n < source->rows; n++) {
		for (uint32_t g = 0; g < groups; g++) {
			uint32_t zero = source->format->zero_at(source, words, n, g);

			/* 15 stands for 0: the subtraction was one of four bits */
			zeros[(size_t)n * groups + g] =
				(float)(source->zeros_less_one ? (zero + 1) & 15 : zero);
		}
	}
	*ret = STEAL(zeros);
	return 0;
}

int quantised_read_groups(const struct quantised_source *source, const struct safetensors *checkpoint,
	uint32_t **ret, struct model_error *error)
{
	const struct safetensors_tensor *tensor = source->sides[QUANTISED_GROUPS];
	uint32_t n_groups = quantised_n_groups(source);
	CLEANUP(cleanup_free) void *bytes = NULL;
	const uint32_t *groups;
	bool in_place = true;
	int rc = quantised_read_tensor(checkpoint, tensor, &bytes, error);

	if (rc)
		return rc;
	groups = bytes;
	for (uint32_t k = 0; k < source->cols; k++) {
		if (groups[k] >= n_groups)
			return model_fail(error, -EINVAL,
				"%s: tensor \"%.128s\": element %u, %d, is not one of %u groups",
				checkpoint->files[tensor->file].path, tensor->name, k,
				(int32_t)groups[k], n_groups);
		in_place &= groups[k] == k / source->block_cols;
	}
	*ret = in_place ? NULL : STEAL(bytes);
	return 0;
}

/* Rows [rows, n] in the order. */
static int quantised_order_rows(const struct quantised_source *source, const uint32_t *order, uint32_t n,
	float **rows, struct model_error *error)
{
	CLEANUP(cleanup_free) float *ordered = calloc((size_t)source->rows * n, sizeof(*ordered));
	CLEANUP(cleanup_free) float *from = *rows;

	*rows = NULL;
	if (!ordered)
		return model_fail(error, -ENOMEM, "%s: no memory for tensor \"%.128s\"", source->path,
			source->data->name);
	for (uint32_t row = 0; row < source->rows; row++)
		memcpy(ordered + (size_t)row * n, from + (size_t)order[row] * n, n * sizeof(*ordered));
	*rows = STEAL(ordered);
	return 0;
}

/* Factors, zeros and groups of the file become those of the source's orders. */
static int quantised_sides_order(const struct quantised_source *source, const struct safetensors *checkpoint,
	struct quantised_sides *sides, struct model_error *error)
{
	const uint32_t n_groups = quantised_n_groups(source);
	int rc = 0;

	if (source->col_order.groups) {
		free(sides->groups);
		sides->groups = NULL;
		rc = quantised_order_read(&source->col_order, checkpoint, &sides->cols, error);
	}
	if (rc || !source->row_order.groups)
		return rc;
	assert(source->row_order.n == source->rows && source->block_rows == 1);
	rc = quantised_order_read(&source->row_order, checkpoint, &sides->rows, error);
	if (!rc)
		rc = quantised_order_rows(source, sides->rows, n_groups, &sides->factors, error);
	if (!rc && sides->zeros)
		rc = quantised_order_rows(source, sides->rows, n_groups, &sides->zeros, error);
	return rc;
}

int quantised_sides_read(const struct quantised_source *source,
	const struct safetensors *checkpoint, struct quantised_sides *ret,
	struct model_error *error)
{
	CLEANUP(quantised_sides_deinit) struct quantised_sides sides = {0};
	int rc = quantised_read_factors(source, checkpoint, &sides.factors, error);

	if (rc)
		return rc;
	if (source->sides[QUANTISED_ZEROS])
		rc = quantised_read_zeros(source, checkpoint, &sides.zeros, error);
	if (rc)
		return rc;
	if (source->sides[QUANTISED_GROUPS])
		rc = quantised_read_groups(source, checkpoint, &sides.groups, error);
	if (rc)
		return rc;
	rc = quantised_sides_order(source, checkpoint, &sides, error);
	if (rc)
		return rc;
	*ret = sides;
	sides = (struct quantised_sides){0};
	return 0;
}

void quantised_sides_deinit(struct quantised_sides *sides)
{
	free(sides->factors);
	free(sides->zeros);
	free(sides->groups);
	free(sides->rows);
	free(sides->cols);
	*sides = (struct quantised_sides){0};
}

uint64_t quantised_side_bytes(const struct quantised_source *source)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < QUANTISED_UNREAD; i++)
		bytes += source->sides[i] ? source->sides[i]->bytes : 0;
	return bytes;
}

/* ---- data ---- */

UNCHECKED_LOOP void quantised_u8_to_f32_n(float *restrict dst, const uint8_t *restrict src, size_t n)
{
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			dst[i + j] = (float)src[i + j];
	for (; i < n; i++)
		dst[i] = (float)src[i];
}

/* q of a tile, into the rows of a matrix. */
static void quantised_unpack_tile(const struct quantised_source *source, const uint8_t *data,
	const struct quantised_tile *tile, float *ret)
{
	uint8_t codes[QUANTISED_TILE_ROWS * QUANTISED_TILE_COLS];

	source->format->unpack(source, data, tile, codes);
	check_range(ret, ((size_t)(tile->n_rows - 1) * source->cols + tile->n_cols) * sizeof(*ret));
	for (uint32_t r = 0; r < tile->n_rows; r++) {
		const uint8_t *row = codes + r * QUANTISED_TILE_COLS;

		if (source->format->is_nibbles)
			quantised_u8_to_f32_n(ret + (size_t)r * source->cols, row, tile->n_cols);
		else
			e4m3_to_f32_n(ret + (size_t)r * source->cols, row, tile->n_cols);
	}
}

/* q of rows [first, first + n). */
static void quantised_unpack(const struct quantised_source *source, const uint8_t *data, uint32_t first,
	uint32_t n, float *ret)
{
	const size_t step = quantised_is_transposed(source) ? 0 : quantised_row_bytes(source);
	struct quantised_tile tile;

	for (uint32_t at = 0; at < n; at += tile.n_rows) {
		tile.first = first + at;
		tile.n_rows = n - at < QUANTISED_TILE_ROWS ? n - at : QUANTISED_TILE_ROWS;
		for (tile.col = 0; tile.col < source->cols; tile.col += tile.n_cols) {
			const uint32_t left = source->cols - tile.col;

			tile.n_cols = left < QUANTISED_TILE_COLS ? left : QUANTISED_TILE_COLS;
			quantised_unpack_tile(
				source, data + at * step, &tile, ret + (size_t)at * source->cols + tile.col);
		}
	}
}

UNCHECKED_LOOP void quantised_scale_n(float *q, size_t n, float zero, float factor)
{
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			q[i + j] = (q[i + j] - zero) * factor;
	for (; i < n; i++)
		q[i] = (q[i] - zero) * factor;
}

/* (q - zero) * factor, in place. */
static void quantised_scale_row(const struct quantised_source *source,
	const struct quantised_sides *sides, uint32_t row, float *q)
{
	uint32_t n_groups = quantised_n_groups(source);
	const float *factors = sides->factors + (size_t)(row / source->block_rows) * n_groups;
	const float *zeros = sides->zeros ? sides->zeros + (size_t)row * n_groups : NULL;

	for (uint32_t k = 0, end; k < source->cols; k = end) {
		uint32_t g = sides->groups ? sides->groups[k] : k / source->block_cols;
		uint32_t left = source->cols - k;
		float zero = zeros ? zeros[g] : source->format->zero, factor = factors[g];

		assert(g < n_groups);
		end = sides->groups ? k + 1
				    : k + (left < source->block_cols ? left : source->block_cols);
		quantised_scale_n(q + k, end - k, zero, factor);
	}
}

int quantised_widen(const struct quantised_source *source, const struct quantised_sides *sides,
	const void *data, uint32_t first, uint32_t n, float *ret, struct model_error *error)
{
	int rc = 0;

	assert(first <= source->rows && n <= source->rows - first);
	if (source->format->check)
		rc = source->format->check(source, data, first, n, error);
	if (rc)
		return rc;
	quantised_unpack(source, data, first, n, ret);
	for (uint32_t r = 0; r < n; r++)
		quantised_scale_row(source, sides, first + r, ret + (size_t)r * source->cols);
	return 0;
}
