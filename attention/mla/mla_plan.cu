/* SPDX-License-Identifier: MIT */

/*
 * The planner: one block of as many threads as a plan has tokens at most; shared memory: 2 KB, where
 * each token's tiles start. It reads 12 bytes a token and writes 16, and 16 a slot. Once a step; all
 * layers read it. (FlashMLA's get_mla_metadata cuts the keys of a batch over its blocks in the same
 * way.)
 */

#include "attention/mla/mla_cuda.cuh"
#include "attention/scan.cuh"

enum { THREADS = MLA_CUDA_CHUNK, SLOT_TILES = 2 /* at least: what stage 1 takes at a time */ };

/* As token_find, but by a single thread. */
static __device__ mla_seen token_find_alone(const mla_args &a, int32_t token)
{
	int32_t low = 0, high = (int32_t)a.n_rows;

	if (high == 0 || token >= (int32_t)a.n_tokens)
		return {0, 0, 0};
	if (token < high && a.query_start[token] == token && a.query_start[token + 1] > token) {
		low = token;
		high = token + 1;
	}
	while (high - low > 1) {
		int32_t middle = (low + high) / 2;

		if (a.query_start[middle] <= token)
			low = middle;
		else
			high = middle;
	}
	return seen_of(a, low, a.query_start[low], a.query_start[low + 1], a.seq_lens[low], token);
}

/* Sum over this thread and those before it. */
static __device__ int32_t block_scan(int32_t x)
{
	__shared__ int32_t sums[THREADS / 32];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	for (int d = 1; d < 32; d *= 2) {
		int32_t other = __shfl_up_sync(~0u, x, d);

		if (lane >= d)
			x += other;
	}
	if (lane == 31)
		sums[warp] = x;
	__syncthreads();
	for (int w = 0; w < warp; w++)
		x += sums[w];
	return x;
}

/* The most that any thread has. */
static __device__ int32_t block_max(int32_t x)
{
	__shared__ int32_t most[THREADS / 32];

	x = __reduce_max_sync(~0u, x);
	if (threadIdx.x % 32 == 0)
		most[threadIdx.x / 32] = x;
	__syncthreads();
	for (int w = 0; w < THREADS / 32; w++)
		x = max(x, most[w]);
	return x;
}

/* A slot of equal parts of the line, or of whole tokens. */
static __device__ mla_slot slot_of(
	int32_t i, const int32_t *starts, int32_t n_tokens, int32_t per, bool whole)
{
	mla_slot slot = {};

	if (whole) {
		slot.token = i;
		slot.tile_begin = i < n_tokens ? starts[i] : 0;
		slot.tile_end = i < n_tokens ? starts[i + 1] : 0;
		return slot;
	}
	slot.tile_begin = (int32_t)min((int64_t)i * per, (int64_t)starts[THREADS]);
	slot.tile_end = min(slot.tile_begin + per, starts[THREADS]);
	slot.tiles_per_slot = per;
	if (slot.tile_begin < slot.tile_end)
		slot.token = last_begun(
			n_tokens, [&](int32_t t) { return starts[t] <= slot.tile_begin; });
	return slot;
}

static __global__ void __launch_bounds__(THREADS) plan_kernel(const __grid_constant__ mla_args a)
{
	__shared__ int32_t starts[THREADS + 1];
	int32_t t = threadIdx.x, n_tokens = a.n_tokens, n_slots = a.sizes.n_slots, end, per, most;
	mla_seen s;
	mla_token token;

	overlap_begin();
	if (n_tokens > THREADS)
		return; /* such steps go without */
	s = token_find_alone(a, t);
	token.row = s.row;
	token.n_keys = s.n_keys;
	token.n_tiles = tiles_of(s.n_keys);
	most = block_max(token.n_tiles);
	end = block_scan(token.n_tiles);
	token.tile_start = starts[t] = end - token.n_tiles;
	if (t < n_tokens)
		a.work.plan.tokens[t] = token;
	if (t == THREADS - 1)
		starts[THREADS] = end;
	__syncthreads();
	per = max((starts[THREADS] + n_slots - 1) / n_slots, SLOT_TILES);
	for (int32_t i = t; i < n_slots; i += THREADS)
		a.work.plan.slots[i] = slot_of(
			i, starts, n_tokens, per, n_tokens <= n_slots && most <= per + per / 16);
}

void mla_plan_launch(struct stream *stream, const mla_args *args)
{
	launch(stream, plan_kernel, dim3(1), dim3(THREADS), 0, *args);
}

const void *const mla_plan_kernel = (const void *)plan_kernel;
