/* SPDX-License-Identifier: MIT */

/*
 * Grid: (tokens, packs of a row / 128); block: 128 threads, each one pack of 8 columns of a token,
 * whose BATCH next rows of y, weights and experts are read together: one round trip to memory where
 * a token has up to BATCH experts. Moves tokens * cols * 2 * (n_active + 2) bytes; no shared
 * memory. The row of a pair without an expert is read, but its value is ignored, because nothing wrote it.
 *
 * Sums are float32, in the order of the choices.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 128, BATCH = 8 };

template <int N>
__device__ static inline void add_rows(
	const struct op_moe_combine &a, size_t first, uint32_t n, uint32_t col, float (&sums)[N])
{
	float y[BATCH][N], weights[BATCH];
	bool some[BATCH];

#pragma unroll
	for (uint32_t i = 0; i < BATCH; i++) {
		const size_t p = first + min(i, n - 1);

		load<N>(y[i], (const bf16 *)a.y + p * a.cols + col);
		weights[i] = a.weights[p];
		some[i] = i < n && a.experts[p] >= 0;
	}
#pragma unroll
	for (uint32_t i = 0; i < BATCH; i++)
#pragma unroll
		for (int j = 0; j < N; j++)
			sums[j] = some[i] ? sums[j] + weights[i] * y[i][j] : sums[j];
}

template <int N> static __global__ void moe_combine(const struct op_moe_combine a)
{
	const uint32_t n_packs = a.cols / N;
	const size_t t = blockIdx.x, row = t * a.cols;

	overlap_begin();
	if (t >= a.n_tokens)
		return;
	for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < n_packs;
		i += gridDim.y * THREADS) {
		float sums[N] = {};

		if (a.base)
			load<N>(sums, (const bf16 *)a.base + row + (size_t)i * N);
		for (uint32_t j = 0; j < a.n_active; j += BATCH)
			add_rows<N>(a, t * a.n_active + j, min(a.n_active - j, (uint32_t)BATCH),
				i * N, sums);
		store<N>((bf16 *)a.out + row + (size_t)i * N, sums);
	}
}

static int moe_combine_launch(struct stream *stream, const struct op_moe_combine *a)
{
	const bool packs =
		a->cols % PACK == 0 && aligned(a->base) && aligned(a->y) && aligned(a->out);

	return launch_rows(stream, packs, moe_combine<PACK>, moe_combine<1>, a->n_tokens, a->cols,
		THREADS, *a);
}

CUDA_OP(moe_combine, moe_combine<PACK>)
