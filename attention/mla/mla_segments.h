/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_SEGMENTS_H
#define MIMEO_ATTENTION_MLA_MLA_SEGMENTS_H

/*
 * How a batch is cut: rows of at most MLA_MAX_UNIFORM_QUERY query tokens, and padding, are absorbed
 * (mla.h); longer rows are prompts, whose keys are expanded (mla_prompt.h), where that pays. A
 * row's own lengths alone decide. Neighbours of one sort form a segment. A uniform batch, the only
 * kind that may be recorded, is one absorbed segment.
 */

#include "attention/mla/mla_prompt.h"

struct mla_segment {
	uint32_t first, end; /* tokens */
	uint32_t first_prompt, n_prompts; /* in mla_segments.prompts; none: absorbed */
};

struct mla_segments {
	struct mla_segment *segments;   /* [2 max_rows + 1] */
	struct mla_prompt_row *prompts; /* [max_rows] */
	uint32_t n, n_prompts;
	uint32_t max_rows;
	const struct mla_prompt_kernels *kernels;
};

/* 0 or -ENOMEM; `kernels` outlive it. */
int mla_segments_init(struct mla_segments *segments, const struct mla_prompt_kernels *kernels,
	uint32_t max_rows);
void mla_segments_deinit(struct mla_segments *segments);
/* From nothing; no allocation. At least one segment, in the order of the tokens, without gaps, to
 * the padded number of tokens. `batch` has passed gqa_batch_check. */
void mla_segments_cut(struct mla_segments *segments, const struct attention_batch *batch);

#endif
