/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_MASK_H
#define MIMEO_ATTENTION_FLEX_MASK_H

/*
 * A mask (struct slot_mask, one a slot) and a token's word make the VIEW of that token: the keys that it
 * sees, as two ranges and a few bits. Everything else follows from views: whether a key is seen, which of 64
 * keys are, and whether a block of keys is seen as a whole, in part or not at all. Both devices compile the
 * same functions.
 *
 * All bounds of a view are within the sequence, whatever numbers the mask has, and a token always sees
 * itself: every row has a key, so there is no 0/0.
 */

#include <stdbool.h>

#include "kernels/ops.h"

#ifdef __CUDACC__
#define MASK_FUNCTION static inline __host__ __device__
#else
#define MASK_FUNCTION static inline
#endif

/* Keys are positions of the sequence. */
struct mask_view {
	uint32_t low;        /* keys before it are not seen: the layer's window. Of the others these are seen: */
	uint32_t sinks;      /* [0, sinks), */
	uint32_t first, end; /* [first, end), which includes the token itself, */
	uint32_t tree;       /* and tree + i if bit i is set */
	uint64_t bits;
};

enum mask_block { MASK_BLOCK_NONE, MASK_BLOCK_SOME, MASK_BLOCK_ALL };

MASK_FUNCTION uint32_t mask_min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

MASK_FUNCTION uint32_t mask_max(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The lowest n bits. */
MASK_FUNCTION uint64_t mask_low_bits(uint32_t n)
{
	return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

/* The first position of a window that ends with the token. */
MASK_FUNCTION uint32_t mask_window_first(uint32_t position, uint32_t window)
{
	return position >= window ? position + 1 - window : 0;
}

/* The view of the token at `position`, which is below seq_len. window: of the layer; 0: none. */
MASK_FUNCTION struct mask_view mask_view_of(const struct slot_mask *mask, uint64_t word,
	uint32_t position, uint32_t seq_len, uint32_t window)
{
	struct mask_view view = { 0, 0, 0, position + 1, 0, 0 };

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

MASK_FUNCTION bool mask_sees(const struct mask_view *view, uint32_t key)
{
	if (key < view->low)
		return false;
	if (key < view->sinks || (key >= view->first && key < view->end))
		return true;
	return key >= view->tree && key - view->tree < 64 && (view->bits >> (key - view->tree) & 1);
}

/* Those of the 64 keys from `from` on that are in [begin, end). */
MASK_FUNCTION uint64_t mask_range_bits(uint32_t from, uint32_t begin, uint32_t end)
{
	if (end <= from)
		return 0;
	return mask_low_bits(end - from) & ~mask_low_bits(begin > from ? begin - from : 0);
}

/* mask_sees for the 64 keys from `from` on, one bit for each. */
MASK_FUNCTION uint64_t mask_view_bits(const struct mask_view *view, uint32_t from)
{
	uint64_t seen = mask_range_bits(from, view->first, view->end) |
			mask_range_bits(from, 0, view->sinks);

	if (view->tree >= from)
		seen |= view->tree - from < 64 ? view->bits << (view->tree - from) : 0;
	else
		seen |= from - view->tree < 64 ? view->bits >> (from - view->tree) : 0;
	return view->low > from ? seen & ~mask_low_bits(view->low - from) : seen;
}

/* Is a bit of [from, end) set? */
MASK_FUNCTION bool mask_has_bits(const struct mask_view *view, uint32_t from, uint32_t end)
{
	if (end <= view->tree || !view->bits)
		return false;
	from = mask_max(from, view->tree) - view->tree;
	end -= view->tree;
	return from < 64 && (view->bits & mask_low_bits(end) & ~mask_low_bits(from));
}

/*
 * The union of the views of neighbouring tokens of one row, so that a block of keys is examined
 * once for all of them. The union is exact: a view's range includes its own token, and its sinks begin at
 * most one key after its neighbour's, so that the union of the ranges is a range. The answer is ALL if the
 * same part of every view covers the whole block.
 */
struct mask_union {
	uint32_t first, end;   /* the union of the views' ranges, cut to the layer's window */
	uint32_t sinks_low, sinks;
	uint32_t tree;
	uint64_t bits;
	uint32_t low_max, first_max, end_min, sinks_min; /* for ALL */
};

MASK_FUNCTION struct mask_union mask_union_none(void)
{
	struct mask_union none = { UINT32_MAX, 0, UINT32_MAX, 0, 0, 0, 0, 0, UINT32_MAX,
		UINT32_MAX };

	return none;
}

/* The union of a single view. */
MASK_FUNCTION struct mask_union mask_union_of(const struct mask_view *view)
{
	struct mask_union one = mask_union_none();

	one.first = mask_max(view->first, view->low);
	one.end = view->end;
	if (view->low < view->sinks) {
		one.sinks_low = view->low;
		one.sinks = view->sinks;
	}
	one.bits = view->bits;
	if (view->low > view->tree)
		one.bits &= ~mask_low_bits(view->low - view->tree);
	one.tree = one.bits ? view->tree : 0;
	one.low_max = view->low;
	one.first_max = view->first;
	one.end_min = view->end;
	one.sinks_min = view->sinks;
	return one;
}

/* All tokens of a row have their tree at the same position. */
MASK_FUNCTION void mask_union_add(struct mask_union *to, const struct mask_union *other)
{
	to->first = mask_min(to->first, other->first);
	to->end = mask_max(to->end, other->end);
	to->sinks_low = mask_min(to->sinks_low, other->sinks_low);
	to->sinks = mask_max(to->sinks, other->sinks);
	to->tree = mask_max(to->tree, other->tree);
	to->bits |= other->bits;
	to->low_max = mask_max(to->low_max, other->low_max);
	to->first_max = mask_max(to->first_max, other->first_max);
	to->end_min = mask_min(to->end_min, other->end_min);
	to->sinks_min = mask_min(to->sinks_min, other->sinks_min);
}

/* How much of the keys [from, end), at most 64, the views see. */
MASK_FUNCTION enum mask_block mask_union_block(
	const struct mask_union *views, uint32_t from, uint32_t end)
{
	const struct mask_view seen = { 0, 0, views->first, views->end, views->tree, views->bits };

	if (from >= views->low_max && (end <= views->sinks_min ||
		(from >= views->first_max && end <= views->end_min)))
		return MASK_BLOCK_ALL;
	if ((views->first < end && from < views->end) ||
		(views->sinks_low < end && from < views->sinks) || mask_has_bits(&seen, from, end))
		return MASK_BLOCK_SOME;
	return MASK_BLOCK_NONE;
}

#endif
