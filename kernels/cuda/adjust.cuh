/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_ADJUST_CUH
#define MIMEO_KERNELS_CUDA_ADJUST_CUH

/*
 * Shared by adjust, sample and verify: the adjustment of a logit and its inverse, with the arithmetic of the cpu
 * device's adjust.c. Products of two float32 are exact in double precision, so a fused multiply-add gives the
 * same adjusted logit.
 */

#include <float.h>

#include "kernels/cuda/kernel.cuh"

struct adjustment {
	const struct slot_adjust *slot;
	const struct token_bias *bias;
	const uint16_t *counts;
	const uint32_t *allowed;
};

__device__ static inline struct adjustment adjustment_of(
	const struct step_inputs &in, int32_t slot)
{
	return {in.slot_adjust + slot, in.slot_bias + (size_t)slot * SLOT_BIAS_MAX,
		in.slot_counts + (size_t)slot * COUNTS_STRIDE(in.vocab_size),
		in.slot_allowed + (size_t)slot * TOKEN_WORDS(in.vocab_size)};
}

__device__ static inline struct token_logprob *logprobs_of(
	const struct step_inputs &in, uint32_t r, uint32_t i)
{
	return in.row_logprobs + ((size_t)r * (1 + in.max_drafts) + i) * LOGPROBS_WIDTH;
}

__device__ static inline float float_within(double x)
{
	return (float)fmax(-(double)FLT_MAX, fmin(x, (double)FLT_MAX));
}

__device__ static inline uint32_t n_biases(const struct adjustment &a)
{
	return min(a.slot->n_bias, SLOT_BIAS_MAX);
}

/* Of a finite logit. */
__device__ static inline float add_bias(float logit, float bias)
{
	return isfinite(bias) ? float_within((double)logit + (double)bias) : -INFINITY;
}

/* The token's bias, or 0. */
__device__ static inline float bias_of(const struct adjustment &a, int32_t token)
{
	uint32_t low = 0, high = n_biases(a);

	while (low < high) {
		const uint32_t middle = (low + high) / 2;
		const int32_t at = a.bias[middle].token;

		if (at == token)
			return a.bias[middle].bias;
		if (at < token)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

__device__ static inline bool penalises(const struct slot_adjust &s)
{
	return s.repetition != 1 || s.presence != 0 || s.frequency != 0;
}

/* n: of the token's count, how often it is among the output. */
__device__ static inline double subtracted(const struct slot_adjust &s, uint32_t n)
{
	return (double)s.frequency * n + (n ? (double)s.presence : 0);
}

/* Of a finite logit. */
__device__ static inline float penalised(const struct slot_adjust &s, float logit, uint32_t count)
{
	double x = (double)logit;

	if (!count)
		return logit;
	x = x > 0 ? x / (double)s.repetition : x * (double)s.repetition;
	return float_within(x - subtracted(s, count & COUNT_MAX));
}

/* Before penalties and bias. */
__device__ static inline double undone(const struct adjustment &a, int32_t token, float logit)
{
	const uint32_t count = a.counts[token];
	double x = (double)logit;

	if (count && penalises(*a.slot)) {
		x += subtracted(*a.slot, count & COUNT_MAX);
		x = x > 0 ? x * (double)a.slot->repetition : x / (double)a.slot->repetition;
	}
	return x - (double)bias_of(a, token);
}

__device__ static inline uint32_t count_one_more(uint32_t count)
{
	return (count & COUNT_MAX) < COUNT_MAX ? count + 1 : count;
}

__device__ static inline float logprob_of(const struct adjustment &a,
	const struct token_logprob *entries, float logit, int32_t token, bool adjusted)
{
	const double log_sum = *(const double *)entries;

	for (uint32_t k = 1; k <= min(a.slot->n_top, LOGPROBS_TOP_MAX); k++)
		if (entries[k].token == token)
			return entries[k].logprob;
	return (float)((adjusted ? undone(a, token, logit) : (double)logit) - log_sum);
}

/* Not inlined, so that it does not raise the register count of the sampling kernels. */
__device__ static __noinline__ void settle_token(const struct step_inputs &in, uint32_t r,
	uint32_t i, const float *logits, int32_t token)
{
	const uint32_t flags = (uint32_t)in.row_flags[r];
	const int32_t slot = in.row_slot[r];
	const struct adjustment a = adjustment_of(in, slot);

	if (flags & ROW_LOGPROBS) {
		struct token_logprob *entries = logprobs_of(in, r, i);
		float logprob = NAN;

		if (token >= 0)
			logprob = logprob_of(a, entries, logits[token], token, flags & ROW_ADJUST);
		entries[0] = {token, logprob};
	}
	if ((flags & ROW_COUNT) && token >= 0) {
		uint16_t *count = in.slot_counts +
				  (size_t)slot * COUNTS_STRIDE(in.vocab_size) + token;

		*count = (uint16_t)count_one_more(*count);
	}
}

/* Token i of row r, or -1, was drawn from these adjusted logits: complete its log-probability and count it if the
 * row's flags say so. To be called by one thread, for the tokens of a row in their order. */
__device__ static inline void settle(const struct step_inputs &in, uint32_t r, uint32_t i,
	const float *logits, int32_t token)
{
	if (in.slot_adjust && ((uint32_t)in.row_flags[r] & (ROW_COUNT | ROW_LOGPROBS)))
		settle_token(in, r, i, logits, token);
}

#endif
