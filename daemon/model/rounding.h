/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_ROUNDING_H
#define MIMEO_DAEMON_MODEL_ROUNDING_H

/*
 * Rows rounded to e4m3, with a factor each, in float32:
 *
 *	factor = max |W[k]| / 448, or 1 where that is 0
 *	q[k] = W[k] / factor, rounded to e4m3 (f32_to_e4m3)
 *
 * The row is then q[k] * factor.
 */

#include <stdbool.h>
#include <stdint.h>

/* The codes of a row, ret[cols]. False, if one of its elements is NaN or infinite; codes and factor are undefined
 * then. */
bool rounding_row(const float *row, uint32_t cols, uint8_t *ret, float *ret_factor);
/* What they stand for, ret[cols]. */
void rounding_widen(float *ret, const uint8_t *codes, uint32_t cols, float factor);

#endif
