/* SPDX-License-Identifier: MIT */

/*
 * Stage 1 for sizes that no other kernel is made for. Grid: (tokens x splits, heads); block: four
 * warps, which take every fourth key of a tile of MLA_TILE for its scores, and every fourth group of 32
 * columns for the sum. Shared memory: the query and the sum in float32, (2 rank + rope) * 4 bytes, and
 * 128 for the scores. Every head reads the keys for itself, an element a lane. Bytes: for each token and
 * head (2 rank + rope) elements a visible key, of 2 bytes or, as codes of fp8, of 1, and 4 rank a split
 * (2 rank if there is one).
 */

#include "attention/mla/mla_cuda.cuh"
#include "kernels/cuda/e4m3.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

static __device__ __forceinline__ float number_of(bf16 x)
{
	return __bfloat162float(x);
}

static __device__ __forceinline__ float number_of(uint8_t code)
{
	return kv_number_of(code);
}

/* T: of the cache, bf16 or, for codes, uint8_t. */
template <typename T>
static __device__ const T *mla_any_key_at(const mla_args &a, int32_t row, int32_t position)
{
	int32_t page = a.block_table[(size_t)row * a.max_pages + position / a.page_tokens];
	size_t width = (size_t)a.rank + a.rope;

	return (const T *)a.kv + ((size_t)page_clamp(page, a.n_pages) * a.page_tokens +
					 position % a.page_tokens) * width;
}

static __device__ float warp_sum(float x)
{
	for (int d = 16; d; d /= 2)
		x += __shfl_xor_sync(~0u, x, d);
	return x;
}

/* The query in the latent space, then its rope part. */
static __device__ void mla_any_query_load(const mla_args &a, size_t token, size_t head, float *q)
{
	const bf16 *latent = (const bf16 *)a.work.latent + (token * a.n_heads + head) * a.rank;
	const bf16 *rope = (const bf16 *)a.q + token * a.q_stride + head * (a.nope + a.rope) + a.nope;

	for (uint32_t i = threadIdx.x; i < a.rank + a.rope; i += THREADS)
		q[i] = __bfloat162float(i < a.rank ? latent[i] : rope[i - a.rank]);
}

static __device__ void result_store(const mla_args &a, size_t token, size_t head, int32_t split,
	const float *sums, float highest, float sum)
{
	size_t index = (token * a.n_heads + head), at = index * a.sizes.n_splits + split;
	float factor = sum > 0.0f ? a.factors.value / sum : 0.0f;

	for (uint32_t i = threadIdx.x; i < a.rank; i += THREADS) {
		if (a.sizes.n_splits == 1)
			((bf16 *)a.work.latent)[index * a.rank + i] =
				__float2bfloat16_rn(sums[i] * factor);
		else
			a.work.partial[at * a.rank + i] = sums[i] * factor;
	}
	if (threadIdx.x == 0 && a.sizes.n_splits > 1)
		a.work.lse[at] = sum > 0.0f ? highest + __log2f(sum) : NEVER;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) any_kernel(const __grid_constant__ mla_args a)
{
	extern __shared__ float memory[];
	__shared__ float weights[MLA_TILE];
	float *q = memory, *sums = memory + a.rank + a.rope;
	int32_t token = blockIdx.x / a.sizes.n_splits, split = blockIdx.x % a.sizes.n_splits;
	int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	float highest = NEVER, sum = 0.0f, scale_log2 = a.scale * CUDART_L2E_F;
	int2 keys;
	mla_seen s;

	overlap_begin();
	s = token_find(a, (int32_t)a.first_token + token);
	keys = split_of(a, s.n_keys, split);
	mla_any_query_load(a, token, blockIdx.y, q);
	for (uint32_t i = threadIdx.x; i < a.rank; i += THREADS)
		sums[i] = 0.0f;
	__syncthreads();
	for (int32_t first = keys.x; first < keys.y; first += MLA_TILE) {
		int32_t n = min(keys.y - first, (int32_t)MLA_TILE);
		float before = highest, keep;

		for (int32_t i = warp; i < n; i += WARPS) {
			const T *key = mla_any_key_at<T>(a, s.row, first + i);
			float score = 0.0f;

			for (uint32_t e = lane; e < a.rank + a.rope; e += 32)
				score += q[e] * number_of(key[e]);
			score = warp_sum(score) * scale_log2;
			if (lane == 0)
				weights[i] = score;
		}
		__syncthreads();
		for (int32_t i = 0; i < n; i++)
			highest = fmaxf(highest, weights[i]);
		keep = power_2(before - highest);
		sum *= keep;
		for (int32_t i = 0; i < n; i++)
			sum += power_2(weights[i] - highest);
		for (uint32_t e = threadIdx.x; e < a.rank; e += THREADS) {
			float x = sums[e] * keep;

			for (int32_t i = 0; i < n; i++)
				x += power_2(weights[i] - highest) *
				     number_of(mla_any_key_at<T>(a, s.row, first + i)[e]);
			sums[e] = x;
		}
		__syncthreads();
	}
	result_store(a, token, blockIdx.y, split, sums, highest, sum);
}

void mla_any_launch(struct stream *stream, const mla_cuda_args *args)
{
	const mla_args &a = args->a;

	launch(stream, a.fp8 ? any_kernel<uint8_t> : any_kernel<bf16>,
		dim3(a.n_tokens * a.sizes.n_splits, a.n_heads), dim3(THREADS),
		(2 * (size_t)a.rank + a.rope) * sizeof(float), a);
}

const void *const mla_any_kernel = (const void *)any_kernel<bf16>;
