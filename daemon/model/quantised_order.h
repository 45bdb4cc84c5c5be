/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_QUANTISED_ORDER_H
#define MIMEO_DAEMON_MODEL_QUANTISED_ORDER_H

/*
 * A matrix W whose columns are sorted by their stored groups (GPTQ's desc_act), as packed weights need it.
 *
 * An ORDER lists W's columns: those of group 0 first, and within a group as the file has them. A product with the
 * sorted W needs the elements of its input x in the same order. What writes x provides it: for qkv and gate_up a norm
 * (op_rms_norm), for down the product with gate and up, whose rows are then loaded in the order of down's columns.
 */

#include "daemon/model/quantised.h"

#define QUANTISED_UNORDERED 1
/* The order of the matrix's columns, from its stored groups. 0; QUANTISED_UNORDERED: they are in order, or groups of
 * block_cols columns each are not what is stored, or data of the format cannot be sorted; or -errno with a sentence. */
int quantised_order_of(const struct quantised_source *source, const struct safetensors *checkpoint,
	struct quantised_order *ret, struct model_error *error);
/* Can the rows of such a matrix be put into an order? */
bool quantised_takes_row_order(const struct quantised_source *source);

/* *ret: are the two the same? 0, or -errno with a sentence. */
int quantised_order_same(const struct quantised_order *a, const struct quantised_order *b,
	const struct safetensors *checkpoint, bool *ret, struct model_error *error);
/* The order itself, from malloc: (*ret)[order->n]. 0, or -errno with a sentence: the file has changed since. */
int quantised_order_read(const struct quantised_order *order, const struct safetensors *checkpoint, uint32_t **ret,
	struct model_error *error);

/* Data in the order of the source's rows and columns, in LINES: rows of the tensor as the file has it. Threads may
 * write different lines; `data` and `ret` are whole tensors. */
uint32_t quantised_n_lines(const struct quantised_source *source);
void quantised_order_line(const struct quantised_source *source, const struct quantised_sides *sides, const void *data,
	uint32_t line, void *ret);

#endif
