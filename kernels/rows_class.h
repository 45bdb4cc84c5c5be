/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_ROWS_CLASS_H
#define MIMEO_KERNELS_ROWS_CLASS_H

/*
 * Classes of a product's number of rows. A device may choose a kernel for each class at its first use, so passes of all
 * classes run before the device is locked.
 */

#include <stdint.h>

#define ROWS_CLASS_WIDE 512u /* above it steps have no graph of their own, unless the user asks for one */

/* Above ROWS_CLASS_WIDE the classes end at multiples of this: a quarter of the largest power of two that does not exceed
 * `rows`, so that there are four from one power of two to the next. */
static inline uint32_t rows_class_step(uint32_t rows)
{
	return (0x80000000u >> __builtin_clz(rows)) / 4;
}

#endif
