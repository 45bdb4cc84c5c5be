/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_QUANTISED_FORMAT_H
#define MIMEO_DAEMON_MODEL_QUANTISED_FORMAT_H

/* How a format lays out its tensors. */

#include "daemon/model/quantised.h"

struct quantised_format {
	const char *data, *dtype; /* the data's name behind "MODULE.", and its dtype */
	const char *factors[2];   /* names of the factors; [1]: NULL, or another that is in use */
	const char *zeros, *groups, *unread; /* NULL: the format has none */
	/* Elements of a stored element along rows and columns. */
	uint32_t pack_rows, pack_cols;
	bool is_transposed; /* data, factors and zeros have the columns first */
	float zero;         /* where no zeros are stored */
	/* Are all of these rows numbers? NULL: they always are. */
	int (*check)(const struct quantised_source *source, const uint8_t *data, uint32_t first,
		uint32_t n, struct model_error *error);
	/* q of rows [first, first + n), a row of the source after another. */
	void (*unpack)(const struct quantised_source *source, const void *data, uint32_t first,
		uint32_t n, float *ret);
	/* Zero n of group g in the words of the stored tensor; NULL: no zeros. */
	uint32_t (*zero_at)(const struct quantised_source *source, const uint32_t *words,
		uint32_t n, uint32_t g);
};

const struct quantised_format *quantised_format_of(enum quantisation_method method);

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
