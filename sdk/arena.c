/* SPDX-License-Identifier: MIT */
#include "sdk/arena.h"

#include <errno.h>
#include <stdlib.h>

/* log2 of the smallest block, in ARENA_BLOCK_MIN, that holds `bytes`; > 32 never fits. */
static unsigned order_of(uint64_t bytes)
{
	uint64_t leaves = (bytes + ARENA_BLOCK_MIN - 1) / ARENA_BLOCK_MIN;

	return leaves <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(leaves - 1);
}

/* 1 + order of the largest free block below a node whose own order is `order`; 0 if none. */
static unsigned room(const struct arena *arena, uint32_t node, unsigned order)
{
	return order + 1 - arena->shortfall[node];
}

int arena_init(struct arena *ret, uint64_t bytes)
{
	uint64_t leaves = bytes / ARENA_BLOCK_MIN;
	uint8_t *shortfall = calloc(2, leaves);

	if (!shortfall)
		return -ENOMEM;
	*ret = (struct arena){.shortfall = shortfall, .depth = order_of(bytes)};
	return 0;
}

void arena_deinit(struct arena *arena)
{
	if (!arena)
		return;
	free(arena->shortfall);
	*arena = (struct arena){0};
}

/* Recount the ancestors of a node of that order. */
static void recount(struct arena *arena, uint32_t node, unsigned order)
{
	while (node > 1) {
		node /= 2;
		order++;
		unsigned left = room(arena, 2 * node, order - 1);
		unsigned right = room(arena, 2 * node + 1, order - 1);
		unsigned most = left > right ? left : right;

		if (left == order && right == order)
			most = order + 1; /* two whole halves are one whole */
		arena->shortfall[node] = (uint8_t)(order + 1 - most);
	}
}

bool arena_take(struct arena *arena, uint64_t bytes, struct arena_block *ret)
{
	unsigned wanted = bytes >> 40 ? 64 : order_of(bytes);
	unsigned order = arena->depth;
	uint32_t node = 1;

	if (room(arena, 1, order) < wanted + 1)
		return false;
	while (order > wanted) {
		order--;
		unsigned left = room(arena, 2 * node, order);
		unsigned right = room(arena, 2 * node + 1, order);

		node *= 2;
		if (left < wanted + 1 || (right >= wanted + 1 && right < left))
			node++;
	}

	arena->shortfall[node] = (uint8_t)(order + 1);
	recount(arena, node, order);
	uint32_t size = ARENA_BLOCK_MIN << order;
	*ret = (struct arena_block){
		.offset = (node - (1u << (arena->depth - order))) * size,
		.bytes = size,
	};
	return true;
}

void arena_give(struct arena *arena, struct arena_block block)
{
	if (block.bytes == 0)
		return;
	unsigned order = order_of(block.bytes);
	uint32_t node = (1u << (arena->depth - order)) + block.offset / block.bytes;

	arena->shortfall[node] = 0;
	recount(arena, node, order);
}
