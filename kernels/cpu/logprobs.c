/* SPDX-License-Identifier: MIT */
#include <float.h>

#include "kernels/cpu/adjust.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/sampling.h"

/* Insert behind all that are not smaller: ids come in ascending order. `entries` has *n of n_top, by
 * falling logit, which stands in the place of the log-probability. */
static void logprobs_insert(struct token_logprob *entries, uint32_t *n, uint32_t n_top, int32_t id, float logit)
{
	uint32_t at = *n < n_top ? (*n)++ : n_top - 1;

	for (; at > 0 && entries[at - 1].logprob < logit; at--)
		entries[at] = entries[at - 1];
	entries[at] = (struct token_logprob){id, logit};
}

static uint32_t logprobs_find_top(const float *logits, uint32_t vocab, uint32_t n_top, struct token_logprob *entries)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < vocab && n_top; i++) {
		if (isfinite(logits[i]) && (n < n_top || logits[i] > entries[n - 1].logprob))
			logprobs_insert(entries, &n, n_top, (int32_t)i, logits[i]);
	}
	return n;
}

double logprobs_top(const float *logits, uint32_t vocab, uint32_t n_top, struct token_logprob *out)
{
	const int32_t first = filter_arg_max(logits, vocab);
	double sum = 0, log_sum;
	uint32_t n = 0;

	n_top = n_top < LOGPROBS_TOP_MAX ? n_top : LOGPROBS_TOP_MAX;
	for (uint32_t i = 0; i < vocab && first >= 0; i++)
		sum += exp((double)logits[i] - (double)logits[first]);
	log_sum = first >= 0 ? log(sum) + (double)logits[first] : (double)NAN;
	if (first >= 0)
		n = logprobs_find_top(logits, vocab, n_top, out + 1);
	for (uint32_t i = 1; i <= n; i++)
		out[i].logprob = (float)((double)out[i].logprob - log_sum);
	for (uint32_t i = n + 1; i <= n_top; i++)
		out[i] = (struct token_logprob){-1, NAN};
	return log_sum;
}

static void logprobs_run(const void *args, void *workspace)
{
	const struct op_logprobs *a = args;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		const float *logits = a->logits + (size_t)r * a->vocab;
		struct token_logprob *out = a->out + (size_t)r * LOGPROBS_WIDTH;
		double log_sum = logprobs_top(logits, a->vocab, a->n_top, out);
		int32_t token = a->tokens[r];

		if (token < 0 || (uint32_t)token >= a->vocab)
			out[0] = (struct token_logprob){-1, NAN};
		else
			out[0] = (struct token_logprob){token, (float)((double)logits[token] - log_sum)};
	}
}

CPU_OP(logprobs, 0)

static void mean_rows_run(const void *args, void *workspace)
{
	const struct op_mean_rows *a = args;

	for (uint32_t c = 0; c < a->cols; c++) {
		double sum = a->first ? 0 : a->sum[c];

		for (uint32_t r = 0; r < a->n_rows; r++)
			sum += (double)((const float *)a->x)[(size_t)r * a->cols + c];
		a->sum[c] = sum;
		if (a->total)
			a->mean[c] = (float)(sum / a->total);
	}
}

CPU_OP(mean_rows, 0)
