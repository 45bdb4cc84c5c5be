/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_ARENA_H
#define MIMEO_KERNELS_ARENA_H

/*
 * Aligned carving of one reservation. Run the same carving code twice: once with base NULL, which
 * only counts, then over a block of that many bytes. Plan and use cannot differ.
 *
 * In test builds the environment variable MIMEO_ARENA_TIGHT aligns arrays to their elements alone
 * (16 bytes at most), so that one that is too short overlaps the next. The cpu device takes that.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGN 256

struct device;

struct arena {
	uint8_t *base; /* NULL: counting */
	size_t size;   /* of the block; ignored when counting */
	size_t used;
	bool failed; /* a carving overflowed or did not fit; sticky */
};

/* n * size bytes at the next multiple of ARENA_ALIGN; NULL when counting or failed. */
void *arena_take(struct arena *arena, size_t n, size_t size);

/* Carve a block of the device's memory: count, allocate, place. The block is the caller's
 * (mem_free); its bytes to *ret_bytes unless NULL. 0, -EOVERFLOW, or the device's condition, and
 * nothing is written. */
int arena_alloc(struct device *device, void (*carve)(void *userdata, struct arena *arena),
	void *userdata, void **ret, size_t *ret_bytes);

#endif
