/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_ADJUSTMENT_H
#define MIMEO_TESTS_KERNELS_ADJUSTMENT_H

/* Adjustment of logits and log-probabilities by the book, in double precision. */

#include <math.h>

#include "kernels/ops.h"

/* What a slot's next token is sampled with. */
struct book_state {
	const struct slot_adjust *adjust;
	const float *bias;       /* [vocab], or NULL */
	const bool *banned;      /* [vocab], or NULL */
	const bool *in_prompt;   /* [vocab], or NULL */
	const uint32_t *outputs; /* [vocab] how often each was generated, or NULL */
	uint32_t position;       /* of the token */
};

static inline double book_adjusted(const struct book_state *s, float logit, uint32_t id)
{
	const uint32_t n = s->outputs ? s->outputs[id] : 0;
	double x = (double)logit;

	if (s->bias)
		x += (double)s->bias[id];
	if (n || (s->in_prompt && s->in_prompt[id]))
		x = x > 0 ? x / (double)s->adjust->repetition : x * (double)s->adjust->repetition;
	x -= (double)s->adjust->frequency * n;
	if (n)
		x -= (double)s->adjust->presence;
	if (s->banned && s->banned[id])
		return -HUGE_VAL;
	for (uint32_t i = 0; i < s->adjust->n_ends && s->position < s->adjust->min_position; i++)
		if (s->adjust->ends[i] == (int32_t)id)
			return -HUGE_VAL;
	return x;
}

static inline double book_log_sum(const float *logits, uint32_t vocab)
{
	double top = -HUGE_VAL, sum = 0;

	for (uint32_t i = 0; i < vocab; i++)
		top = fmax(top, (double)logits[i]);
	for (uint32_t i = 0; i < vocab; i++)
		sum += exp((double)logits[i] - top);
	return top + log(sum);
}

#endif
