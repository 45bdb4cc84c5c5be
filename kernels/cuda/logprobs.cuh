/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_LOGPROBS_CUH
#define MIMEO_KERNELS_CUDA_LOGPROBS_CUH

/*
 * The log-softmax of a row and its likeliest tokens, by one block. It reads the row for the greatest logit, again
 * for the sum, and then in the filter that finds the n-th token (sample_filter.cuh). Exponentials are float32.
 * Their sum is in double precision, in an order that depends on the size of the block alone.
 */

#include "kernels/cuda/sample_filter.cuh"

struct block_logprobs {
	uint64_t top;
	double sums[SAMPLE_THREADS / WARP];
	uint64_t places[LOGPROBS_TOP_MAX];
	uint32_t n_places;
};

/* In every thread. Not by for_each_logit, whose order depends on the alignment of the row. */
__device__ static double log_sum_of(struct block_logprobs &b, const struct sample_row &row)
{
	double sum = 0;

#pragma unroll 8
	for (uint32_t id = threadIdx.x; id < row.vocab; id += SAMPLE_THREADS)
		sum += (double)expf(row.logits[id] - row.top);
	sum = warp_sum(sum);
	if (threadIdx.x % WARP == 0)
		b.sums[threadIdx.x / WARP] = sum;
	__syncthreads();
	return log(warp_sum(b.sums[threadIdx.x % WARP])) + (double)row.top;
}

/* b.places := the n_top likeliest places, in any order; fewer if there are fewer finite logits. */
__device__ static void find_likeliest(struct block_logprobs &b, struct block_filter &f,
	const struct sample_row &row, uint32_t n_top)
{
	const struct filter_places places = keep_places(row, f, n_top, 1);

	for_each_place(row, f, places, [&](float logit, uint32_t id) {
		const uint32_t at = atomicAdd(&b.n_places, 1u);

		if (at < LOGPROBS_TOP_MAX)
			b.places[at] = place_of(logit, id);
	});
	__syncthreads();
}

/* out[1 ... n_top] := the likeliest tokens, one by each thread. */
__device__ static void write_likeliest(const struct block_logprobs &b, double log_sum,
	uint32_t n_top, struct token_logprob *out)
{
	const uint32_t i = threadIdx.x, n = min(b.n_places, n_top);
	uint32_t rank = 0;

	if (i >= n_top)
		return;
	if (i >= n) {
		out[1 + i] = {-1, NAN};
		return;
	}
	for (uint32_t k = 0; k < n; k++)
		rank += b.places[k] < b.places[i];
	out[1 + rank] = {(int32_t)(uint32_t)b.places[i],
		(float)((double)place_logit(b.places[i]) - log_sum)};
}

/* out[1 ... n_top] := the likeliest tokens of a row. Returns the logarithm of the sum of exponentials, or NaN if
 * the row is not finite, in every thread. May be called once in a kernel. */
__device__ static double row_logprobs(const float *logits, uint32_t vocab, uint32_t n_top,
	struct token_logprob *out, struct block_logprobs &b, struct block_filter &f)
{
	struct sample_row row = {logits, vocab};
	uint64_t top = block_top(logits, 0, vocab);
	double log_sum;

	n_top = min(n_top, LOGPROBS_TOP_MAX);
	if (threadIdx.x == 0) {
		b.top = row_top(top);
		b.n_places = 0;
	}
	__syncthreads();
	top = b.top;
	if (top == 0) {
		if (threadIdx.x < n_top)
			out[1 + threadIdx.x] = {-1, NAN};
		return NAN;
	}
	row.top = logit_of((uint32_t)(top >> 32));
	row.first = (int32_t)~(uint32_t)top;
	log_sum = log_sum_of(b, row);
	if (n_top) {
		find_likeliest(b, f, row, n_top);
		write_likeliest(b, log_sum, n_top, out);
	}
	return log_sum;
}

#endif
