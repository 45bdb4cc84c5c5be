/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_SPECULATION_H
#define MIMEO_KERNELS_SPECULATION_H

/* What the ops of speculation (ops.h) ask of the step's inputs on every device. */

#include <stdbool.h>
#include <stddef.h>

#include "kernels/ops.h"

static inline bool speculation_fits(const struct step_inputs *in)
{
	if (!in->max_drafts || in->max_drafts >= in->max_tokens || in->max_tokens > INT32_MAX)
		return false;
	if (!in->max_rows || !in->max_slots || !in->max_pages || !in->page_tokens)
		return false;
	if (!in->vocab_size || in->vocab_size > INT32_MAX || !in->row_slot || !in->row_flags)
		return false;
	return in->slot_sampling && in->slot_last_token && in->slot_length && in->slot_n_drafts &&
	       in->slot_drafts && in->slot_draft_logits;
}

#endif
