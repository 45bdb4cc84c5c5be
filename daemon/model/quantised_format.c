/* SPDX-License-Identifier: MIT */

/* The table of formats. Layouts are those of the programs that write them, which mimeod(8) names. */

#include "daemon/model/quantised_format.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/model/error.h"
#include "kernels/convert.h"

/* Is one of the bytes of e4m3 a NaN, 0x7f or 0xff? */
UNCHECKED_LOOP bool quantised_has_nan(const uint8_t *bytes, size_t n)
{
	uint8_t bad = 0;
	size_t i = 0;

	for (; i + CONVERT_BLOCK <= n; i += CONVERT_BLOCK)
		for (size_t j = 0; j < CONVERT_BLOCK; j++)
			bad |= (bytes[i + j] & 0x7f) == 0x7f;
	for (; i < n; i++)
		bad |= (bytes[i] & 0x7f) == 0x7f;
	return bad;
}

static int quantised_check_fp8(const struct quantised_source *source, const uint8_t *bytes,
	uint32_t first, uint32_t n, struct model_error *error)
{
	size_t at = 0;

	check_range(bytes, (size_t)n * source->cols);
	if (!quantised_has_nan(bytes, (size_t)n * source->cols))
		return 0;
	while ((bytes[at] & 0x7f) != 0x7f)
		at++;
	return model_fail(error, -EINVAL, "%s: tensor \"%.128s\": element [%zu, %zu] is NaN",
		source->path, source->data->name, first + at / source->cols, at % source->cols);
}

static void quantised_unpack_fp8(const struct quantised_source *source, const void *data,
	const struct quantised_tile *tile, uint8_t *ret)
{
	for (uint32_t r = 0; r < tile->n_rows; r++)
		memcpy(ret + r * QUANTISED_TILE_COLS,
			(const uint8_t *)data + (size_t)r * source->cols + tile->col, tile->n_cols);
}

/* ---- 4 bits: eight elements a word, the first of them in the lowest bits ---- */

static uint32_t quantised_nibble(uint32_t word, uint32_t i)
{
	return word >> 4 * i & 15;
}

/* The eight as bytes. */
static void quantised_spread(uint8_t *ret, uint32_t word)
{
	uint64_t bytes = word;

	bytes = (bytes | bytes << 16) & 0x0000ffff0000ffffu;
	bytes = (bytes | bytes << 8) & 0x00ff00ff00ff00ffu;
	bytes = (bytes | bytes << 4) & 0x0f0f0f0f0f0f0f0fu;
	memcpy(ret, &bytes, sizeof(bytes));
}

/* Words [rows, cols / 8]. */
static void quantised_unpack_rows(const struct quantised_source *source, const void *data,
	const struct quantised_tile *tile, uint8_t *ret)
{
	const size_t step = quantised_divide_up(source->cols, 8);
	const uint32_t *words = (const uint32_t *)data + tile->col / 8;

	for (uint32_t r = 0; r < tile->n_rows; r++, words += step)
		for (uint32_t k = 0; k < tile->n_cols; k += 8)
			quantised_spread(ret + r * QUANTISED_TILE_COLS + k, words[k / 8]);
}

/* Zeros [rows / 8, groups]. */
static uint32_t quantised_zero_down(const struct quantised_source *source, const uint32_t *words,
	uint32_t n, uint32_t g)
{
	return quantised_nibble(words[(size_t)(n / 8) * quantised_n_groups(source) + g], n % 8);
}

/* Words [cols / 8, rows]. */
static void quantised_unpack_gptq(const struct quantised_source *source, const void *data,
	const struct quantised_tile *tile, uint8_t *ret)
{
	const uint32_t *words = (const uint32_t *)data + (size_t)(tile->col / 8) * source->rows + tile->first;

	for (uint32_t k = 0; k < tile->n_cols; k += 8, words += source->rows)
		for (uint32_t r = 0; r < tile->n_rows; r++)
			quantised_spread(ret + r * QUANTISED_TILE_COLS + k, words[r]);
}

/* Zeros [groups, rows / 8]. */
static uint32_t quantised_zero_gptq(const struct quantised_source *source, const uint32_t *words,
	uint32_t n, uint32_t g)
{
	return quantised_nibble(
		words[(size_t)g * quantised_divide_up(source->rows, 8) + n / 8], n % 8);
}

/* The places of a word's elements in AWQ's order: nibble i is element 0, 2, 4, 6, 1, 3, 5, 7. */
static const uint8_t awq_nibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Words [cols, rows / 8]. */
static void quantised_unpack_awq(const struct quantised_source *source, const void *data,
	const struct quantised_tile *tile, uint8_t *ret)
{
	const size_t step = quantised_divide_up(source->rows, 8);
	const uint32_t *words = (const uint32_t *)data + tile->col * step;

	for (uint32_t k = 0; k < tile->n_cols; k++, words += step)
		for (uint32_t r = 0; r < tile->n_rows; r++)
			ret[r * QUANTISED_TILE_COLS + k] = (uint8_t)quantised_nibble(
				words[(tile->first + r) / 8], awq_nibbles[(tile->first + r) % 8]);
}

/* Zeros [groups, rows / 8], in the same order. */
static uint32_t quantised_zero_awq(
	const struct quantised_source *source, const uint32_t *words, uint32_t n, uint32_t g)
{
	return quantised_nibble(words[(size_t)g * quantised_divide_up(source->rows, 8) + n / 8],
		awq_nibbles[n % 8]);
}

static const struct quantised_format formats[] = {
	[QUANTISATION_FP8] = {
		.data = "weight",
		.dtype = "F8_E4M3",
		.factors = {"weight_scale_inv", "weight_scale"},
		.unread = "input_scale",
		.pack_rows = 1,
		.pack_cols = 1,
		.check = quantised_check_fp8,
		.unpack = quantised_unpack_fp8,
	},
	[QUANTISATION_PACKED] = {
		.data = "weight_packed",
		.dtype = "I32",
		.factors = {"weight_scale"},
		.zeros = "weight_zero_point",
		.groups = "weight_g_idx",
		.unread = "weight_shape",
		.pack_rows = 1,
		.pack_cols = 8,
		.zero = 8,
		.is_nibbles = true,
		.unpack = quantised_unpack_rows,
		.zero_at = quantised_zero_down,
	},
	[QUANTISATION_GPTQ] = {
		.data = "qweight",
		.dtype = "I32",
		.factors = {"scales"},
		.zeros = "qzeros",
		.groups = "g_idx",
		.pack_rows = 1,
		.pack_cols = 8,
		.is_transposed = true,
		.is_nibbles = true,
		.unpack = quantised_unpack_gptq,
		.zero_at = quantised_zero_gptq,
	},
	[QUANTISATION_AWQ] = {
		.data = "qweight",
		.dtype = "I32",
		.factors = {"scales"},
		.zeros = "qzeros",
		.pack_rows = 8,
		.pack_cols = 1,
		.is_transposed = true,
		.is_nibbles = true,
		.unpack = quantised_unpack_awq,
		.zero_at = quantised_zero_awq,
	},
};

const struct quantised_format *quantised_format_of(enum quantisation_method method)
{
	assert(method < sizeof(formats) / sizeof(formats[0]));
	return &formats[method];
}
