/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_MASK_H
#define MIMEO_ATTENTION_FLEX_MASK_H

/*
 * Masks as small programs. A program (struct slot_mask, one a slot) and a token's word make the
 * VIEW of that token: the keys that it sees, as two ranges and a few bits. From views follows all
 * else: whether a key is seen, and whether a block of keys is seen by nobody, in part, or whole.
 *
 * In views every bound lies within the sequence, whatever the program's numbers are, and the token
 * itself is always seen: there is no row without a key, hence no 0/0.
 */

#include <stdbool.h>

#include "kernels/ops.h"

/* Keys are positions of the sequence. */
struct mask_view {
	uint32_t low;        /* none before it: the layer's own window. Of the others: */
	uint32_t sinks;      /* [0, sinks), */
	uint32_t first, end; /* [first, end), which has the token itself, */
	uint32_t tree;       /* and tree + i where bit i is set */
	uint64_t bits;
};

enum mask_block { MASK_BLOCK_NONE, MASK_BLOCK_SOME, MASK_BLOCK_ALL };

static inline uint32_t mask_min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t mask_max(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The lowest n bits. */
static inline uint64_t mask_low_bits(uint32_t n)
{
	return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

/* The first position of a window's that ends with the token. */
static inline uint32_t mask_window_first(uint32_t position, uint32_t window)
{
	return position >= window ? position + 1 - window : 0;
}

/* The view of the token at `position`, below seq_len. window: the layer's own, 0: none. */
static inline struct mask_view mask_view_of(const struct slot_mask *mask, uint64_t word,
	uint32_t position, uint32_t seq_len, uint32_t window)
{
	struct mask_view view = { .end = position + 1 };

	if (window)
		view.low = mask_window_first(position, window);
	switch (mask->kind) {
	case MASK_WINDOW:
		view.first = mask_window_first(position, mask->window);
		view.sinks = mask_min(mask->end, position);
		break;
	case MASK_PREFIX:
		if (position >= mask->begin && position < mask->end)
			view.end = mask_min(mask->end, seq_len);
		break;
	case MASK_DOCUMENTS:
		view.first = word < position ? (uint32_t)word : position;
		break;
	case MASK_TREE:
		if (position < mask->begin)
			break;
		view.first = position;
		view.sinks = view.tree = mask->begin;
		view.bits = word & mask_low_bits(seq_len - mask->begin);
		break;
	default:
		break;
	}
	view.first = mask_min(view.first, position);
	return view;
}

static inline bool mask_sees(const struct mask_view *view, uint32_t key)
{
	if (key < view->low)
		return false;
	if (key < view->sinks || (key >= view->first && key < view->end))
		return true;
	return key >= view->tree && key - view->tree < 64 && (view->bits >> (key - view->tree) & 1);
}

/* Is a bit of [from, end) set? */
static inline bool mask_has_bits(const struct mask_view *view, uint32_t from, uint32_t end)
{
	if (end <= view->tree || !view->bits)
		return false;
	from = mask_max(from, view->tree) - view->tree;
	end -= view->tree;
	return from < 64 && (view->bits & mask_low_bits(end) & ~mask_low_bits(from));
}

/* How much of the keys [from, end) is seen. Where two parts of a view meet, SOME may be said of all
 * of them. */
static inline enum mask_block mask_view_block(
	const struct mask_view *view, uint32_t from, uint32_t end)
{
	uint32_t seen = mask_max(from, view->low);

	if (seen >= end)
		return MASK_BLOCK_NONE;
	if (seen == from && (end <= view->sinks || (from >= view->first && end <= view->end)))
		return MASK_BLOCK_ALL;
	if (seen < view->sinks || (view->first < end && seen < view->end) ||
		mask_has_bits(view, seen, end))
		return MASK_BLOCK_SOME;
	return MASK_BLOCK_NONE;
}

#endif
