/* SPDX-License-Identifier: MIT */

/*
 * Grid: tokens / warps of a block, a warp a token; block: up to 4 warps, fewer where 4 would need
 * more than 48 KiB; shared memory: for each warp its token's scores, the scores to choose by, the
 * groups' scores and the experts chosen. Moves 4 bytes a logit. Each choice is the highest of what
 * is left: one pass over shared memory and five shuffles.
 *
 * Scores are those of the cpu device but for the last bit of exp, which is taken in double
 * precision and rounded, so that equal scores are equal here as well and the same ties arise.
 */

#include <float.h>

#include "kernels/cuda/kernel.cuh"

enum { WARPS_MAX = 4, EXPERTS_MAX = 1024 };

#define NO_EXPERT (~0u)

/* One token's, in shared memory. */
struct token_scores {
	float *scores;    /* [n_experts] */
	float *choice;    /* [n_experts] score to choose by; -inf: excluded */
	float *groups;    /* [n_groups]; +inf: kept */
	uint32_t *chosen; /* [n_active] */
};

/* Words of shared memory of a warp. */
__host__ __device__ static inline uint32_t token_scores_words(const struct op_moe_route &a)
{
	return 2 * a.n_experts + a.n_groups + a.n_active;
}

/* ---- the highest ---- */

/* An integer of at least 1 in the order of values; not for NaN. */
__device__ static inline uint32_t rank_of(float value)
{
	const uint32_t bits = __float_as_uint(value + 0.0f); /* one zero */

	return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The first of the highest among those that are not `out`. */
__device__ static inline uint32_t highest_of(const float *values, uint32_t n, float out)
{
	uint32_t best = 0, index = NO_EXPERT;

	for (uint32_t i = threadIdx.x % WARP; i < n; i += WARP) {
		const uint32_t rank = values[i] != out ? rank_of(values[i]) : 0;

		index = rank > best ? i : index;
		best = rank > best ? rank : best;
	}
	return __reduce_min_sync(~0u, best == __reduce_max_sync(~0u, best) ? index : NO_EXPERT);
}

/* ---- scores ---- */

/* exp rounded once to float32. */
__device__ static inline float exponential(float x)
{
	return (float)exp((double)x);
}

__device__ static inline void softmax(const float *logits, uint32_t n, float *scores)
{
	const uint32_t lane = threadIdx.x % WARP;
	float highest = -INFINITY;
	double sum = 0;

	for (uint32_t e = lane; e < n; e += WARP)
		highest = fmaxf(highest, logits[e]);
	for (int offset = WARP / 2; offset; offset /= 2)
		highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, offset));
	for (uint32_t e = lane; e < n; e += WARP) {
		scores[e] = exponential(logits[e] - highest);
		sum += (double)scores[e];
	}
	sum = warp_sum(sum);
	for (uint32_t e = lane; e < n; e += WARP)
		scores[e] = (float)((double)scores[e] / sum);
}

/* Compute the scores of each lane's experts; other lanes read them only after the next __syncwarp. */
__device__ static inline void route_score(
	const struct op_moe_route &a, const float *logits, const token_scores &ws)
{
	const uint32_t lane = threadIdx.x % WARP;

	if (a.score == MOE_SOFTMAX)
		softmax(logits, a.n_experts, ws.scores);
	for (uint32_t e = lane; e < a.n_experts; e += WARP) {
		float bias[1] = {0}, choice;

		if (a.score == MOE_SIGMOID)
			ws.scores[e] = 1.0f / (1.0f + exponential(-logits[e]));
		if (a.bias.data)
			load_weight<1>(bias, a.bias, e);
		choice = ws.scores[e] + bias[0];
		/* a finite number, which comparisons order and which does not mark an exclusion */
		ws.choice[e] = isfinite(choice) ? choice : -FLT_MAX;
	}
	__syncwarp();
}

/* ---- groups ---- */

__device__ static inline float group_score(
	const struct op_moe_route &a, const float *choice, uint32_t n)
{
	float first = choice[0], second = -INFINITY;

	for (uint32_t e = 1; e < n; e++) {
		second = fmaxf(second, fminf(first, choice[e]));
		first = fmaxf(first, choice[e]);
	}
	return a.group_top_two ? fminf(first + second, FLT_MAX) : first;
}

/* Exclude from `choice` the experts that are not in the n_groups_active highest groups. */
__device__ static inline void keep_groups(const struct op_moe_route &a, const token_scores &ws)
{
	const uint32_t lane = threadIdx.x % WARP, n = a.n_experts / a.n_groups;

	for (uint32_t g = lane; g < a.n_groups; g += WARP)
		ws.groups[g] = group_score(a, ws.choice + g * n, n);
	__syncwarp();
	for (uint32_t i = 0; i < a.n_groups_active; i++) {
		const uint32_t best = highest_of(ws.groups, a.n_groups, INFINITY);

		__syncwarp();
		if (lane == 0)
			ws.groups[best] = INFINITY;
		__syncwarp();
	}
	for (uint32_t e = lane; e < a.n_experts; e += WARP)
		if (ws.groups[e / n] != INFINITY)
			ws.choice[e] = -INFINITY;
	__syncwarp();
}

/* ---- a token ---- */

__device__ static inline void choose(
	const struct op_moe_route &a, const token_scores &ws, size_t first)
{
	const uint32_t lane = threadIdx.x % WARP;
	float sum = 0;

	for (uint32_t i = 0; i < a.n_active; i++) {
		const uint32_t best = highest_of(ws.choice, a.n_experts, -INFINITY);

		sum += ws.scores[best];
		__syncwarp();
		if (lane == 0) {
			ws.chosen[i] = best;
			ws.choice[best] = -INFINITY;
		}
		__syncwarp();
	}
	for (uint32_t i = lane; i < a.n_active; i += WARP) {
		const float weight = ws.scores[ws.chosen[i]];

		a.experts[first + i] = (int32_t)ws.chosen[i];
		a.weights[first + i] = (a.normalise ? weight / (sum + 1e-20f) : weight) * a.scale;
	}
}

static __global__ void moe_route(const struct op_moe_route a)
{
	extern __shared__ float memory[];
	const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	const uint32_t t = blockIdx.x * (blockDim.x / WARP) + warp;
	const size_t first = (size_t)t * a.n_active;
	token_scores ws;

	overlap_begin();
	if (t >= a.n_tokens)
		return;
	ws.scores = memory + warp * token_scores_words(a);
	ws.choice = ws.scores + a.n_experts;
	ws.groups = ws.choice + a.n_experts;
	ws.chosen = (uint32_t *)(ws.groups + a.n_groups);
	if (a.slot_mapping[t] < 0) {
		for (uint32_t i = lane; i < a.n_active; i += WARP) {
			a.experts[first + i] = -1;
			a.weights[first + i] = 0;
		}
		return;
	}
	route_score(a, a.logits + (size_t)t * a.n_experts, ws);
	if (a.n_groups_active < a.n_groups)
		keep_groups(a, ws);
	choose(a, ws, first);
}

/* ---- launcher ---- */

static int moe_route_launch(struct stream *stream, const struct op_moe_route *a)
{
	uint32_t warp_bytes, warps, blocks;

	if (a->n_experts > EXPERTS_MAX || a->n_tokens > INT32_MAX)
		return -ENOTSUP;
	warp_bytes = token_scores_words(*a) * 4;
	warps = 48 * 1024 / warp_bytes;
	warps = warps < WARPS_MAX ? warps : (uint32_t)WARPS_MAX;
	blocks = a->n_tokens ? (a->n_tokens + warps - 1) / warps : 1;
	launch(stream, moe_route, blocks, warps * WARP, warps * warp_bytes, *a);
	return 0;
}

CUDA_OP(moe_route, moe_route)
