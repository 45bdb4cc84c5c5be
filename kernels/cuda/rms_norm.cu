/* SPDX-License-Identifier: MIT */

/*
 * Grid: one block a row; block: a thread for each pack of 8 columns, 1024 at most; shared memory:
 * 128 bytes of partial sums. Moves rows * cols * 4 bytes, with the addition rows * cols * 8, and
 * the weight once from memory. Up to 8192 columns a row is one pack a thread and stays in registers
 * between the sum and the scaling, and the weight is fetched before the wait: one round trip to
 * memory and one barrier. Wider rows are read a second time, from the cache. On an H200 the two
 * norms of a layer cost 1 to 4 us in the chain of launches.
 *
 * The sum is float32 in an order that depends on the width alone: a row's bits do not depend on the
 * batch. The residual is rounded to bf16 before it is normalised, because the rounded value is what
 * is stored.
 */

#include "kernels/cuda/kernel.cuh"

struct norm {
	const bf16 *x;
	bf16 *residual; /* NULL: no addition */
	bf16 *out;
	struct weight weight;
	uint32_t n_rows;
	float eps;
};

/* A pack of the values to normalise; with a residual, adds and stores it first. */
template <int N, bool ADD>
__device__ static inline void take(float (&v)[N], const struct norm &a, size_t at)
{
	if constexpr (ADD) {
		float x[N];

		load<N>(v, a.residual + at);
		load<N>(x, a.x + at);
#pragma unroll
		for (int i = 0; i < N; i++)
			v[i] = __bfloat162float(__float2bfloat16_rn(v[i] + x[i]));
		store<N>(a.residual + at, v);
	} else {
		load<N>(v, a.x + at);
	}
}

template <int N> __device__ static inline float square_sum(const float (&v)[N])
{
	float sum = 0;

#pragma unroll
	for (int i = 0; i < N; i++)
		sum += v[i] * v[i];
	return sum;
}

template <int N>
__device__ static inline void emit(bf16 *out, float (&v)[N], const float (&weight)[N], float scale)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = v[i] * scale * weight[i];
	store<N>(out, v);
}

template <int N, bool ADD> static __global__ void rms_norm(const struct norm a)
{
	const uint32_t cols = a.weight.cols, n_packs = cols / N, first = threadIdx.x;
	const size_t row = (size_t)blockIdx.x * cols;
	const bf16 *source = (ADD ? a.residual : a.x) + row;
	float kept[N] = {}, weight[N] = {}, v[N], sum, scale;

	overlap_trigger();
	if (first < n_packs)
		load_weight<N>(weight, a.weight, (size_t)first * N);
	overlap_wait();
	if (blockIdx.x >= a.n_rows)
		return;
	if (first < n_packs)
		take<N, ADD>(kept, a, row + (size_t)first * N);
	sum = square_sum<N>(kept);
	for (uint32_t i = first + blockDim.x; i < n_packs; i += blockDim.x) {
		take<N, ADD>(v, a, row + (size_t)i * N);
		sum += square_sum<N>(v);
	}
	scale = rsqrtf(block_sum(sum) / (float)cols + a.eps);
	if (first < n_packs)
		emit<N>(a.out + row + (size_t)first * N, kept, weight, scale);
	for (uint32_t i = first + blockDim.x; i < n_packs; i += blockDim.x) {
		load<N>(v, source + (size_t)i * N);
		load_weight<N>(weight, a.weight, (size_t)i * N);
		emit<N>(a.out + row + (size_t)i * N, v, weight, scale);
	}
}

template <bool ADD> static int rms_norm_launch_any(struct stream *stream, const struct norm &a)
{
	const bool packs = a.weight.cols % PACK == 0 && aligned(a.x) && aligned(a.residual) &&
			   aligned(a.out) && aligned(a.weight.data);
	const uint32_t n_packs = packs ? a.weight.cols / PACK : a.weight.cols;
	const uint32_t threads = n_packs < 1024 ? (n_packs + WARP - 1) / WARP * WARP : 1024;

	launch(stream, packs ? rms_norm<PACK, ADD> : rms_norm<1, ADD>, a.n_rows ? a.n_rows : 1,
		threads, 0, a);
	return 0;
}

static int rms_norm_launch(struct stream *stream, const struct op_rms_norm *a)
{
	return rms_norm_launch_any<false>(stream, {(const bf16 *)a->x, NULL, (bf16 *)a->out,
							  a->weight, a->n_rows, a->eps});
}

static int add_rms_norm_launch(struct stream *stream, const struct op_add_rms_norm *a)
{
	return rms_norm_launch_any<true>(
		stream, {(const bf16 *)a->x, (bf16 *)a->residual, (bf16 *)a->out, a->weight,
				a->n_rows, a->eps});
}

CUDA_OP(rms_norm, rms_norm<PACK, false>)
CUDA_OP(add_rms_norm, rms_norm<PACK, true>)
