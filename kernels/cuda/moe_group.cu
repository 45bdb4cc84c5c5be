/* SPDX-License-Identifier: MIT */

/*
 * A stable counting sort. Grid: one block, because a pair's place depends on the counts of all, and blocks of
 * a launch do not wait for one another; block: 1024 threads; shared memory: a counter for each warp and expert,
 * 40 KB at most. The warps take equal pieces of the pairs, in order. Each counts its own; the
 * counts become the places where a warp's pairs of an expert begin; then each warp goes through its
 * piece again, 32 pairs at a time: a pair's place is its warp's next one plus the number of lower
 * lanes with the same expert. The order is deterministic. Moves 12 bytes per pair.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 1024, EXPERTS_MAX = THREADS, COUNTERS_MAX = 10240, BATCH = 8 };

/* Of pair p, or n_experts: none. */
__device__ static inline uint32_t expert_of(const struct op_moe_group &a, uint32_t p, uint32_t end)
{
	const uint32_t e = p < end ? (uint32_t)a.experts[p] : a.n_experts;

	return e < a.n_experts ? e : a.n_experts;
}

__device__ static inline void count(
	const struct op_moe_group &a, uint32_t first, uint32_t end, uint32_t *counters)
{
	for (uint32_t p = first + threadIdx.x % WARP; p < end; p += BATCH * WARP) {
		uint32_t e[BATCH];

#pragma unroll
		for (int i = 0; i < BATCH; i++)
			e[i] = expert_of(a, p + i * WARP, end);
#pragma unroll
		for (int i = 0; i < BATCH; i++)
			if (e[i] < a.n_experts)
				atomicAdd(&counters[e[i]], 1);
	}
}

/* Turn each warp's counters into the number of the expert's pairs in earlier warps. Returns, in thread e, the
 * expert's total. */
__device__ static inline uint32_t add_warps(
	uint32_t n_experts, uint32_t n_warps, uint32_t *counters)
{
	uint32_t sum = 0;

	for (uint32_t w = 0; threadIdx.x < n_experts && w < n_warps; w++) {
		uint32_t *at = counters + w * n_experts + threadIdx.x;
		const uint32_t n = *at;

		*at = sum;
		sum += n;
	}
	return sum;
}

/* The sum of n over the threads before this one; *ret_all: over all. */
__device__ static inline uint32_t sum_before(uint32_t n, uint32_t *ret_all)
{
	__shared__ uint32_t sums[WARP];
	const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	uint32_t v = warp_prefix(n), of_warps;

	if (lane == WARP - 1)
		sums[warp] = v;
	__syncthreads();
	of_warps = warp_prefix(sums[lane]);
	*ret_all = __shfl_sync(~0u, of_warps, WARP - 1);
	return v - n + (warp ? __shfl_sync(~0u, of_warps, warp - 1) : 0);
}

/* `next`: where the warp's next pair of an expert goes. All lanes come along. */
__device__ static inline void place(
	const struct op_moe_group &a, uint32_t first, uint32_t end, uint32_t *next)
{
	const uint32_t lane = threadIdx.x % WARP;

	for (uint32_t p = first; p < end; p += BATCH * WARP) {
		uint32_t e[BATCH];

#pragma unroll
		for (int i = 0; i < BATCH; i++)
			e[i] = expert_of(a, p + i * WARP + lane, end);
#pragma unroll
		for (int i = 0; i < BATCH; i++) {
			const uint32_t same = __match_any_sync(~0u, e[i]);
			const uint32_t before = __popc(same & ((1u << lane) - 1));
			const bool some = e[i] < a.n_experts;
			const uint32_t at = some ? next[e[i]] : 0;

			__syncwarp();
			if (some && before == 0)
				next[e[i]] = at + __popc(same);
			if (some)
				a.pairs[at + before] = (int32_t)(p + i * WARP + lane);
			__syncwarp();
		}
	}
}

/* n_warps: that count; the others help with the rest. */
static __global__ void __launch_bounds__(THREADS)
	moe_group(const struct op_moe_group a, uint32_t n_warps)
{
	extern __shared__ uint32_t counters[]; /* [n_warps, n_experts] */
	const uint32_t n_pairs = a.n_tokens * a.n_active, warp = threadIdx.x / WARP;
	const uint32_t share = (n_pairs + n_warps - 1) / n_warps;
	const uint32_t piece = (share + WARP - 1) / WARP * WARP;
	const uint32_t first = min(warp * piece, n_pairs), end = min(first + piece, n_pairs);
	uint32_t *const mine = counters + warp * a.n_experts;
	uint32_t n, at, all;

	overlap_trigger();
	for (uint32_t i = threadIdx.x; i < n_warps * a.n_experts; i += THREADS)
		counters[i] = 0;
	__syncthreads();
	overlap_wait();
	if (warp < n_warps)
		count(a, first, end, mine);
	__syncthreads();
	n = add_warps(a.n_experts, n_warps, counters);
	at = sum_before(n, &all);
	if (threadIdx.x < a.n_experts)
		a.expert_start[threadIdx.x] = (int32_t)at;
	for (uint32_t w = 0; threadIdx.x < a.n_experts && w < n_warps; w++)
		counters[w * a.n_experts + threadIdx.x] += at;
	if (threadIdx.x == 0)
		a.expert_start[a.n_experts] = (int32_t)all;
	__syncthreads();
	if (warp < n_warps)
		place(a, first, end, mine);
	for (uint32_t p = all + threadIdx.x; p < n_pairs; p += THREADS)
		a.pairs[p] = -1;
}

static int moe_group_launch(struct stream *stream, const struct op_moe_group *a)
{
	const uint32_t most = COUNTERS_MAX / a->n_experts;
	uint32_t n_warps = blocks_for((uint64_t)a->n_tokens * a->n_active, WARP);

	if (a->n_experts > EXPERTS_MAX)
		return -ENOTSUP;
	n_warps = n_warps < most ? n_warps : most;
	n_warps = n_warps < THREADS / WARP ? n_warps : THREADS / WARP;
	launch(stream, moe_group, 1, THREADS, n_warps * a->n_experts * 4, *a, n_warps);
	return 0;
}

CUDA_OP(moe_group, moe_group)
