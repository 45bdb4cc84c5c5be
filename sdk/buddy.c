/* SPDX-License-Identifier: MIT */
#include "sdk/buddy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* log2 of the smallest block, in BUDDY_BLOCK_MIN, that holds `bytes`; > 32 never fits. */
static unsigned buddy_order(uint64_t bytes)
{
	uint64_t leaves = (bytes + BUDDY_BLOCK_MIN - 1) / BUDDY_BLOCK_MIN;

	return leaves <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(leaves - 1);
}

/* 1 + order of the largest free block below a node whose own order is `order`; 0 if none. */
static unsigned buddy_largest(const struct buddy *buddy, uint32_t node, unsigned order)
{
	assert(buddy->shortfall[node] <= order + 1);
	return order + 1 - buddy->shortfall[node];
}

int buddy_init(struct buddy *ret, uint64_t bytes)
{
	uint64_t leaves = bytes / BUDDY_BLOCK_MIN;
	assert(bytes >= BUDDY_BLOCK_MIN && (bytes & (bytes - 1)) == 0);
	uint8_t *shortfall = calloc(2, leaves);

	if (!shortfall)
		return -ENOMEM;
	*ret = (struct buddy){.shortfall = shortfall, .depth = buddy_order(bytes)};
	return 0;
}

void buddy_deinit(struct buddy *buddy)
{
	if (!buddy)
		return;
	free(buddy->shortfall);
	*buddy = (struct buddy){0};
}

/* Recount the ancestors of a node of that order. */
static void buddy_recount(struct buddy *buddy, uint32_t node, unsigned order)
{
	while (node > 1) {
		node /= 2;
		order++;
		unsigned left = buddy_largest(buddy, 2 * node, order - 1);
		unsigned right = buddy_largest(buddy, 2 * node + 1, order - 1);
		unsigned most = left > right ? left : right;

		if (left == order && right == order)
			most = order + 1; /* two whole halves are one whole */
		buddy->shortfall[node] = (uint8_t)(order + 1 - most);
	}
}

bool buddy_take(struct buddy *buddy, uint64_t bytes, struct buddy_block *ret)
{
	unsigned wanted = bytes >> 40 ? 64 : buddy_order(bytes);
	unsigned order = buddy->depth;
	uint32_t node = 1;

	if (buddy_largest(buddy, 1, order) < wanted + 1)
		return false;
	while (order > wanted) {
		order--;
		unsigned left = buddy_largest(buddy, 2 * node, order);
		unsigned right = buddy_largest(buddy, 2 * node + 1, order);

		node *= 2;
		if (left < wanted + 1 || (right >= wanted + 1 && right < left))
			node++;
	}

	assert(buddy->shortfall[node] == 0);
	buddy->shortfall[node] = (uint8_t)(order + 1);
	buddy_recount(buddy, node, order);
	uint32_t size = BUDDY_BLOCK_MIN << order;
	assert(size >= bytes);
	*ret = (struct buddy_block){
		.offset = (node - (1u << (buddy->depth - order))) * size,
		.bytes = size,
	};
	return true;
}

void buddy_give(struct buddy *buddy, struct buddy_block block)
{
	if (block.bytes == 0)
		return;
	unsigned order = buddy_order(block.bytes);
	assert(order <= buddy->depth && block.bytes == BUDDY_BLOCK_MIN << order);
	uint32_t node = (1u << (buddy->depth - order)) + block.offset / block.bytes;
	assert(node < 2u << (buddy->depth - order) && block.offset % block.bytes == 0);
	assert(buddy->shortfall[node] == order + 1); /* taken whole */

	buddy->shortfall[node] = 0;
	buddy_recount(buddy, node, order);
}
