/* SPDX-License-Identifier: MIT */

/* The table of formats. Layouts are those of the programs that write them, which mimeod(8) names. */

#include "daemon/model/quantised_format.h"

#include <assert.h>
#include <errno.h>

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
	uint32_t first, uint32_t n, float *ret)
{
	size_t count = (size_t)n * source->cols;

	check_range(data, count);
	check_range(ret, count * sizeof(*ret));
	e4m3_to_f32_n(ret, data, count);
}

/* ---- 4 bits: eight elements a word, the first of them in the lowest bits ---- */

static uint32_t quantised_nibble(uint32_t word, uint32_t i)
{
	return word >> 4 * i & 15;
}

/* n elements of consecutive words, the first one being the first word's. */
static void quantised_spread(float *ret, const uint32_t *words, size_t stride, uint32_t n)
{
	uint32_t i = 0;

	for (; i + 8 <= n; i += 8, words += stride)
		for (uint32_t j = 0; j < 8; j++)
			ret[i + j] = (float)quantised_nibble(*words, j);
	for (; i < n; i++)
		ret[i] = (float)quantised_nibble(*words, i % 8);
}

/* Words [rows, cols / 8]. */
static void quantised_unpack_rows(const struct quantised_source *source, const void *data,
	uint32_t first, uint32_t n, float *ret)
{
	size_t step = quantised_divide_up(source->cols, 8);

	for (uint32_t r = 0; r < n; r++)
		quantised_spread(ret + (size_t)r * source->cols, (const uint32_t *)data + r * step,
			1, source->cols);
}

/* Zeros [rows / 8, groups]. */
static uint32_t quantised_zero_down(const struct quantised_source *source, const uint32_t *words,
	uint32_t n, uint32_t g)
{
	return quantised_nibble(words[(size_t)(n / 8) * quantised_n_groups(source) + g], n % 8);
}

/* Words [cols / 8, rows]. */
static void quantised_unpack_gptq(const struct quantised_source *source, const void *data,
	uint32_t first, uint32_t n, float *ret)
{
	for (uint32_t r = 0; r < n; r++)
		quantised_spread(ret + (size_t)r * source->cols,
			(const uint32_t *)data + first + r, source->rows, source->cols);
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

/* Words [cols, rows / 8]. The rows of a word together, so that it is read once. */
static void quantised_unpack_awq(const struct quantised_source *source, const void *data,
	uint32_t first, uint32_t n, float *ret)
{
	uint32_t step = quantised_divide_up(source->rows, 8), end;

	for (uint32_t row = first; row < first + n; row = end) {
		const uint32_t *words = (const uint32_t *)data + row / 8;

		end = (row / 8 + 1) * 8 < first + n ? (row / 8 + 1) * 8 : first + n;
		for (uint32_t k = 0; k < source->cols; k++, words += step)
			for (uint32_t r = row; r < end; r++)
				ret[(size_t)(r - first) * source->cols + k] =
					(float)quantised_nibble(*words, awq_nibbles[r % 8]);
	}
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
		.unpack = quantised_unpack_awq,
		.zero_at = quantised_zero_awq,
	},
};

const struct quantised_format *quantised_format_of(enum quantisation_method method)
{
	assert(method < sizeof(formats) / sizeof(formats[0]));
	return &formats[method];
}
