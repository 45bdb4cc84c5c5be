/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_QUANTISED_H
#define MIMEO_DAEMON_MODEL_QUANTISED_H

/*
 * Matrices that a checkpoint holds quantised, and their widening to float32 or packing (kernels/packed.h).
 *
 * A SOURCE is a matrix W [rows, cols]: the file's numbers q (its DATA) and SIDE TENSORS, which are
 * small. Whatever the format, in float32, and exactly in this order of operations,
 *
 *	W[n, k] = (q[n, k] - zero[n, g]) * factor[n / block_rows, g]
 *
 * where the column's group g is k / block_cols, or is stored. A FORMAT knows the tensors' names,
 * dtypes and layouts. Rows are widened in any order, some at a time. A row is row_bytes of the data, unless the data
 * is transposed or is loaded in another order than the file's (quantised_order.h). Such data has to be whole in memory:
 * the uploader gathers it, for about as many tensors as it has reads in flight.
 *
 * quantised_find: names, dtypes, shapes, before anything is read; quantised_sides_read: the side
 * tensors' contents, checked; quantised_widen: data and sides to float32; quantised_pack: to units.
 */

#include "daemon/model/quantisation.h"
#include "daemon/model/safetensors.h"

enum quantised_side {
	QUANTISED_FACTORS,
	QUANTISED_ZEROS,
	QUANTISED_GROUPS, /* [cols] */
	QUANTISED_UNREAD, /* a tensor of the module that does not change its weights */
	QUANTISED_SIDES,
};

/* Of columns, by their stored groups (quantised_order.h). */
struct quantised_order {
	const struct safetensors_tensor *groups; /* NULL: the file's order */
	uint32_t n, block;                       /* columns, and those of a group */
};

struct quantised_source {
	const struct quantised_format *format; /* NULL: the tensor is not quantised */
	const char *path;                      /* the data's file, for errors */
	const struct safetensors_tensor *data;
	const struct safetensors_tensor *sides[QUANTISED_SIDES]; /* NULL: none */
	uint32_t rows, cols;
	uint32_t block_rows, block_cols; /* elements that share a factor */
	/* What the loaded matrix has, instead of the file's order: the rows of one and the columns of the other. */
	struct quantised_order row_order, col_order;
	bool zeros_less_one;
};

struct quantised_sides {
	float *factors;   /* [rows / block_rows, groups] */
	float *zeros;     /* [rows, groups]; NULL: all are the format's */
	uint32_t *groups; /* [cols]; NULL: k / block_cols */
	/* [rows], [cols] of the file; NULL: in its order. Factors and zeros have the rows' order, groups are NULL if
	 * columns have one. */
	uint32_t *rows, *cols;
};

/* The module's matrix of that shape: 0, also if its data is not there or not quantised (format
 * NULL), or -errno with a sentence that names the tensor: a side tensor is missing, or has another
 * dtype or shape. *ret_name: the name that the data has, for the sentence of a caller that needs
 * it. */
#define QUANTISED_NAME_MAX 128
int quantised_find(const struct safetensors *checkpoint, const struct quantisation_scheme *scheme,
	const char *module, uint32_t rows, uint32_t cols, struct quantised_source *ret,
	char ret_name[QUANTISED_NAME_MAX], struct model_error *error);

/* Read and check: no factor is NaN, infinite, or so large that a weight could be. *ret is the
 * caller's. */
int quantised_sides_read(const struct quantised_source *source,
	const struct safetensors *checkpoint, struct quantised_sides *ret,
	struct model_error *error);
/* A zeroed one is allowed. */
void quantised_sides_deinit(struct quantised_sides *sides);
/* Bytes of the side tensors that quantised_sides_read reads. */
uint64_t quantised_side_bytes(const struct quantised_source *source);

/* How units hold a matrix. */
struct quantised_packing {
	enum dtype dtype; /* E4M3, U4 or U4_32 */
	bool grouped;     /* with their factors; else each row has one (quantised_row_factors) */
};
#define QUANTISED_WIDENS 1 /* units cannot hold it */
/* From the headers, and from the columns' groups where they are stored. 0, QUANTISED_WIDENS, or -errno with a
 * sentence. */
int quantised_packing_of(const struct quantised_source *source, const struct safetensors *checkpoint,
	struct quantised_packing *ret, struct model_error *error);

bool quantised_is_transposed(const struct quantised_source *source);
/* Its data has to be whole in memory: it is transposed, or gets another order. */
bool quantised_is_gathered(const struct quantised_source *source);
/* It gets another order. */
bool quantised_is_ordered(const struct quantised_source *source);
/* Of the data, if it is not transposed. */
uint64_t quantised_row_bytes(const struct quantised_source *source);
/* Rows [first, first + n) to ret[n, cols]. `data`: these rows of it, or all of it if it is
 * transposed. 0, or -EINVAL with a sentence: a weight is not a number. */
int quantised_widen(const struct quantised_source *source, const struct quantised_sides *sides,
	const void *data, uint32_t first, uint32_t n, float *ret, struct model_error *error);
/* The same rows to units; first and n are multiples of PACKED_ROWS. */
int quantised_pack(const struct quantised_source *source, const struct quantised_sides *sides,
	const struct quantised_packing *packing, const uint8_t *data, uint32_t first, uint32_t n, uint8_t *ret,
	struct model_error *error);
/* The factor of each row, ret[rows], of a matrix that is packed without groups. */
void quantised_row_factors(
	const struct quantised_source *source, const struct quantised_sides *sides, float *ret);

#endif
