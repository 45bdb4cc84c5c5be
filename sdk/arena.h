/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_ARENA_H
#define MIMEO_SDK_ARENA_H

/*
 * A buddy allocator over offsets: it hands out pieces of the region's arena and keeps its books in
 * private memory, where the daemon cannot reach them.
 *
 * Blocks are powers of two of at least ARENA_BLOCK_MIN bytes, aligned to their size. A request for
 * n bytes takes the next power of two, so at worst half of a block lies idle. Out of blocks,
 * arena_take says so at once; giving back joins free neighbours, so an arena with nothing taken can
 * always give its whole size. Both walk one path of the tree: at most 24 levels for 1 GiB.
 *
 * Books: one byte a node of the tree, 1/32 of the arena's size, zeroed lazily by the kernel. It
 * says how many powers of two the largest free block below the node falls short of the node's
 * size: 0 is all free, log2(size in smallest blocks) + 1 none; so fresh zeroes are a free arena.
 */

#include <stdbool.h>
#include <stdint.h>

#define ARENA_BLOCK_MIN 64u

struct arena {
	uint8_t *shortfall; /* [2 * leaves], node 1 is the root, 2n and 2n + 1 the children of n */
	unsigned depth;     /* log2(leaves) */
};

struct arena_block {
	uint32_t offset;
	uint32_t bytes; /* as taken, a power of two; 0: no block */
};

/* `bytes`: a power of two, ARENA_BLOCK_MIN ... 1 GiB. 0, or -ENOMEM. */
int arena_init(struct arena *ret, uint64_t bytes);
void arena_deinit(struct arena *arena);

/* True and a block of at least `bytes` (> 0), or false: no free block is that large. Of the two
 * halves that would do, it takes the one with less to spare, which keeps large blocks whole. */
bool arena_take(struct arena *arena, uint64_t bytes, struct arena_block *ret);
/* Give a block back; one of 0 bytes is none. */
void arena_give(struct arena *arena, struct arena_block block);

#endif
