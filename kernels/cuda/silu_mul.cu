/* SPDX-License-Identifier: MIT */

/*
 * Grid: (rows, packs of a row / 256); block: 256 threads, each one pack of 8 columns: one 16-byte
 * read of gate, one of up, one write; no shared memory. Moves rows * cols * 6 bytes. Both reads are
 * issued together, so that a decode's row costs one round trip.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

__device__ static inline float silu(float x)
{
	return x / (1.0f + __expf(-x));
}

__device__ static inline float gelu(float x)
{
	return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

template <int N> static __global__ void silu_mul(const struct op_silu_mul a)
{
	const uint32_t n_packs = a.cols / N;
	const bf16 *row = (const bf16 *)a.gate_up + (size_t)blockIdx.x * 2 * a.cols;

	overlap_begin();
	if (blockIdx.x >= a.n_rows)
		return;
	for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < n_packs;
		i += gridDim.y * THREADS) {
		float gate[N], up[N];

		load<N>(gate, row + (size_t)i * N);
		load<N>(up, row + a.cols + (size_t)i * N);
#pragma unroll
		for (int j = 0; j < N; j++)
			gate[j] = (a.gelu ? gelu(gate[j]) : silu(gate[j])) * up[j];
		store<N>((bf16 *)a.out + (size_t)blockIdx.x * a.cols + (size_t)i * N, gate);
	}
}

static int silu_mul_launch(struct stream *stream, const struct op_silu_mul *a)
{
	const bool packs = a->cols % PACK == 0 && aligned(a->gate_up) && aligned(a->out);

	return launch_rows(
		stream, packs, silu_mul<PACK>, silu_mul<1>, a->n_rows, a->cols, THREADS, *a);
}

CUDA_OP(silu_mul, silu_mul<PACK>)
