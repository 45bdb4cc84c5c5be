/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_ARENA_H
#define MIMEO_KERNELS_ARENA_H

/*
 * Aligned carving of one reservation. Run the same carving code twice: once with base NULL, which
 * only counts, then over a block of that many bytes. Plan and use cannot differ.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGN 256

struct arena {
	uint8_t *base; /* NULL: counting */
	size_t size;   /* of the block; ignored when counting */
	size_t used;
	bool failed; /* a carving overflowed or did not fit; sticky */
};

/* n * size bytes at the next multiple of ARENA_ALIGN; NULL when counting or failed. */
void *arena_take(struct arena *arena, size_t n, size_t size);

#endif
