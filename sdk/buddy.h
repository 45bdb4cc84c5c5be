/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_BUDDY_H
#define MIMEO_SDK_BUDDY_H

/*
 * A buddy allocator over the offsets of the region's arena. Its state is in private memory, which the
 * daemon cannot write.
 *
 * Blocks are powers of two of at least BUDDY_BLOCK_MIN bytes, aligned to their size. A request for n
 * bytes takes the next power of two, so at most half of a block is unused. Giving back joins free
 * neighbours, so an arena without taken blocks can always give its whole size. Both operations walk
 * one path of the tree: at most 24 levels for 1 GiB.
 *
 * State: one byte for each node of the tree, 1/32 of the arena's size, zeroed lazily by the kernel.
 * It is log2(node's size / largest free block below it): 0 if all is free, log2(size in smallest
 * blocks) + 1 if nothing is. Zeroes are a free arena.
 */

#include <stdbool.h>
#include <stdint.h>

#define BUDDY_BLOCK_MIN 64u

struct buddy {
	uint8_t *shortfall; /* [2 * leaves], node 1 is the root, 2n and 2n + 1 the children of n */
	unsigned depth;     /* log2(leaves) */
};

struct buddy_block {
	uint32_t offset;
	uint32_t bytes; /* as taken, a power of two; 0: no block */
};

/* `bytes`: a power of two, BUDDY_BLOCK_MIN ... 1 GiB. 0, or -ENOMEM. */
int buddy_init(struct buddy *ret, uint64_t bytes);
void buddy_deinit(struct buddy *buddy);

/* True and a block of at least `bytes` (> 0), or false: no free block is that large. Of two halves that
 * are large enough it takes the one with the smaller free block, which keeps large blocks whole. */
bool buddy_take(struct buddy *buddy, uint64_t bytes, struct buddy_block *ret);
/* Give a block back. A block of 0 bytes is ignored. */
void buddy_give(struct buddy *buddy, struct buddy_block block);

#endif
