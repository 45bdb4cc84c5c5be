/* SPDX-License-Identifier: MIT */
#include "daemon/model/quantised_order.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/quantised_format.h"
#include "ipc/cleanup.h"

/* ---- orders ---- */

/* Write the order of the columns. False: a group is not as large as its place says. */
static bool quantised_sort_columns(
	const uint32_t *groups, uint32_t n, uint32_t block, uint32_t *ends, uint32_t *ret)
{
	const uint32_t n_groups = quantised_divide_up(n, block);

	for (uint32_t g = 0; g < n_groups; g++)
		ends[g] = g * block;
	for (uint32_t k = 0; k < n; k++) {
		const uint32_t g = groups[k];

		if (g >= n_groups || ends[g] == n || ends[g] == (g + 1) * block)
			return false;
		ret[ends[g]++] = k;
	}
	return true;
}

/* Words of eight neighbours of a row. */
static bool quantised_has_words(const struct quantised_source *source)
{
	return source->format->is_nibbles && source->format->pack_rows == 1 && source->format->pack_cols == 8;
}

bool quantised_takes_row_order(const struct quantised_source *source)
{
	return source->format && quantised_has_words(source) && source->block_rows == 1;
}

/* 0, QUANTISED_UNORDERED, or -errno with a sentence. */
static int quantised_order_try(const struct quantised_order *order, const struct safetensors *checkpoint,
	uint32_t **ret, struct model_error *error)
{
	const struct safetensors_file *file = &checkpoint->files[order->groups->file];
	CLEANUP(cleanup_free) uint32_t *groups = calloc(order->n, sizeof(*groups));
	CLEANUP(cleanup_free) uint32_t *columns = calloc(order->n, sizeof(*columns));
	CLEANUP(cleanup_free) uint32_t *ends = calloc(quantised_divide_up(order->n, order->block), sizeof(*ends));
	int rc;

	assert(order->groups->bytes == order->n * sizeof(*groups));
	if (!groups || !columns || !ends)
		return model_fail(
			error, -ENOMEM, "%s: no memory for tensor \"%.128s\"", file->path, order->groups->name);
	rc = file_read(file->fd, file->path, order->groups->offset, groups, order->groups->bytes, error);
	if (rc)
		return rc;
	if (!quantised_sort_columns(groups, order->n, order->block, ends, columns))
		return QUANTISED_UNORDERED;
	*ret = STEAL(columns);
	return 0;
}

static bool quantised_is_sorted(const uint32_t *columns, uint32_t n)
{
	uint32_t k = 0;

	while (k < n && columns[k] == k)
		k++;
	return k == n;
}

int quantised_order_of(const struct quantised_source *source, const struct safetensors *checkpoint,
	struct quantised_order *ret, struct model_error *error)
{
	const struct quantised_order order = {source->sides[QUANTISED_GROUPS], source->cols, source->block_cols};
	CLEANUP(cleanup_free) uint32_t *columns = NULL;
	int rc;

	if (!order.groups || !quantised_has_words(source) || source->cols % 8)
		return QUANTISED_UNORDERED;
	rc = quantised_order_try(&order, checkpoint, &columns, error);
	if (rc)
		return rc;
	if (quantised_is_sorted(columns, order.n))
		return QUANTISED_UNORDERED;
	*ret = order;
	return 0;
}

int quantised_order_read(const struct quantised_order *order, const struct safetensors *checkpoint, uint32_t **ret,
	struct model_error *error)
{
	int rc = quantised_order_try(order, checkpoint, ret, error);

	if (rc != QUANTISED_UNORDERED)
		return rc;
	return model_fail(error, -EINVAL, "%s: tensor \"%.128s\" has changed while it was read",
		checkpoint->files[order->groups->file].path, order->groups->name);
}

int quantised_order_same(const struct quantised_order *a, const struct quantised_order *b,
	const struct safetensors *checkpoint, bool *ret, struct model_error *error)
{
	CLEANUP(cleanup_free) uint32_t *columns = NULL;
	CLEANUP(cleanup_free) uint32_t *others = NULL;
	int rc = quantised_order_read(a, checkpoint, &columns, error);

	if (!rc)
		rc = quantised_order_read(b, checkpoint, &others, error);
	if (rc)
		return rc;
	*ret = a->n == b->n && !memcmp(columns, others, a->n * sizeof(*columns));
	return 0;
}

/* ---- data ---- */

uint32_t quantised_n_lines(const struct quantised_source *source)
{
	return quantised_is_transposed(source) ? quantised_divide_up(source->cols, 8) : source->rows;
}

/* Eight columns of all rows. */
static void quantised_order_columns(const struct quantised_source *source, const struct quantised_sides *sides,
	const uint32_t *words, uint32_t line, uint32_t *ret)
{
	const size_t n_rows = source->rows;

	memset(ret, 0, n_rows * sizeof(*ret));
	for (uint32_t i = 0; i < 8; i++) {
		const uint32_t col = sides->cols[line * 8 + i];
		const uint32_t *from = words + col / 8 * n_rows;

		for (size_t n = 0; n < n_rows; n++)
			ret[n] |= (from[sides->rows ? sides->rows[n] : n] >> 4 * (col % 8) & 15) << 4 * i;
	}
}

/* All columns of a row. */
static void quantised_order_row(
	const struct quantised_source *source, const struct quantised_sides *sides, const uint32_t *from, uint32_t *ret)
{
	memset(ret, 0, source->cols / 8 * sizeof(*ret));
	for (uint32_t k = 0; k < source->cols; k++) {
		const uint32_t col = sides->cols[k];

		ret[k / 8] |= (from[col / 8] >> 4 * (col % 8) & 15) << 4 * (k % 8);
	}
}

void quantised_order_line(const struct quantised_source *source, const struct quantised_sides *sides, const void *data,
	uint32_t line, void *ret)
{
	const bool is_transposed = quantised_is_transposed(source);
	const size_t n_words = is_transposed ? source->rows : quantised_divide_up(source->cols, 8);
	uint32_t *to = (uint32_t *)ret + line * n_words;
	const uint32_t *words = data;

	assert(quantised_has_words(source) && line < quantised_n_lines(source));
	if (is_transposed && sides->cols) {
		quantised_order_columns(source, sides, words, line, to);
	} else if (is_transposed) {
		for (size_t n = 0; n < n_words; n++)
			to[n] = words[line * n_words + sides->rows[n]];
	} else {
		const uint32_t *from = words + (sides->rows ? sides->rows[line] : line) * n_words;

		if (sides->cols)
			quantised_order_row(source, sides, from, to);
		else
			memcpy(to, from, n_words * sizeof(*to));
	}
}
