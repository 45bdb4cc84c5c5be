/* SPDX-License-Identifier: MIT */

/*
 * Stage 2: a token's and head's partials become one average. Grid: (tokens, heads, columns); block: 128
 * threads, GROUPS sets of them, each with its share of the partials: one for 512 columns where tokens
 * fill the device, eight for 64 columns where a few tokens have many partials. Shared memory: 4 KB for
 * the sums of eight sets, else none. Bytes: the partials once, usually from the L2.
 */

#include "attention/mla/mla_cuda.cuh"

enum { THREADS = 128, MANY_GROUPS = 8, IN_FLIGHT = 8, FILLED = 512 /* blocks, tokens by heads */ };

/* A token's partials of one head: where they are and how many. */
struct mla_partials {
	size_t first, step; /* of the second on, in planned work */
	size_t next;
	int32_t n;
};

static __device__ __forceinline__ mla_partials pieces_of(
	const mla_cuda_args &p, size_t token, size_t head)
{
	const mla_args &a = p.a;
	size_t n_heads = a.n_heads;
	int32_t slot, per;
	mla_token t;

	if (!p.planned) {
		size_t first = (token * n_heads + head) * a.sizes.n_splits;

		return {first, 1, first + 1, (int32_t)a.sizes.n_splits};
	}
	t = a.work.plan.tokens[token];
	per = a.work.plan.slots[0].tiles_per_slot;
	if (t.n_tiles == 0 || per == 0)
		return {0, 0, 0, t.n_tiles != 0};
	slot = t.tile_start / per;
	return {((size_t)slot * 2 + 1) * n_heads + head, 2 * n_heads,
		((size_t)slot + 1) * 2 * n_heads + head,
		(t.tile_start + t.n_tiles - 1) / per - slot + 1};
}

static __device__ __forceinline__ size_t piece_at(const mla_partials &p, int32_t i)
{
	return i == 0 ? p.first : p.next + (i - 1) * p.step;
}

/* The sum of some pieces, relative to the highest of their log-sum-exps. */
struct mla_sums {
	float4 x;
	float sum, highest;
};

static __device__ __forceinline__ float weight_of(float lse, float highest)
{
	return lse == NEVER ? 0.0f : power_2(lse - highest);
}

static __device__ __forceinline__ void scale(mla_sums &s, float by)
{
	s.x.x *= by;
	s.x.y *= by;
	s.x.z *= by;
	s.x.w *= by;
	s.sum *= by;
}

static __device__ __forceinline__ void add(mla_sums &s, float4 x, float sum, float weight)
{
	if (weight == 0.0f) /* an empty piece, which was not written */
		return;
	s.x.x += weight * x.x;
	s.x.y += weight * x.y;
	s.x.z += weight * x.z;
	s.x.w += weight * x.w;
	s.sum += weight * sum;
}

/* Four columns from `col` on, of every n_groups-th piece; what is read does not wait for
 * weights. */
static __device__ __forceinline__ mla_sums add_up(
	const mla_args &a, const mla_partials &p, uint32_t col, int32_t group, int32_t n_groups)
{
	mla_sums s = {make_float4(0, 0, 0, 0), 0.0f, NEVER};

	for (int32_t first = group; first < p.n; first += n_groups * IN_FLIGHT) {
		float4 x[IN_FLIGHT];
		float lse[IN_FLIGHT], before = s.highest;

#pragma unroll
		for (int k = 0; k < IN_FLIGHT; k++) {
			int32_t i = first + k * n_groups;

			lse[k] = i < p.n ? __ldcg(a.work.lse + piece_at(p, i)) : NEVER;
			x[k] = i < p.n ? __ldcg((const float4 *)(a.work.partial +
							 piece_at(p, i) * a.rank + col))
				       : make_float4(0, 0, 0, 0);
		}
#pragma unroll
		for (int k = 0; k < IN_FLIGHT; k++)
			s.highest = fmaxf(s.highest, lse[k]);
		scale(s, weight_of(before, s.highest));
#pragma unroll
		for (int k = 0; k < IN_FLIGHT; k++)
			add(s, x[k], 1.0f, weight_of(lse[k], s.highest));
	}
	return s;
}

static __device__ __forceinline__ void store_4(bf16 *to, float4 x, float sum)
{
	float factor = sum > 0.0f ? 1.0f / sum : 0.0f;

	*(uint2 *)to = make_uint2(
		pack(x.x * factor, x.y * factor), pack(x.z * factor, x.w * factor));
}

template <int GROUPS>
static __global__ void __launch_bounds__(THREADS)
	merge_kernel(const __grid_constant__ mla_cuda_args p)
{
	constexpr int lanes = THREADS / GROUPS;
	__shared__ mla_sums all[GROUPS][lanes];
	const mla_args &a = p.a;
	size_t token = blockIdx.x, head = blockIdx.y;
	uint32_t lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
	uint32_t col = (blockIdx.z * lanes + lane) * 4;
	mla_sums s = {make_float4(0, 0, 0, 0), 0.0f, NEVER};
	mla_partials of;

	overlap_begin();
	of = pieces_of(p, token, head);
	if (p.planned && of.n == 1)
		return; /* stage 1 left it where it belongs */
	if (col < a.rank)
		s = add_up(a, of, col, group, GROUPS);
	if (GROUPS > 1) {
		all[group][lane] = s;
		__syncthreads();
		if (group != 0)
			return;
		for (int g = 1; g < GROUPS; g++) {
			const mla_sums other = all[g][lane];
			float before = s.highest;

			s.highest = fmaxf(before, other.highest);
			scale(s, weight_of(before, s.highest));
			add(s, other.x, other.sum, weight_of(other.highest, s.highest));
		}
	}
	if (col < a.rank)
		store_4((bf16 *)a.work.latent + (token * a.n_heads + head) * a.rank + col, s.x, s.sum);
}

/* A rank that is no multiple of 4; never planned. */
static __global__ void __launch_bounds__(THREADS)
	merge_any_kernel(const __grid_constant__ mla_cuda_args p)
{
	const mla_args &a = p.a;
	size_t token = blockIdx.x, head = blockIdx.y;
	bf16 *out = (bf16 *)a.work.latent + (token * a.n_heads + head) * a.rank;
	mla_partials of;
	float highest = NEVER;

	overlap_begin();
	of = pieces_of(p, token, head);
	for (int32_t i = 0; i < of.n; i++)
		highest = fmaxf(highest, __ldcg(a.work.lse + piece_at(of, i)));
	for (uint32_t col = threadIdx.x; col < a.rank; col += THREADS) {
		float x = 0.0f, sum = 0.0f;

		for (int32_t i = 0; i < of.n; i++) {
			size_t at = piece_at(of, i);
			float weight = weight_of(__ldcg(a.work.lse + at), highest);

			sum += weight;
			if (weight != 0.0f)
				x += weight * __ldcg(a.work.partial + at * a.rank + col);
		}
		out[col] = __float2bfloat16_rn(sum > 0.0f ? x / sum : 0.0f);
	}
}

void mla_merge_launch(struct stream *stream, const mla_cuda_args *args)
{
	const mla_args &a = args->a;
	uint32_t n_fours = (a.rank + 3) / 4, lanes = THREADS / MANY_GROUPS;

	if (a.rank % 4 != 0)
		launch(stream, merge_any_kernel, dim3(a.n_tokens, a.n_heads), dim3(THREADS), 0, *args);
	else if ((uint64_t)a.n_tokens * a.n_heads >= FILLED)
		launch(stream, merge_kernel<1>,
			dim3(a.n_tokens, a.n_heads, (n_fours + THREADS - 1) / THREADS),
			dim3(THREADS), 0, *args);
	else
		launch(stream, merge_kernel<MANY_GROUPS>,
			dim3(a.n_tokens, a.n_heads, (n_fours + lanes - 1) / lanes), dim3(THREADS), 0,
			*args);
}

const void *const mla_merge_kernel = (const void *)merge_any_kernel;
