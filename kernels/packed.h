/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_PACKED_H
#define MIMEO_KERNELS_PACKED_H

/*
 * PACKED weights: matrices that stay quantised in the device's memory, in an order that tensor cores take
 * as it is.
 *
 *	W[n, k] = (q[n, k] - zero[n, g]) * factor[n, g]
 *
 * The CODE q is e4m3, without zeros (DTYPE_E4M3), or a number from 0 to 15 (DTYPE_U4, DTYPE_U4_32). The GROUP g
 * of a column k is k / 128, of U4_32 k / 32, or, of e4m3 alone, the whole row, whose factors are then struct
 * weight's.
 *
 * A UNIT is 8 rows by 128 columns, contiguous:
 *
 *	E4M3   2 fragments of 64 columns, then in groups float factor[8]     1024 or 1056 bytes
 *	U4     1 fragment of 128 columns, then float factor[8]               544 bytes
 *	U4_32  the same fragment, then float factor[4][8], by groups         640 bytes
 *
 * A matrix is its units, those of the first 8 rows first. In a FRAGMENT of 512 bytes, 16 of them belong to
 * each lane of a warp: lane 4 r + i has of row r the columns 16 j + {2 i, 2 i + 1, 2 i + 8, 2 i + 9} for all
 * j, as mma.m16n8k16 wants operand b and wgmma its operand a (PTX ISA, "Matrix Fragments"). Within the 16
 * bytes:
 *
 *	E4M3   word j has columns 2 i, 2 i + 1, 2 i + 8, 2 i + 9 in its bytes 1, 3, 0, 2
 *	U4     word j / 2 has them in its nibbles 0, 4, 1, 5 for even and 2, 6, 3, 7 for odd j
 *
 * The five lowest bits of a factor in U4 and U4_32 are its zero, 0 to 31: factors are those of float16 or
 * bfloat16, whose float32 has them free.
 */

#include "kernels/ops.h"

#define PACKED_ROWS 8u
#define PACKED_COLS 128u
#define PACKED_FRAGMENT_BYTES 512u
#define PACKED_ZERO_BITS 31u
#define PACKED_GROUPS_MAX 4u /* of a unit */

#ifdef __cplusplus
extern "C" {
#endif

static inline bool packed_is_u4(enum dtype dtype)
{
	return dtype == DTYPE_U4 || dtype == DTYPE_U4_32;
}

static inline bool packed_is(enum dtype dtype)
{
	return dtype == DTYPE_E4M3 || packed_is_u4(dtype);
}

/* Groups of columns in a unit. */
static inline uint32_t packed_groups(enum dtype dtype)
{
	return dtype == DTYPE_U4_32 ? PACKED_GROUPS_MAX : 1;
}

/* `grouped`: units have factors; true of U4 and U4_32. */
static inline uint32_t packed_unit_bytes(enum dtype dtype, bool grouped)
{
	return (packed_is_u4(dtype) ? 1 : 2) * PACKED_FRAGMENT_BYTES +
	       (grouped ? packed_groups(dtype) * PACKED_ROWS * (uint32_t)sizeof(float) : 0);
}

enum packed_kind { PACKED_NOT, PACKED_E4M3_ROWS, PACKED_E4M3_GROUPS, PACKED_U4, PACKED_U4_32 };

static inline enum packed_kind packed_kind_of(const struct weight *w)
{
	if (w->dtype == DTYPE_U4_32)
		return PACKED_U4_32;
	if (w->dtype == DTYPE_U4)
		return PACKED_U4;
	if (w->dtype == DTYPE_E4M3)
		return w->factors ? PACKED_E4M3_ROWS : PACKED_E4M3_GROUPS;
	return PACKED_NOT;
}

/* Can a matrix of this shape be packed? */
static inline bool packed_fits(uint32_t rows, uint32_t cols)
{
	return rows && cols && rows % PACKED_ROWS == 0 && cols % PACKED_COLS == 0;
}

static inline uint64_t packed_bytes(uint32_t rows, uint32_t cols, enum dtype dtype, bool grouped)
{
	return (uint64_t)(rows / PACKED_ROWS) * (cols / PACKED_COLS) * packed_unit_bytes(dtype, grouped);
}

/* Can it be a factor of a U4 or U4_32 unit? */
bool packed_takes_factor(float factor);

/*
 * A unit, from the codes of 8 rows, which are `pitch` bytes apart, and of 128 columns, a byte each. factors:
 * [groups, 8], NULL: without groups; zeros: [groups, 8], of U4 and U4_32 alone.
 */
void packed_unit(uint8_t *ret, enum dtype dtype, const uint8_t *codes, size_t pitch, const float *factors,
	const uint8_t *zeros);

/* Row `row` of a packed weight in the host's memory (its factors too), as float32: ret[cols]. */
void packed_to_f32(const struct weight *w, uint32_t row, float *ret);

#ifdef __cplusplus
}
#endif

#endif
