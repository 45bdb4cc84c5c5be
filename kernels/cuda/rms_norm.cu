/* SPDX-License-Identifier: MIT */

/*
 * Grid: one block a row; block: a thread for each pack of 8 columns, 1024 at most; shared memory:
 * 128 bytes of partial sums, and with an order the row. Moves rows * cols * 4 bytes, and the weight
 * once from memory. Up to 8192 columns a row is one pack a thread and stays in registers between
 * the sum and the scaling, and the weight is fetched before the wait: one round trip to memory and
 * one barrier. Wider rows are read a second time, from the cache.
 *
 * With an order a row is written to shared memory and read from there in the order: single columns out of order would
 * be stores of 2 bytes, which take a transaction each. With `add` the output is read as well, rows * cols * 2 bytes
 * more.
 *
 * The sum is float32 in an order that depends on the width alone: a row's bits do not depend on the
 * batch.
 */

#include "kernels/cuda/kernel.cuh"

template <int N> __device__ static inline float square_sum(const float (&v)[N])
{
	float sum = 0;

#pragma unroll
	for (int i = 0; i < N; i++)
		sum += v[i] * v[i];
	return sum;
}

template <int N>
__device__ static inline void emit(bf16 *out, float (&v)[N], const float (&weight)[N], float scale, bool add)
{
	float old[N] = {};

	if (add)
		load<N>(old, out);
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = old[i] + v[i] * scale * weight[i];
	store<N>(out, v);
}

/* The row's packs, of columns in the order. */
template <int N>
__device__ static inline void emit_ordered(
	bf16 *out, const bf16 *row, const uint32_t *order, uint32_t n_packs)
{
	for (uint32_t i = threadIdx.x; i < n_packs; i += blockDim.x) {
		float v[N];

#pragma unroll
		for (int j = 0; j < N; j++)
			v[j] = __bfloat162float(row[order[i * N + j]]);
		store<N>(out + (size_t)i * N, v);
	}
}

template <int N> static __global__ void rms_norm(const struct op_rms_norm a)
{
	const uint32_t cols = a.weight.cols, n_packs = cols / N, first = threadIdx.x;
	const size_t row = (size_t)blockIdx.x * cols;
	const bf16 *const x = (const bf16 *)a.x + row;
	extern __shared__ __align__(16) bf16 ordered[]; /* [cols] */
	bf16 *const out = a.order ? ordered : (bf16 *)a.out + row;
	float kept[N] = {}, weight[N] = {}, v[N], sum, scale;

	overlap_trigger();
	if (first < n_packs)
		load_weight<N>(weight, a.weight, (size_t)first * N);
	overlap_wait();
	if (blockIdx.x >= a.n_rows)
		return;
	if (first < n_packs)
		load<N>(kept, x + (size_t)first * N);
	sum = square_sum<N>(kept);
	for (uint32_t i = first + blockDim.x; i < n_packs; i += blockDim.x) {
		load<N>(v, x + (size_t)i * N);
		sum += square_sum<N>(v);
	}
	scale = rsqrtf(block_sum(sum) / (float)cols + a.eps);
	if (first < n_packs)
		emit<N>(out + (size_t)first * N, kept, weight, scale, a.add);
	for (uint32_t i = first + blockDim.x; i < n_packs; i += blockDim.x) {
		load<N>(v, x + (size_t)i * N);
		load_weight<N>(weight, a.weight, (size_t)i * N);
		emit<N>(out + (size_t)i * N, v, weight, scale, a.add);
	}
	if (!a.order)
		return;
	__syncthreads();
	emit_ordered<N>((bf16 *)a.out + row, ordered, a.order, n_packs);
}

static int rms_norm_launch(struct stream *stream, const struct op_rms_norm *a)
{
	const bool packs = a->weight.cols % PACK == 0 && aligned(a->x) && aligned(a->out) && aligned(a->weight.data);
	const uint32_t n_packs = packs ? a->weight.cols / PACK : a->weight.cols;
	const uint32_t threads = n_packs < 1024 ? (n_packs + WARP - 1) / WARP * WARP : 1024;

	launch(stream, packs ? rms_norm<PACK> : rms_norm<1>, a->n_rows ? a->n_rows : 1, threads,
		a->order ? a->weight.cols * sizeof(bf16) : 0, *a);
	return 0;
}

CUDA_OP(rms_norm, rms_norm<PACK>)
