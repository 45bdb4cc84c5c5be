/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_SM90_ROWS_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_SM90_ROWS_CUH

/*
 * Shared by the prefill kernels on 9.0a, with any mask: the rings of tiles, and a warpgroup's 64 packed query
 * rows with their running softmax and products. paged_prefill_sm90.cu has the overview; attention under block
 * masks (attention/flex) uses this as well.
 */

#include "attention/paged/paged_sm90.cuh"

#define STAGES 2
#define GROUP 128 /* threads of a warpgroup */

/* Shared memory: queries [WGS][64 rows], keys [STAGES][KEYS rows], values the same; atoms. */
template <int D, int KEYS, int WGS> struct tile_sizes {
	static constexpr int rows = WGS * 64;
	static constexpr uint32_t group_bytes = 64 * D * 2; /* a warpgroup's queries */
	static constexpr uint32_t tile_bytes = KEYS * D * 2;
	static constexpr uint32_t bytes = WGS * group_bytes + 2 * STAGES * tile_bytes + ATOM_ALIGN;
};

/* The position of a producer or consumer in a ring of N. */
template <int N> struct ring_place {
	uint32_t index, parity;

	__device__ __forceinline__ void next(void)
	{
		if (++index == N) {
			index = 0;
			parity ^= 1;
		}
	}
};

#define NEVER (-CUDART_INF_F)

/* Numbered barriers: one for each warpgroup's turn, one for its queries. */
#define TURN 1
#define QUERIES 4

/* ---- a warpgroup's rows ---- */

template <int D, int KEYS> struct tile_rows {
	float scores[KEYS / 8][4];
	uint32_t weights[KEYS / 16][4]; /* fragments, bf16 */
	float sums[D / 8][4];
	float highest[2], sum[2], keep[2]; /* sum: of this lane's columns only */
};

static __device__ __forceinline__ int warpgroup(void)
{
	return __shfl_sync(~0u, threadIdx.x / GROUP, 0);
}

/* Issue queries x keys. */
template <int D, int KEYS>
static __device__ __forceinline__ void tile_score(
	uint32_t queries, uint32_t keys, tile_rows<D, KEYS> &run)
{
	const uint64_t a = rows_at<D>(queries), b = rows_at<D>(keys);
	constexpr int steps = atom<D>::cols / 16; /* of an atom */

#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint32_t at = k / steps * atom<D>::bytes + k % steps * 32;

		product(run.scores, further(a, at), further(b, at), k > 0);
	}
	products_commit();
}

/* Issue weights x values; `add`: to what the sums are. */
template <int D, int KEYS>
static __device__ __forceinline__ void add_values(
	uint32_t values, int add, tile_rows<D, KEYS> &run)
{
	const uint64_t b = rows_at<D>(values);

#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		const uint64_t rows = further(b, k * 16 * D * 2);
		const int keep = k > 0 ? 1 : add;

		if constexpr (D == 64)
			product_across_8<0>(run.sums, run.weights[k], rows, keep);
		else if constexpr (D == 96)
			product_across_12<0>(run.sums, run.weights[k], rows, keep);
		else
			product_across_16<0>(run.sums, run.weights[k], rows, keep);
		if constexpr (D == 256)
			product_across_16<16>(run.sums, run.weights[k],
				further(rows, 2 * atom<D>::bytes), keep);
	}
	products_commit();
}

/* Scores become weights relative to the highest so far; the past is to be scaled by `keep`. */
template <int D, int KEYS>
static __device__ __forceinline__ void weigh(float scale_log2, tile_rows<D, KEYS> &run)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float highest = run.highest[half], base, sum[2] = {};

#pragma unroll
		for (int n = 0; n < KEYS / 8; n++)
			highest = fmaxf(highest, fmaxf(run.scores[n][half * 2],
							 run.scores[n][half * 2 + 1]));
		highest = quad_max(highest);
		base = highest == NEVER ? 0.0f : highest * scale_log2;
		run.keep[half] = power_2(fmaf(run.highest[half], scale_log2, -base));
		run.highest[half] = highest;
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float *x = &run.scores[n][half * 2 + j];

				*x = power_2(fmaf(*x, scale_log2, -base));
				sum[j] += *x;
			}
		run.sum[half] = fmaf(run.sum[half], run.keep[half], sum[0] + sum[1]);
	}
}

template <int D, int KEYS>
static __device__ __forceinline__ void weights_pack(tile_rows<D, KEYS> &run)
{
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			run.weights[k][j] = pack(run.scores[k * 2 + j / 2][j % 2 * 2],
				run.scores[k * 2 + j / 2][j % 2 * 2 + 1]);
}

template <int D, int KEYS>
static __device__ __forceinline__ void sums_scale(tile_rows<D, KEYS> &run)
{
#pragma unroll
	for (int n = 0; n < D / 8; n++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			run.sums[n][j] *= run.keep[j / 2];
}

/* A warpgroup's turn at the tensor cores comes after the one before it, round and round. */
template <int WGS> static __device__ __forceinline__ void turn_await(void)
{
	warps_sync(TURN + warpgroup(), 2 * GROUP);
}

template <int WGS> static __device__ __forceinline__ void turn_pass(void)
{
	int next = warpgroup() + 1;

	warps_arrive(TURN + (next == WGS ? 0 : next), 2 * GROUP);
}

static __device__ __forceinline__ void give_back(uint64_t *barrier)
{
	if (threadIdx.x % 32 == 0)
		barrier_arrive(shared_address(barrier));
}

#endif
