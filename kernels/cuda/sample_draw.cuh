/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SAMPLE_DRAW_CUH
#define MIMEO_KERNELS_CUDA_SAMPLE_DRAW_CUH

/*
 * A row to be sampled, the order of its tokens, and the noise: the same hash of (seed, position,
 * purpose, token), the same scores in double and the same ties as on the cpu device, whose sample.c
 * defines them. All maxima are of totally ordered keys, so that a result depends neither on the
 * grid nor on the order of threads.
 */

#include <float.h>

#include "kernels/cuda/kernel.cuh"

enum { SAMPLE_THREADS = 1024, SAMPLE_BATCH = 8 };

struct sample_row {
	const float *logits;
	uint32_t vocab;
	float top;     /* the greatest logit */
	int32_t first; /* the lowest id that has it */
	double temperature, least;
	float inverse; /* of the temperature */
	uint64_t key;
};

struct choice {
	double score;
	int32_t id;
	uint32_t reserved;
};

/* The slot of a row that is sampled, or -1. */
__device__ static inline int32_t sampled_slot(const struct step_inputs &in, uint32_t r)
{
	const int32_t slot = in.row_slot[r];

	if (slot < 0 || (uint32_t)slot >= in.max_slots)
		return -1;
	return (uint32_t)in.row_flags[r] & ROW_SAMPLE ? slot : -1;
}

/* A temperature that is no positive number. */
__device__ static inline bool is_greedy(const struct slot_sampling &s)
{
	return !(s.temperature > 0);
}

/* ---- the order ---- */

/* Unsigned integers in the order of finite floats; both zeroes are one. */
__device__ static inline uint32_t order_of(float logit)
{
	const uint32_t bits = __float_as_uint(logit + 0.0f);

	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

__device__ static inline float logit_of(uint32_t order)
{
	return __uint_as_float(order ^ (order >> 31 ? 0x80000000u : 0xffffffffu));
}

__device__ static inline uint64_t warp_max(uint64_t v)
{
	for (uint32_t offset = WARP / 2; offset; offset /= 2)
		v = max(v, (uint64_t)__shfl_xor_sync(~0u, v, offset));
	return v;
}

/*
 * Calls f(logit, id) for all logits of [begin, end), and with -infinity for some ids from `end` on; and
 * after(), by all threads of a warp together, after every SAMPLE_BATCH of a thread, which are
 * loaded at once.
 */
template <typename F, typename G>
__device__ static inline void for_every_logit(
	const float *logits, uint32_t begin, uint32_t end, F f, G after)
{
	const uint32_t step = SAMPLE_BATCH * SAMPLE_THREADS;
	uint32_t base = begin;

	for (; (uintptr_t)(logits + begin) % 16 == 0 && base + step <= end; base += step) {
		const uint32_t i = base + 4 * threadIdx.x, half = step / 2;
		const float4 v = *(const float4 *)(logits + i);
		const float4 w = *(const float4 *)(logits + i + half);

		f(v.x, i);
		f(v.y, i + 1);
		f(v.z, i + 2);
		f(v.w, i + 3);
		f(w.x, i + half);
		f(w.y, i + half + 1);
		f(w.z, i + half + 2);
		f(w.w, i + half + 3);
		after();
	}
	for (; base < end; base += step) {
		const uint32_t i = base + threadIdx.x;
		float v[SAMPLE_BATCH];

#pragma unroll
		for (uint32_t k = 0; k < SAMPLE_BATCH; k++)
			v[k] = i + k * SAMPLE_THREADS < end ? logits[i + k * SAMPLE_THREADS]
							    : -INFINITY;
#pragma unroll
		for (uint32_t k = 0; k < SAMPLE_BATCH; k++)
			f(v[k], i + k * SAMPLE_THREADS);
		after();
	}
}

/* The same for the finite logits that are not below `least`, itself finite. */
template <typename F, typename G>
__device__ static inline void for_each_logit(const float *logits, uint32_t begin, uint32_t end,
	float least, F f, G after)
{
	for_every_logit(
		logits, begin, end,
		[&](float logit, uint32_t id) {
			if (logit >= least && logit <= FLT_MAX)
				f(logit, id);
		},
		after);
}

/* NaN if one of them is. */
__device__ static inline float max_or_nan(float a, float b)
{
	float ret;

	asm("max.NaN.f32 %0, %1, %2;" : "=f"(ret) : "f"(a), "f"(b));
	return ret;
}

/* Above any other top: the maximum over parts of a row is this if it is one part's. */
static const uint64_t TOP_NOT_FINITE = UINT64_MAX;

/* The row's top from the greatest of all its parts; 0: the row is not finite (op_sample). */
__device__ static inline uint64_t row_top(uint64_t greatest)
{
	return greatest == TOP_NOT_FINITE ? 0 : greatest;
}

/* The greatest logit of [begin, end), of those the lowest id: order_of it, then the id inverted; 0: all
 * are -infinity; TOP_NOT_FINITE: one is NaN or +infinity. In warp 0; a barrier between two uses. */
__device__ static inline uint64_t block_top(const float *logits, uint32_t begin, uint32_t end)
{
	__shared__ uint64_t warps[SAMPLE_THREADS / WARP];
	float best = -INFINITY;
	uint32_t id = 0;
	uint64_t top;

	/* A NaN or +infinity stays the best to the end. */
	for_every_logit(
		logits, begin, end,
		[&](float logit, uint32_t i) {
			id = logit > best ? i : id;
			best = max_or_nan(best, logit);
		},
		[] {});
	top = TOP_NOT_FINITE;
	if (best <= FLT_MAX)
		top = best > -INFINITY ? (uint64_t)order_of(best) << 32 | (uint32_t)~id : 0;
	top = warp_max(top);
	if (threadIdx.x % WARP == 0)
		warps[threadIdx.x / WARP] = top;
	__syncthreads();
	return threadIdx.x < WARP ? warp_max(warps[threadIdx.x]) : 0;
}

/* ---- the noise ---- */

static const uint64_t NOISE_GAMMA = UINT64_C(0x9e3779b97f4a7c15);

__device__ static inline uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

__device__ static inline uint64_t noise_key(uint64_t seed, uint32_t position, uint32_t purpose)
{
	return mix(mix(seed + NOISE_GAMMA) + ((uint64_t)purpose << 32 | position));
}

/* `top`: as row_top has it, not 0. */
__device__ static inline struct sample_row sample_row_of(const float *logits, uint32_t vocab,
	uint64_t top, const struct slot_sampling &s, uint64_t key)
{
	struct sample_row row = {logits, vocab};

	row.top = logit_of((uint32_t)(top >> 32));
	row.first = (int32_t)~(uint32_t)top;
	row.temperature = isinf(s.temperature) ? 0x1p127 : (double)s.temperature;
	row.least = s.min_p > 0 ? log((double)s.min_p) : -INFINITY;
	row.inverse = (float)(1.0 / row.temperature);
	row.key = key;
	return row;
}

/* logit / temperature, less the top's; 0 for the top also where the inverse is infinite. */
__device__ static inline float scaled_logit(const struct sample_row &row, float logit)
{
	const float below = logit - row.top;

	return below == 0 ? 0 : below * row.inverse;
}

__device__ static inline double score_of(double scaled, uint64_t hash)
{
	return scaled - log(-log(((double)(hash >> 12) + 0.5) * 0x1p-52));
}

__device__ static inline bool beats(double score, int32_t id, const struct choice &than)
{
	return score > than.score || (score == than.score && id < than.id);
}

__device__ static inline uint64_t token_hash(const struct sample_row &row, int32_t id)
{
	return mix(row.key + NOISE_GAMMA * ((uint64_t)id + 1));
}

/* `bound`: the best score known to the thread, its own or another's, as a float. */
struct thread_draw {
	struct choice best;
	float bound;
};

/* Every thread begins with the top's first token, which is always kept. */
__device__ static inline struct thread_draw draw_begin(const struct sample_row &row)
{
	const double score = score_of(0, token_hash(row, row.first));

	return {{score, row.first, 0}, (float)score};
}

/*
 * A token has to have -log(u) <= exp(scaled - best), and as -log(u) >= 1 - u, the leading bits of 1
 * - u exclude most of those that have not. A thousandth of slack is for float32, and the few others
 * are scored in double precision.
 */
__device__ static inline void draw_consider(
	struct thread_draw &draw, const struct sample_row &row, float logit, int32_t id)
{
	const uint64_t hash = token_hash(row, id);
	const float rest = __uint_as_float(0x3f800000u | (uint32_t)(~hash >> 41)) - 1.0f;
	double scaled, score;

	if (rest > __expf(scaled_logit(row, logit) - draw.bound) * 1.001f)
		return;
	scaled = ((double)logit - (double)row.top) / row.temperature;
	if (!(scaled >= row.least))
		return;
	score = score_of(scaled, hash);
	if (!beats(score, id, draw.best))
		return;
	draw.best = {score, id, 0};
	draw.bound = fmaxf(draw.bound, (float)score);
}

/* Use the best bound of the warp. */
__device__ static inline void draw_share(struct thread_draw &draw)
{
	draw.bound = logit_of(__reduce_max_sync(~0u, order_of(draw.bound)));
}

__device__ static inline struct choice warp_best(struct choice best)
{
	for (uint32_t offset = WARP / 2; offset; offset /= 2) {
		const double score = __shfl_xor_sync(~0u, best.score, offset);
		const int32_t id = __shfl_xor_sync(~0u, best.id, offset);

		if (beats(score, id, best))
			best = {score, id, 0};
	}
	return best;
}

/* In warp 0. */
__device__ static inline struct choice block_best(struct choice best)
{
	__shared__ struct choice warps[SAMPLE_THREADS / WARP];

	best = warp_best(best);
	if (threadIdx.x % WARP == 0)
		warps[threadIdx.x / WARP] = best;
	__syncthreads();
	return warp_best(warps[threadIdx.x % WARP]);
}

#endif
