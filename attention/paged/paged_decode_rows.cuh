/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_DECODE_ROWS_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_DECODE_ROWS_CUH

/*
 * Shared by the kernels for few queries, with any mask: a warp's ring of sub-tiles, its running softmax over
 * 16 packed query rows, and merging of sums. paged_decode.cu has the overview; attention under block masks
 * (attention/flex) uses this as well.
 */

#include "attention/paged/paged_codes.cuh"

#define WARPS 4
#define SUB_TILE 16 /* tokens of a warp */
#define NEVER (-CUDART_INF_F)

/* Shared memory of one warp. */
template <int D, int STAGES, bool CODES = false> struct warp_ring {
	static constexpr uint32_t half = SUB_TILE * cached_row<D, CODES>::pitch; /* keys; then values */
	static constexpr uint32_t bytes = STAGES * 2 * half;
};

/* A packed row's running softmax is spread over the four lanes of a quad, each lane has two. */
template <int D> struct row_sums {
	float acc[D / 8][4];
	float highest[2], sum[2]; /* of the raw scores; sum: this lane's columns only */
};

/* Queue the copies of one sub-tile from `token` on, which is in the page; what is not seen comes as
 * zeros. */
template <int D, bool CODES = false, typename Args, typename Seen>
static __device__ __forceinline__ void sub_tile_copy(const Args &a, uint32_t page_shift,
	int32_t kv_head, uint32_t stage, int32_t token, int32_t page, Seen seen)
{
	using cached = cached_row<D, CODES>;
	constexpr int chunks = cached::chunks;
	constexpr uint32_t pitch = cached::pitch;
	int lane = threadIdx.x % 32;
	size_t row = (size_t)a.n_kv_heads * D * cached::element, to_value = row << page_shift;
	const char *keys = (const char *)a.kv + ((size_t)page * 2) * to_value +
			   (token & ((1 << page_shift) - 1)) * row + (size_t)kv_head * D * cached::element;

#pragma unroll
	for (int k = 0; k < SUB_TILE * chunks / 32; k++) {
		int c = lane + 32 * k, r = c / chunks, col = c % chunks;
		const char *src = keys + r * row + col * 16;
		uint32_t dst = stage + r * pitch + col * 16;
		bool there = seen(token + r);

		copy_16(dst, src, there);
		copy_16(dst + SUB_TILE * pitch, src + to_value, there);
	}
}

/* Half of the A fragments of 16 packed query rows: the lane's row m, zeros if it is not valid; for codes float16 in
 * their order. Returns its token. */
template <int D, bool CODES = false, typename Args>
static __device__ __forceinline__ int query_half_load(const Args &a, int32_t query_first,
	int32_t kv_head, int m, bool valid, int half, uint32_t (&q)[D / 16][4])
{
	int group = a.n_heads / a.n_kv_heads;
	int token = valid ? m / group : 0;
	int head = kv_head * group + (valid ? m % group : 0);
	const bf16 *src = (const bf16 *)a.q + (size_t)(query_first + token) * a.q_stride +
			  (size_t)head * D + threadIdx.x % 32 % 4 * (CODES ? 4 : 2);

#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		if constexpr (CODES) {
			const uint2 four = valid ? *(const uint2 *)(src + k * 16) : make_uint2(0, 0);

			q[k][half] = f16_of_bf16(four.x);
			q[k][half + 2] = f16_of_bf16(four.y);
		} else {
			q[k][half] = valid ? *(const uint32_t *)(src + k * 16) : 0;
			q[k][half + 2] = valid ? *(const uint32_t *)(src + k * 16 + 8) : 0;
		}
	}
	return token;
}

/* scores[16 rows, 16 tokens] in two fragments. */
template <int D, bool CODES = false>
static __device__ __forceinline__ void rows_score(
	const uint32_t (&q)[D / 16][4], uint32_t keys, float (&scores)[2][4])
{
	int lane = threadIdx.x % 32;
	uint32_t address = CODES ? codes_address<D>(keys)
		: keys + ((lane & 7) + (lane >> 4) * 8) * ((D + 8) * 2) + (lane >> 3 & 1) * 16;
	float odd[2][4] = {};

#pragma unroll
	for (int k = 0; k < D / 16; k += 2) {
		uint32_t b[4], b2[4];

		if constexpr (CODES) {
			load_4(b, address + k * 16);
			add_keys(scores[0], q[k], b[0]);
			add_keys(scores[1], q[k], b[1]);
			add_keys(odd[0], q[k + 1], b[2]);
			add_keys(odd[1], q[k + 1], b[3]);
		} else {
			load_4(b, address + k * 32);
			load_4(b2, address + k * 32 + 32);
			mma(scores[0], q[k], b[0], b[1]);
			mma(scores[1], q[k], b[2], b[3]);
			mma(odd[0], q[k + 1], b2[0], b2[1]);
			mma(odd[1], q[k + 1], b2[2], b2[3]);
		}
	}
#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			scores[n][j] += odd[n][j];
}

/* Scores become weights relative to the highest so far; the past is scaled to it. */
template <int D>
static __device__ __forceinline__ void weigh(
	float (&scores)[2][4], float scale_log2, row_sums<D> &run)
{
	float keep[2];

#pragma unroll
	for (int half = 0; half < 2; half++) {
		float highest = fmaxf(fmaxf(scores[0][half * 2], scores[0][half * 2 + 1]),
			fmaxf(scores[1][half * 2], scores[1][half * 2 + 1]));
		float base;

		highest = fmaxf(run.highest[half], quad_max(highest));
		base = highest == NEVER ? 0.0f : highest * scale_log2;
		keep[half] = power_2(run.highest[half] * scale_log2 - base);
		run.highest[half] = highest;
		run.sum[half] *= keep[half];
#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (int j = half * 2; j < half * 2 + 2; j++) {
				scores[n][j] = power_2(scores[n][j] * scale_log2 - base);
				run.sum[half] += scores[n][j];
			}
	}
	if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
		for (int n = 0; n < D / 8; n++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				run.acc[n][j] *= keep[j >> 1];
	}
}

/* Weights x values of a sub-tile of codes: sums of even and of odd columns in turn. */
template <int D>
static __device__ __forceinline__ void add_coded_values(
	const float (&scores)[2][4], uint32_t values, row_sums<D> &run)
{
	const uint32_t address = codes_address<D>(values);
	const uint32_t weights[4] = {pack_f16(scores[0][0], scores[0][1]), pack_f16(scores[0][2], scores[0][3]),
		pack_f16(scores[1][0], scores[1][1]), pack_f16(scores[1][2], scores[1][3])};

#pragma unroll
	for (int n = 0; n < D / 8; n += 4) {
		uint32_t b[4];

		load_4_transposed(b, address + n * 8);
		add_columns(run.acc[n], run.acc[n + 1], weights, b[0], b[1]);
		add_columns(run.acc[n + 2], run.acc[n + 3], weights, b[2], b[3]);
	}
}

/* Weights x values of a sub-tile. */
template <int D>
static __device__ __forceinline__ void add_values(
	const float (&scores)[2][4], uint32_t values, row_sums<D> &run)
{
	constexpr uint32_t pitch = (D + 8) * 2;
	int lane = threadIdx.x % 32;
	uint32_t address = values + (lane & 15) * pitch + (lane >> 4) * 16;
	uint32_t weights[4];

	weights[0] = pack(scores[0][0], scores[0][1]);
	weights[1] = pack(scores[0][2], scores[0][3]);
	weights[2] = pack(scores[1][0], scores[1][1]);
	weights[3] = pack(scores[1][2], scores[1][3]);
#pragma unroll
	for (int n = 0; n < D / 8; n += 2) {
		uint32_t b[4];

		load_4_transposed(b, address + n * 16);
		mma(run.acc[n], weights, b[0], b[1]);
		mma(run.acc[n + 1], weights, b[2], b[3]);
	}
}

/* ---- merging ---- */

/* A warp's sums into its own shared memory, [16][D + 4] floats, the softmax into stats. */
template <int D, bool CODES = false>
static __device__ __forceinline__ void publish(row_sums<D> &run, float *sums, float2 *stats)
{
	int lane = threadIdx.x % 32;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		int m = lane / 4 + half * 8;
		float sum = quad_sum(run.sum[half]);

		if (lane % 4 == 0)
			stats[m] = make_float2(run.highest[half], sum);
		if constexpr (CODES) {
#pragma unroll
			for (int n = 0; n < D / 8; n += 2)
				*(float4 *)(sums + m * (D + 4) + n * 8 + lane % 4 * 4) =
					make_float4(run.acc[n][half * 2], run.acc[n + 1][half * 2],
						run.acc[n][half * 2 + 1], run.acc[n + 1][half * 2 + 1]);
		} else {
#pragma unroll
			for (int n = 0; n < D / 8; n++)
				*(float2 *)(sums + m * (D + 4) + n * 8 + lane % 4 * 2) = make_float2(
					run.acc[n][half * 2], run.acc[n][half * 2 + 1]);
		}
	}
}

static __device__ __forceinline__ float weight_of(float highest, float all, float scale_log2)
{
	return highest == NEVER ? 0.0f : power_2((highest - all) * scale_log2);
}

static __device__ __forceinline__ void add_scaled(float4 *to, float4 x, float factor)
{
	to->x += x.x * factor;
	to->y += x.y * factor;
	to->z += x.z * factor;
	to->w += x.w * factor;
}

/* Merge n_m rows of the four warps' sums (publish) in the block's `sums`; called by n_threads threads.
 * take(m, column, four columns' sums, highest score, sum of weights). */
template <int D, typename Take>
static __device__ __forceinline__ void merge_warps(const float *sums, uint32_t warp_floats,
	const float2 (*stats)[16], int32_t n_m, int thread, float scale_log2, Take take)
{
	for (int e = thread; e < n_m * (D / 4); e += WARPS * 32) {
		int m = e / (D / 4), col = e % (D / 4);
		float highest = NEVER, sum = 0.0f;
		float4 x = make_float4(0, 0, 0, 0);

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			highest = fmaxf(highest, stats[w][m].x);
#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			float factor = weight_of(stats[w][m].x, highest, scale_log2);
			const float *one = sums + w * warp_floats + m * (D + 4) + col * 4;

			sum += stats[w][m].y * factor;
			add_scaled(&x, *(const float4 *)one, factor);
		}
		take(m, col, x, highest, sum);
	}
}

/* Merge n_m rows of n pieces in their order, N of them per round trip; called by the same threads. at(k): the
 * place of piece k's rows; store(m, column, sums, sum of weights). */
template <int D, int N, typename At, typename Store>
static __device__ __forceinline__ void merge_pieces(const float *partials, const float *all_stats,
	int32_t n_m, int32_t n, int thread, float scale_log2, At at, Store store)
{
	for (int e = thread; e < n_m * (D / 4); e += WARPS * 32) {
		int m = e / (D / 4), col = e % (D / 4);
		float highest = NEVER, sum = 0.0f;
		float4 x = make_float4(0, 0, 0, 0);

		for (int32_t first = 0; first < n; first += N) {
			float before = highest, keep;
			float2 stats[N];
			float4 sums[N];

#pragma unroll
			for (int k = 0; k < N; k++) {
				size_t row = at(first + k) + m;
				bool there = first + k < n;

				stats[k] = there ? __ldcg((const float2 *)all_stats + row)
						 : make_float2(NEVER, 0.0f);
				sums[k] = there ? __ldcg((const float4 *)partials +
							 row * (D / 4) + col)
						: make_float4(0, 0, 0, 0);
			}
#pragma unroll
			for (int k = 0; k < N; k++)
				highest = fmaxf(highest, stats[k].x);
			keep = weight_of(before, highest, scale_log2);
			x = make_float4(x.x * keep, x.y * keep, x.z * keep, x.w * keep);
			sum *= keep;
#pragma unroll
			for (int k = 0; k < N; k++) {
				float factor = weight_of(stats[k].x, highest, scale_log2);

				sum += stats[k].y * factor;
				add_scaled(&x, sums[k], factor);
			}
		}
		store(m, col * 4, x, sum);
	}
}

/* Count one piece; what the block stored before the barrier comes before it, what it loads after
 * the next one comes after the others' counts. Wraps to 0 at the last, for the next launch. */
static __device__ __forceinline__ uint32_t count_piece(uint32_t *counter, uint32_t last)
{
	uint32_t before;

	asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
		: "=r"(before)
		: "l"(counter), "r"(last)
		: "memory");
	return before;
}

#endif
