/* SPDX-License-Identifier: MIT */

/*
 * Grid: (tokens, heads of q, k and v / heads of a block); block: 128 threads, a power of two of
 * lanes a head, each a pack of 8 pairs: 4 lanes for head_dim 64, 8 for 128; no shared memory. Moves
 * q twice and k and v twice, (n_heads + 2 n_kv_heads) * head_dim * 4 bytes a token, and 4 *
 * head_dim of cosines and sines, which all heads of a token share. A decode's row is 2 to 4 blocks.
 * In a graph (`early`) position, slot and a lane's first cosines and sines are read before the wait
 * for the preceding kernel, which leaves one round trip behind it, of the heads: 0.8 us instead of
 * 1.1 for one row on an H200.
 *
 * All heads take one path: a lane reads its pairs' two halves, normalises them with its neighbours'
 * sum if the head has a norm, rotates them unless it is of v, and writes q in place, k and v to the
 * cache, to one of fp8 as codes, in half of the bytes.
 */

#include "kernels/cuda/e4m3.cuh"
#include "kernels/cuda/kernel.cuh"

enum { THREADS = 128 };

/* Square sum of a head over its lanes. */
template <int N>
__device__ static float head_sum(
	const bf16 *lower, const bf16 *upper, uint32_t lane, uint32_t n_lanes, uint32_t n_pairs)
{
	float sum = 0;

	for (uint32_t i = lane * N; i < n_pairs; i += n_lanes * N) {
		float a[N], b[N];

		load<N>(a, lower + i);
		load<N>(b, upper + i);
#pragma unroll
		for (int j = 0; j < N; j++)
			sum += a[j] * a[j] + b[j] * b[j];
	}
	for (uint32_t offset = n_lanes / 2; offset; offset /= 2)
		sum += __shfl_xor_sync(~0u, sum, offset);
	return sum;
}

template <int N>
__device__ static inline void normalise(
	float (&v)[N], const struct weight &w, uint32_t at, float scale)
{
	float weight[N];

	load_weight<N>(weight, w, at);
#pragma unroll
	for (int j = 0; j < N; j++)
		v[j] = v[j] * scale * weight[j];
}

/* Of N pairs. */
template <int N> struct angles {
	float cosines[N], sines[N];
};

template <int N>
__device__ static inline void load_angles(angles<N> &to, const float *cos_sin, uint32_t n_pairs)
{
	load<N>(to.cosines, cos_sin);
	load<N>(to.sines, cos_sin + n_pairs);
}

template <int N>
__device__ static inline void rotate(float (&a)[N], float (&b)[N], const angles<N> &by)
{
#pragma unroll
	for (int j = 0; j < N; j++) {
		const float lower = a[j], upper = b[j];

		a[j] = lower * by.cosines[j] - upper * by.sines[j];
		b[j] = upper * by.cosines[j] + lower * by.sines[j];
	}
}

/* The element of the cache where head h of the token's k begins; v's heads follow k's. */
__device__ static inline size_t cached_head(
	const struct op_rope_and_cache &a, uint32_t slot, uint32_t h)
{
	const size_t page = slot / a.page_tokens, offset = slot % a.page_tokens;
	const uint32_t is_v = h >= a.n_kv_heads, head = is_v ? h - a.n_kv_heads : h;

	return (((page * 2 + is_v) * a.page_tokens + offset) * a.n_kv_heads + head) * a.head_dim;
}

template <int N, bool FP8>
static __global__ void rope_and_cache(
	const struct op_rope_and_cache a, uint32_t n_lanes, bool early)
{
	const uint32_t t = blockIdx.x, lane = threadIdx.x % n_lanes, n_pairs = a.head_dim / 2;
	const uint32_t n_all = a.n_heads + 2 * a.n_kv_heads;
	const uint32_t h = blockIdx.y * (THREADS / n_lanes) + threadIdx.x / n_lanes;
	const bool present = t < a.n_tokens && h < n_all, is_q = h < a.n_heads;
	const bool is_v = h >= a.n_heads + a.n_kv_heads;
	const struct weight norm = is_q ? a.q_norm : a.k_norm;
	const bf16 *source = (const bf16 *)a.qkv + ((size_t)t * n_all + h) * a.head_dim;
	const float *cos_sin;
	int32_t slot, position;
	angles<N> first = {}, by;
	float scale = 0;
	size_t cached;
	bf16 *out;

	overlap_trigger();
	if (!early)
		overlap_wait();
	slot = present ? a.slot_mapping[t] : -1;
	position = present ? a.positions[t] : 0;
	cos_sin = a.cos_sin + (size_t)clamp_index(position, a.max_positions) * a.head_dim;
	if (!is_v && lane * N < n_pairs)
		load_angles<N>(first, cos_sin + lane * N, n_pairs);
	if (early)
		overlap_wait();
	/* The shuffles need whole warps, so lanes without a head take part. */
	if (a.q_norm.data || a.k_norm.data) {
		const bool normed = present && !is_v && norm.data;

		scale = head_sum<N>(source, source + n_pairs, lane, n_lanes, normed ? n_pairs : 0);
		scale = rsqrtf(scale / (float)a.head_dim + a.eps);
	}
	if (!present || (!is_q && slot < 0))
		return;
	cached = is_q ? 0 : cached_head(a, (uint32_t)slot, h - a.n_heads);
	out = is_q ? (bf16 *)source : (bf16 *)a.kv + cached;
	for (uint32_t i = lane * N; i < n_pairs; i += n_lanes * N) {
		float lower[N], upper[N];

		load<N>(lower, source + i);
		load<N>(upper, source + n_pairs + i);
		if (!is_v && norm.data) {
			normalise<N>(lower, norm, i, scale);
			normalise<N>(upper, norm, n_pairs + i, scale);
		}
		by = first;
		if (!is_v && i != lane * N)
			load_angles<N>(by, cos_sin + i, n_pairs);
		if (!is_v)
			rotate<N>(lower, upper, by);
		if (FP8 && !is_q) {
			uint8_t *codes = (uint8_t *)a.kv + cached + i;
			const float factor = is_v ? a.factors.value : a.factors.key;

			e4m3_store<N>(codes, lower, factor);
			e4m3_store<N>(codes + n_pairs, upper, factor);
			continue;
		}
		store<N>(out + i, lower);
		store<N>(out + n_pairs + i, upper);
	}
}

template <bool FP8>
static void rope_and_cache_launch_as(struct stream *stream, const struct op_rope_and_cache *a, bool packs, dim3 grid,
	uint32_t n_lanes)
{
	launch(stream, packs ? rope_and_cache<PACK, FP8> : rope_and_cache<1, FP8>, grid, THREADS, 0, *a, n_lanes,
		cuda_inputs_settled(stream));
}

static int rope_and_cache_launch(struct stream *stream, const struct op_rope_and_cache *a)
{
	const bool packs = a->head_dim % (2 * PACK) == 0 && aligned(a->qkv) && aligned(a->kv) &&
			   aligned(a->cos_sin) && aligned(a->q_norm.data) &&
			   aligned(a->k_norm.data);
	const uint32_t n_packs = a->head_dim / 2 / (packs ? PACK : 1);
	const uint32_t n_heads = a->n_heads + 2 * a->n_kv_heads;
	uint32_t n_lanes = 1;

	while (n_lanes < n_packs && n_lanes < WARP)
		n_lanes *= 2;
	const dim3 grid = row_grid(a->n_tokens, n_heads, THREADS / n_lanes);

	if (a->fp8)
		rope_and_cache_launch_as<true>(stream, a, packs, grid, n_lanes);
	else
		rope_and_cache_launch_as<false>(stream, a, packs, grid, n_lanes);
	return 0;
}

CUDA_OP(rope_and_cache, rope_and_cache<PACK, false>)
