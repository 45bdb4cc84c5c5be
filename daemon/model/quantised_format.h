/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_QUANTISED_FORMAT_H
#define MIMEO_DAEMON_MODEL_QUANTISED_FORMAT_H

/* How a format lays out its tensors. */

#include "daemon/model/quantised.h"

/* Rows and columns whose codes are unpacked together. GPTQ's data is transposed: the words of a row are far apart,
 * and those of 16 rows in one line of the cache. */
#define QUANTISED_TILE_ROWS 16u
#define QUANTISED_TILE_COLS 128u
struct quantised_tile {
	uint32_t first, n_rows; /* rows of the source, at most QUANTISED_TILE_ROWS */
	uint32_t col, n_cols;   /* col: a multiple of QUANTISED_TILE_COLS; n_cols: at most so many */
};

struct quantised_format {
	const char *data, *dtype; /* the data's name behind "MODULE.", and its dtype */
	const char *factors[2];   /* names of the factors; [1]: NULL, or another that is in use */
	const char *zeros, *groups, *unread; /* NULL: the format has none */
	/* Elements of a stored element along rows and columns. */
	uint32_t pack_rows, pack_cols;
	bool is_transposed; /* data, factors and zeros have the columns first */
	bool is_nibbles;    /* codes are 0 to 15; else they are e4m3 */
	float zero;         /* where no zeros are stored */
	/* Are all of these rows numbers? NULL: they always are. */
	int (*check)(const struct quantised_source *source, const uint8_t *data, uint32_t first,
		uint32_t n, struct model_error *error);
	/* Write the codes of a tile to ret[n_rows, QUANTISED_TILE_COLS], n_cols to a row. `data` begins at row
	 * `first`; transposed data is whole. */
	void (*unpack)(const struct quantised_source *source, const void *data,
		const struct quantised_tile *tile, uint8_t *ret);
	/* Zero n of group g in the words of the stored tensor; NULL: no zeros. */
	uint32_t (*zero_at)(const struct quantised_source *source, const uint32_t *words,
		uint32_t n, uint32_t g);
};

const struct quantised_format *quantised_format_of(enum quantisation_method method);

/* The groups of columns that the file has stored; NULL: each column is in the group of its place. From malloc. */
int quantised_read_groups(const struct quantised_source *source, const struct safetensors *checkpoint,
	uint32_t **ret, struct model_error *error);

static inline uint32_t quantised_divide_up(uint32_t a, uint32_t b)
{
	return a / b + (a % b != 0);
}

/* Factors of a row. */
static inline uint32_t quantised_n_groups(const struct quantised_source *source)
{
	return quantised_divide_up(source->cols, source->block_cols);
}

#endif
