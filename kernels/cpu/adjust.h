/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_ADJUST_H
#define MIMEO_KERNELS_CPU_ADJUST_H

/* What adjust, sample, verify and logprobs share. */

#include <math.h>

#include "kernels/ops.h"

/* out[1 ... n_top] := the likeliest tokens of a row with the logarithm of their softmax, as op_adjust
 * has them. Returns the logarithm of the sum of exponentials; NaN: the row is not finite. */
double logprobs_top(const float *logits, uint32_t vocab, uint32_t n_top, struct token_logprob *out);

/* The new token i of row r, or -1, was drawn from these adjusted logits: complete its log-probability
 * and count it, as the row's flags say. To be called for the tokens of a row in their order. */
void adjust_settle(const struct step_inputs *in, uint32_t r, uint32_t i, const float *logits, int32_t token);

static inline struct token_logprob *adjust_logprobs_of(const struct step_inputs *in, uint32_t r, uint32_t i)
{
	return in->row_logprobs + ((size_t)r * (1 + in->max_drafts) + i) * LOGPROBS_WIDTH;
}

#endif
