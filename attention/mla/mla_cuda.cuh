/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_CUDA_CUH
#define MIMEO_ATTENTION_MLA_MLA_CUDA_CUH

/* Shared by the kernels of latent attention: the keys of a token. */

#include "attention/mla/mla_cuda.h"
#include "attention/paged/paged_mma.cuh"
#include "kernels/cuda/overlap.cuh"

#define NEVER (-CUDART_INF_F)

/* How many keys a row's token sees, and how many of them were written before the step. */
struct mla_seen {
	int32_t row, n_keys, n_settled;
};

static __device__ __forceinline__ mla_seen seen_of(
	const mla_args &a, int32_t row, int32_t begin, int32_t end, int32_t length, int32_t token)
{
	int32_t seq_len = min(max(length, 0), (int32_t)a.max_seq_len), left = end - token;

	if (left <= 0 || token < begin)
		return {0, 0, 0};
	return {row, max(seq_len - left + 1, 0), max(seq_len - (end - begin), 0)};
}

/* The whole warp finds the row of the step's token, in one round trip if every row is of one token.
 * Wrong lengths lead to some row, or to none. */
static __device__ __forceinline__ mla_seen token_find(const mla_args &a, int32_t token)
{
	int32_t n_rows = (int32_t)a.n_rows, low = 0, high = n_rows, lane = threadIdx.x % 32;

	if (token < n_rows) {
		int32_t begin = a.query_start[token], end = a.query_start[token + 1];
		int32_t length = a.seq_lens[token];

		if (begin == token && end == token + 1)
			return seen_of(a, token, begin, end, length, token);
	}
	/* the last row that begins no later; 32 places a round trip */
	while (high - low > 1) {
		int32_t step = (high - low + 31) / 32, at = low + lane * step;
		bool before = at < high && a.query_start[at] <= token;
		int32_t n = __popc(__ballot_sync(~0u, before));

		if (n == 0)
			return {0, 0, 0};
		low += (n - 1) * step;
		high = min(low + step, high);
	}
	if (n_rows == 0)
		return {0, 0, 0};
	return seen_of(a, low, a.query_start[low], a.query_start[low + 1], a.seq_lens[low], token);
}

static __device__ __forceinline__ int32_t tiles_of(int32_t n_keys)
{
	return (n_keys + (int32_t)MLA_TILE - 1) / (int32_t)MLA_TILE;
}

/* Keys [first, end) are split s of n_keys. */
static __device__ __forceinline__ int2 split_of(const mla_args &a, int32_t n_keys, int32_t split)
{
	int32_t n = (int32_t)a.sizes.n_splits, per = (tiles_of(n_keys) + n - 1) / n * MLA_TILE;
	int32_t first = min(split * per, n_keys);

	return make_int2(first, min(first + per, n_keys));
}

#endif
