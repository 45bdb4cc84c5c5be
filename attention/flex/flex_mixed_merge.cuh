/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_FLEX_FLEX_MIXED_MERGE_CUH
#define MIMEO_ATTENTION_FLEX_FLEX_MIXED_MERGE_CUH

/*
 * Pieces of long blocks' lists: storing a warpgroup's partial sums, and merging them by the last piece of a
 * list. flex_mixed_sm90.cu has the overview.
 */

#include "attention/flex/flex_mixed_feed.cuh"

/* For a thread's row and the next MERGED pieces: the factor of each piece, and in the last element the factor
 * of what was merged before. */
static __device__ __forceinline__ void factors_find(const float2 *stats, int32_t n,
	float scale_log2, float2 &all, float (*factors)[64], int row)
{
	float2 one[MERGED];
	float highest = all.x, keep;

#pragma unroll
	for (int k = 0; k < MERGED; k++)
		one[k] = k < n ? __ldcg(stats + k * FLEX_PACKED) : make_float2(NEVER, 0.0f);
#pragma unroll
	for (int k = 0; k < MERGED; k++)
		highest = fmaxf(highest, one[k].x);
	keep = weight_of(all.x, highest, scale_log2);
	factors[MERGED][row] = keep;
	all = make_float2(highest, all.y * keep);
#pragma unroll
	for (int k = 0; k < MERGED; k++) {
		factors[k][row] = weight_of(one[k].x, highest, scale_log2);
		all.y += one[k].y * factors[k][row];
	}
}

/* Merge all pieces of a list for n_m rows of a warpgroup: first the factors of each row, then each thread
 * sums the same few columns of all pieces. */
template <int D>
static __device__ __forceinline__ void long_merge(
	const flex_cuda_args &p, const flex_task &w, int32_t n_m, float (*factors)[64])
{
	constexpr int n = 64 * D / 4 / GROUP; /* groups of four columns per thread */
	constexpr int batch = n % 8 ? 4 : 8;
	static_assert(n % batch == 0, "no batch is cut");
	const int wg = warpgroup(), thread = split_thread();
	const size_t row = (size_t)w.first * FLEX_PACKED + wg * 64;
	const float4 *partials = (const float4 *)p.long_partials + row * (D / 4) + thread;
	const float2 *stats = (const float2 *)p.long_stats + row + thread;
	const int32_t n_pieces = w.n_pieces, n_used = (n_m * (D / 4) + GROUP - 1) / GROUP;
	float2 all = make_float2(NEVER, 0.0f);
	float4 sums[n] = {};

	for (int32_t first = 0; first < n_pieces; first += MERGED) {
		const int32_t n_here = min(n_pieces - first, MERGED);

		team_sync();
		if (thread < n_m)
			factors_find(stats + first * FLEX_PACKED, n_here,
				p.a.scale * CUDART_L2E_F, all, factors, thread);
		team_sync();
#pragma unroll
		for (int i = 0; i < n; i++) {
			float keep = factors[MERGED][(thread + i * GROUP) / (D / 4)];

			sums[i] = make_float4(sums[i].x * keep, sums[i].y * keep,
				sums[i].z * keep, sums[i].w * keep);
		}
#pragma unroll
		for (int i = 0; i < n; i += batch)
#pragma unroll 2
			for (int32_t k = 0; k < n_here && i < n_used; k++) {
				const float4 *from = partials +
						     (size_t)(first + k) * FLEX_PACKED * (D / 4);
				float4 x[batch];

				/* rows that do not exist are read as well, and are not stored */
#pragma unroll
				for (int b = 0; b < batch; b++)
					x[b] = __ldcg(from + (i + b) * GROUP);
#pragma unroll
				for (int b = 0; b < batch; b++)
					add_scaled(&sums[i + b], x[b],
						factors[k][(thread + (i + b) * GROUP) / (D / 4)]);
			}
	}
	team_sync();
	if (thread < n_m)
		factors[0][thread] = all.y;
	team_sync();
#pragma unroll
	for (int i = 0; i < n; i++) {
		int e = thread + i * GROUP, m = e / (D / 4);

		if (m < n_m)
			packed_store<D>(p, w.block, w.kv_head, wg * 64 + m, e % (D / 4) * 4,
				sums[i], factors[0][m]);
	}
}

/* Store a piece's sums, maximum and sum of weights as its partial; the last piece of the list merges all.
 * Warpgroups do this independently, each for its rows. */
template <int D, int KEYS>
static __device__ __forceinline__ void piece_store(const flex_cuda_args &p, const flex_task &w,
	flex_shared<KEYS / FLEX_TILE> *s, const tile_rows<D, KEYS> &run)
{
	const int wg = warpgroup();
	const int32_t n_m = __shfl_sync(~0u, min(w.n_rows - wg * 64, 64), 0);

	if (n_m <= 0)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4 + half * 8;
		float sum = quad_sum(run.sum[half]);
		size_t row = (size_t)w.piece * FLEX_PACKED + wg * 64 + m;
		float *to = p.long_partials + row * D + threadIdx.x % 4 * 2;

		if (m >= n_m)
			continue;
		if (threadIdx.x % 4 == 0)
			__stcg((float2 *)p.long_stats + row,
				make_float2(run.highest[half], sum));
#pragma unroll
		for (int n = 0; n < D / 8; n++)
			__stcg((float2 *)(to + n * 8), make_float2(run.sums[n][half * 2],
							       run.sums[n][half * 2 + 1]));
	}
	if (is_last(p.long_counters + w.first * WGS + wg, w.n_pieces, &s->done[wg]))
		long_merge<D>(p, w, n_m, s->factors[wg]);
}

#endif
