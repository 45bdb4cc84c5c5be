/* SPDX-License-Identifier: MIT */

/*
 * Grid: one block per row; block: 1024 threads; shared memory: 46 KB. Reads a row several times, from the L2
 * after the first (logprobs.cuh), and writes 8 bytes over the bus for each token of the result. One block,
 * because the filter works in one, and the order of the sum must not depend on the number of rows.
 */

#include "kernels/cuda/logprobs.cuh"

static __global__ void __launch_bounds__(SAMPLE_THREADS) logprobs(const struct op_logprobs a)
{
	__shared__ struct block_filter filter;
	__shared__ struct block_logprobs shared;
	const uint32_t r = blockIdx.x;
	const float *logits = a.logits + (size_t)r * a.vocab;
	struct token_logprob *out = a.out + (size_t)r * LOGPROBS_WIDTH;
	double log_sum;
	int32_t token;

	overlap_begin();
	if (r >= a.n_rows)
		return;
	log_sum = row_logprobs(logits, a.vocab, a.n_top, out, shared, filter);
	if (threadIdx.x != 0)
		return;
	token = a.tokens[r];
	if (token < 0 || (uint32_t)token >= a.vocab)
		out[0] = {-1, NAN};
	else
		out[0] = {token, (float)((double)logits[token] - log_sum)};
}

static int logprobs_launch(struct stream *stream, const struct op_logprobs *a)
{
	launch(stream, logprobs, a->n_rows ? a->n_rows : 1, SAMPLE_THREADS, 0, *a);
	return 0;
}

CUDA_OP(logprobs, logprobs)
