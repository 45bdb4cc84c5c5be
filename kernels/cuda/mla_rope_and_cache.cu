/* SPDX-License-Identifier: MIT */

/*
 * Grid: (tokens, 1 + blocks of the queries' pairs); block: 128 threads; no shared memory but the
 * sum's. A token's first block normalises its latent, a pack of 8 columns a thread where the rank
 * and the addresses allow it, and rotates its key; the others rotate two pairs of the queries a
 * thread. Moves (2 n_heads * rope + 2 (rank + rope)) * 2 bytes a token: 6.4 KB for 16 heads of 64
 * over a rank of 512, so it is latency-bound: in a graph (`early`) position and slot are fetched
 * ahead of the wait, and in the queries' blocks the angles too. A cache of fp8 gets codes, in half
 * of the bytes.
 */

#include "kernels/cuda/e4m3.cuh"
#include "kernels/cuda/kernel.cuh"

enum { THREADS = 128, PAIRS = 2 /* of a thread */ };

__device__ static inline const float *angles_of(
	const struct op_mla_rope_and_cache &a, int32_t position)
{
	return a.cos_sin + (size_t)clamp_index(position, a.max_positions) * a.rope;
}

/* The column of the first element of pair i. */
__device__ static inline uint32_t pair_at(const struct op_mla_rope_and_cache &a, uint32_t i)
{
	return a.interleaved ? 2 * i : i;
}

/* N elements, as codes where `to` is of bytes. */
template <int N> __device__ static inline void put(bf16 *to, const float (&v)[N], float)
{
	store<N>(to, v);
}

template <int N> __device__ static inline void put(uint8_t *to, const float (&v)[N], float factor)
{
	e4m3_store<N>(to, v, factor);
}

template <typename T>
__device__ static inline void rotate(
	T *to, const bf16 *from, uint32_t apart, float cosine, float sine, float factor)
{
	const float first = __bfloat162float(from[0]), second = __bfloat162float(from[apart]);

	put<1>(to, {first * cosine - second * sine}, factor);
	put<1>(to + apart, {second * cosine + first * sine}, factor);
}

/* T: of the cache. */
template <int N, typename T>
__device__ static void cache_row(
	const struct op_mla_rope_and_cache &a, uint32_t t, int32_t slot, const float *angles)
{
	const size_t width = (size_t)a.rank + a.rope;
	const bf16 *from = (const bf16 *)a.kv_a + t * width;
	const uint32_t apart = a.interleaved ? 1 : a.rope / 2;
	T *to;
	float sum = 0, scale;

	for (uint32_t i = threadIdx.x * N; i < a.rank; i += THREADS * N) {
		float v[N];

		load<N>(v, from + i);
#pragma unroll
		for (int j = 0; j < N; j++)
			sum += v[j] * v[j];
	}
	scale = rsqrtf(block_sum(sum) / (float)a.rank + a.eps);
	if (slot < 0)
		return;
	to = (T *)a.kv + (size_t)(uint32_t)slot * width;
	for (uint32_t i = threadIdx.x * N; i < a.rank; i += THREADS * N) {
		float v[N], weight[N];

		load<N>(v, from + i);
		load_weight<N>(weight, a.norm, i);
#pragma unroll
		for (int j = 0; j < N; j++)
			v[j] = v[j] * scale * weight[j];
		put<N>(to + i, v, a.factors.key);
	}
	for (uint32_t i = threadIdx.x; i < a.rope / 2; i += THREADS)
		rotate(to + a.rank + pair_at(a, i), from + a.rank + pair_at(a, i), apart, angles[i],
			angles[a.rope / 2 + i], a.factors.key);
}

template <int N, typename T>
static __global__ void mla_rope_and_cache(const struct op_mla_rope_and_cache a, bool early)
{
	const uint32_t t = blockIdx.x, half = a.rope / 2, n_pairs = a.n_heads * half;
	const uint32_t apart = a.interleaved ? 1 : half;
	const bool present = t < a.n_tokens;
	const float *angles;
	float cosines[PAIRS], sines[PAIRS];
	int32_t slot, position;

	overlap_trigger();
	if (!early)
		overlap_wait();
	slot = present ? a.slot_mapping[t] : -1;
	position = present ? a.positions[t] : 0;
	angles = angles_of(a, position);
	if (blockIdx.y == 0) {
		if (early)
			overlap_wait();
		if (present)
			cache_row<N, T>(a, t, slot, angles);
		return;
	}
#pragma unroll
	for (int k = 0; k < PAIRS; k++) {
		const uint32_t i = ((blockIdx.y - 1) * PAIRS + k) * THREADS + threadIdx.x;

		cosines[k] = angles[i % half];
		sines[k] = angles[half + i % half];
	}
	if (early)
		overlap_wait();
#pragma unroll
	for (int k = 0; k < PAIRS; k++) {
		const uint32_t i = ((blockIdx.y - 1) * PAIRS + k) * THREADS + threadIdx.x;
		bf16 *q = (bf16 *)a.q + ((size_t)t * a.n_heads + i / half) * (a.nope + a.rope) +
			  a.nope + pair_at(a, i % half);

		if (present && i < n_pairs)
			rotate(q, q, apart, cosines[k], sines[k], 1.0f);
	}
}

template <typename T>
static void mla_rope_and_cache_launch_as(
	struct stream *stream, const struct op_mla_rope_and_cache *a, bool packs, dim3 grid)
{
	launch(stream, packs ? mla_rope_and_cache<PACK, T> : mla_rope_and_cache<1, T>, grid, THREADS, 0, *a,
		cuda_inputs_settled(stream));
}

static int mla_rope_and_cache_launch(struct stream *stream, const struct op_mla_rope_and_cache *a)
{
	const uint64_t n_pairs = (uint64_t)a->n_heads * (a->rope / 2);
	const bool packs = a->rank % PACK == 0 && a->rope % PACK == 0 && aligned(a->kv_a) &&
			   aligned(a->kv) && aligned(a->norm.data);
	dim3 grid;

	if (n_pairs > 65534ull * THREADS * PAIRS)
		return -EINVAL;
	grid = row_grid(a->n_tokens, (uint32_t)n_pairs, THREADS * PAIRS);
	grid.y++;
	if (a->fp8)
		mla_rope_and_cache_launch_as<uint8_t>(stream, a, packs, grid);
	else
		mla_rope_and_cache_launch_as<bf16>(stream, a, packs, grid);
	return 0;
}

CUDA_OP(mla_rope_and_cache, mla_rope_and_cache<PACK, bf16>)
