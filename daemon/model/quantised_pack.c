/* SPDX-License-Identifier: MIT */

/* Data to packed weights: which sources units can hold, and their units. */

#include <assert.h>

#include "daemon/model/quantised_format.h"
#include "ipc/cleanup.h"
#include "kernels/packed.h"

static_assert(QUANTISED_TILE_COLS == PACKED_COLS && QUANTISED_TILE_ROWS % PACKED_ROWS == 0,
	"a tile is the codes of whole units");

#define GROUP_MIN (PACKED_COLS / PACKED_GROUPS_MAX)

/* All columns of a row are in one group. */
static bool quantised_is_whole(const struct quantised_source *source)
{
	return source->block_cols >= source->cols;
}

int quantised_packing_of(const struct quantised_source *source, const struct safetensors *checkpoint,
	struct quantised_packing *ret, struct model_error *error)
{
	const bool is_u4 = source->format->is_nibbles;
	CLEANUP(cleanup_free) uint32_t *groups = NULL;
	int rc;

	if (!packed_fits(source->rows, source->cols))
		return QUANTISED_WIDENS;
	if (!quantised_is_whole(source) && source->block_cols % (is_u4 ? GROUP_MIN : PACKED_COLS))
		return QUANTISED_WIDENS;
	/* packed_takes_factor holds for all of float16 and bfloat16 */
	if (is_u4 && source->sides[QUANTISED_FACTORS]->dtype == DTYPE_F32)
		return QUANTISED_WIDENS;
	if (source->sides[QUANTISED_GROUPS] && !source->col_order.groups) {
		rc = quantised_read_groups(source, checkpoint, &groups, error);
		if (rc || groups)
			return rc ? rc : QUANTISED_WIDENS;
	}
	if (is_u4)
		ret->dtype = quantised_is_whole(source) || source->block_cols % PACKED_COLS == 0 ? DTYPE_U4
												 : DTYPE_U4_32;
	else
		ret->dtype = DTYPE_E4M3;
	ret->grouped = is_u4 || !quantised_is_whole(source);
	return 0;
}

void quantised_row_factors(
	const struct quantised_source *source, const struct quantised_sides *sides, float *ret)
{
	assert(quantised_is_whole(source));
	for (uint32_t row = 0; row < source->rows; row++)
		ret[row] = sides->factors[row / source->block_rows];
}

/* The unit of rows from `row` on and columns from `col` on, from its codes. */
static void quantised_pack_unit(const struct quantised_source *source, const struct quantised_sides *sides,
	const struct quantised_packing *packing, uint32_t row, uint32_t col, const uint8_t *codes, uint8_t *ret)
{
	const uint32_t n_groups = quantised_n_groups(source), n = packed_groups(packing->dtype);
	uint8_t zeros[PACKED_GROUPS_MAX * PACKED_ROWS];
	float factors[PACKED_GROUPS_MAX * PACKED_ROWS];

	for (uint32_t i = 0; i < n * PACKED_ROWS; i++) {
		const uint32_t r = row + i % PACKED_ROWS;
		const uint32_t g = (col + i / PACKED_ROWS * (PACKED_COLS / n)) / source->block_cols;

		factors[i] = sides->factors[(size_t)(r / source->block_rows) * n_groups + g];
		zeros[i] = (uint8_t)(sides->zeros ? sides->zeros[(size_t)r * n_groups + g] : source->format->zero);
	}
	packed_unit(ret, packing->dtype, codes, QUANTISED_TILE_COLS, packing->grouped ? factors : NULL,
		packed_is_u4(packing->dtype) ? zeros : NULL);
}

int quantised_pack(const struct quantised_source *source, const struct quantised_sides *sides,
	const struct quantised_packing *packing, const uint8_t *data, uint32_t first, uint32_t n, uint8_t *ret,
	struct model_error *error)
{
	const size_t step = quantised_is_transposed(source) ? 0 : quantised_row_bytes(source);
	const size_t unit_bytes = packed_unit_bytes(packing->dtype, packing->grouped);
	const size_t band_bytes = source->cols / PACKED_COLS * unit_bytes;
	uint8_t codes[QUANTISED_TILE_ROWS * QUANTISED_TILE_COLS];
	struct quantised_tile tile = {.n_cols = QUANTISED_TILE_COLS};
	int rc = 0;

	assert(first % PACKED_ROWS == 0 && n % PACKED_ROWS == 0 && n <= source->rows - first && !sides->groups);
	if (source->format->check)
		rc = source->format->check(source, data, first, n, error);
	if (rc)
		return rc;
	for (uint32_t at = 0; at < n; at += tile.n_rows) {
		tile.first = first + at;
		tile.n_rows = n - at < QUANTISED_TILE_ROWS ? n - at : QUANTISED_TILE_ROWS;
		for (tile.col = 0; tile.col < source->cols; tile.col += QUANTISED_TILE_COLS) {
			source->format->unpack(source, data + at * step, &tile, codes);
			for (uint32_t r = 0; r < tile.n_rows; r += PACKED_ROWS)
				quantised_pack_unit(source, sides, packing, tile.first + r, tile.col,
					codes + r * QUANTISED_TILE_COLS,
					ret + (at + r) / PACKED_ROWS * band_bytes + tile.col / PACKED_COLS * unit_bytes);
		}
	}
	return 0;
}
