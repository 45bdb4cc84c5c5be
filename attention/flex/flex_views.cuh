/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_VIEWS_CUH
#define MIMEO_ATTENTION_FLEX_FLEX_VIEWS_CUH

/* What the kernels of block masks have in common: a token's view, and lists. */

#include "attention/flex/flex_cuda.h"
#include "attention/flex/mask.h"

/* The view of a work's token. A token that does not exist, or whose position is below 0, sees nothing. */
static __device__ __forceinline__ mask_view view_of(
	const flex_args &a, const flex_block &block, const slot_mask &mask, int32_t token)
{
	int32_t position = block.position + token;
	bool there = token < block.n_tokens && position >= 0;
	uint64_t word = there && a.in.slot_mask ? a.in.mask_words[block.first + token] : 0;
	mask_view nothing = { UINT32_MAX, 0, 0, 0, 0, 0 };

	return there ? mask_view_of(&mask, word, (uint32_t)position, (uint32_t)block.seq_len,
			       a.window)
		     : nothing;
}

static __device__ __forceinline__ const int32_t *list_of(const flex_args &a, int32_t block)
{
	return a.plan.indices + (size_t)block * ((size_t)a.in.max_keys + 1);
}

/* Can an entry's block of keys be used without a mask? Not if it extends past the sequence. */
static __device__ __forceinline__ bool entry_whole(int32_t entry, int32_t seq_len)
{
	return FLEX_ENTRY_WHOLE(entry) &&
	       (FLEX_ENTRY_BLOCK(entry) + 1) * FLEX_TILE <= (uint32_t)seq_len;
}

#endif
