/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_WIDE_CUH
#define MIMEO_KERNELS_CUDA_WIDE_CUH

/*
 * y = x W^T (+ bias) for 17 to 64 rows: bf16 in, float32 sums, bf16 or float32 out. GATED: y =
 * silu(gate) * up; the first half of W's rows are the gates'. wide_packed.cuh has the same of packed weights.
 *
 * A tile is up to 128 rows of W (gated: up to 64 gates and their ups) by all rows of x. Two
 * warpgroups multiply; each has `height` rows of W on the long side of its products, which is 64
 * (the other rows are not used); x, padded with zeros to N rows, is the short side. A ninth warp
 * fetches a ring of stages, 64 columns of both operands, by boxes of the copy engine. The ring's
 * part of W is requested before the wait for the preceding kernel.
 *
 * With few tiles the columns are split among the blocks of a cluster, whose sums meet in shared
 * memory: block i adds rows i, i + splits ... of x, in the order of the blocks. The height is
 * chosen so that the tiles are as many as clusters run at once, or slightly fewer (one wave).
 * Without a split a block takes every gridDim.x-th tile.
 *
 * Grid: tiles x splits; block: nine warps; shared memory: the ring, and sums [N][132]; small
 * blocks of the next kernel, a norm's, still fit. Bytes: W once from memory; x once a tile from the
 * L2, so broad.cu takes more rows.
 *
 * Measured on an H200, us (cuBLASLt's in parentheses): 32 rows, 1B o 5.0 (6.1), 8B o 12.0 (14.1),
 * 34 MB (1B down) 11.9 (14.5), 50 MB (8B qkv) 15.9 (16.6), 67 MB 18.9 (19.6 and its silu_mul), 117
 * MB 33.6 (32.9); 64 rows, 34 MB 13.4 (14.8). A step of 1B at 32 rows: 1.31 ms without this kernel,
 * 1.21 with it. Tried and slower: x for two blocks at once by multicast (67 MB: 33 us), 256 columns
 * a stage (1.28 ms); 128 a stage gain nothing at 32 rows and lose 3 % at 64.
 */

#include "kernels/cuda/tiles.cuh"

enum {
	GROUP_ROWS = 64,       /* of W, a warpgroup's */
	TILE_ROWS = 128,
	PITCH = TILE_ROWS + 4, /* of the sums, in floats */
};

struct wide_args {
	struct cuda_tensor_map w, x; /* w: of its units, if it is packed */
	const float *factors; /* [rows of W] of packed rows without groups, or NULL */
	const void *bias;     /* of y's type, or NULL */
	void *y;
	uint32_t n, k, n_rows; /* n: columns of y */
	uint32_t n_stages, splits;
	uint32_t height; /* of a warpgroup's part of a tile: a multiple of 8, 64 at most */
	bool f32;
	bool add;    /* to y, which is bf16 */
	bool packed; /* y can be written four columns at a time */
};

/* N: rows of x, padded. */
template <int N> struct wide_shape {
	static constexpr uint32_t row_bytes = COLS * 2;
	static constexpr uint32_t w_bytes = TILE_ROWS * row_bytes, x_bytes = N * row_bytes;
	static constexpr uint32_t stage_bytes = w_bytes + x_bytes; /* for a full height */
	static constexpr uint32_t sum_bytes = N * PITCH * 4;
	static constexpr uint32_t align = 1024;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A block's share of the work. */
struct wide_block {
	uint32_t ring, full, empty;
	uint32_t split;               /* its number in the cluster */
	uint32_t tile, n_tiles, step; /* the first, all, from one to the next */
	uint32_t chunk, chunk_end;    /* of a stage's columns */
};

/* ---- the warp that fetches: lane 0 ---- */

/* The rows of W of both warpgroups' parts of a tile; rows past W are zeros. */
template <int N, bool GATED>
__device__ static inline void fetch_w(
	const wide_args &a, const wide_block &b, uint32_t tile, uint32_t chunk, uint32_t index)
{
	typedef wide_shape<N> S;
	const uint32_t to = b.ring + index * S::stage_bytes, full = b.full + index * 8;
	const uint32_t first = tile * a.height * (GATED ? 1 : 2);

	barrier_expect(full, 2 * a.height * S::row_bytes + S::x_bytes + 3 * WITNESS_BYTES);
	copy_box(to, &a.w, full, chunk * COLS, first);
	copy_box(to + S::w_bytes / 2, &a.w, full, chunk * COLS, first + (GATED ? a.n : a.height));
}

template <int N>
__device__ static inline void fetch_x(
	const wide_args &a, const wide_block &b, uint32_t chunk, uint32_t index)
{
	typedef wide_shape<N> S;

	copy_box(b.ring + index * S::stage_bytes + S::w_bytes, &a.x, b.full + index * 8,
		chunk * COLS, 0);
}

template <int N, bool GATED>
__device__ static inline void fetch(const wide_args &a, const wide_block &b)
{
	const bool fetches = threadIdx.x % WARP == 0;
	const auto w = [&](uint32_t tile, uint32_t chunk, uint32_t index) {
		fetch_w<N, GATED>(a, b, tile, chunk, index);
	};
	const auto x = [&](uint32_t, uint32_t chunk, uint32_t index) { fetch_x<N>(a, b, chunk, index); };
	uint32_t n_ahead = 0;

	if (fetches) {
		n_ahead = fetch_ahead(a, b, w);
		prefetch_map(&a.x);
	}
	__syncwarp();
	overlap_wait();
	if (fetches)
		fetch_all(a, b, n_ahead, w, x);
	__syncwarp();
}

/* ---- the warpgroups that multiply ---- */

/* For racecheck: products read a stage's boxes from their start to their end. */
template <int N> __device__ static inline void boxes_read(const wide_block &b, uint32_t index)
{
	typedef wide_shape<N> S;
	const uint32_t at = b.ring + index * S::stage_bytes;

	box_read(at + threadIdx.x / 128 * GROUP_ROWS * S::row_bytes);
	box_read(at + S::w_bytes);
}

/* This warp has read a stage. */
__device__ static inline void release(const wide_block &b, uint32_t index)
{
	barrier_arrive_warp(b.empty + index * 8);
}

/* The sums of this warpgroup's rows of W over the block's columns. */
template <int N>
__device__ static inline void multiply_tile(
	const wide_args &a, const wide_block &b, ring_stage &s, float (&sums)[N / 8][4])
{
	typedef wide_shape<N> S;
	const uint32_t rows = threadIdx.x / 128 * GROUP_ROWS * S::row_bytes;
	uint32_t before = 0;

#pragma unroll
	for (int i = 0; i < N / 8; i++)
		sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
	for (uint32_t chunk = b.chunk; chunk < b.chunk_end; chunk++) {
		const uint32_t at = b.ring + s.index * S::stage_bytes;
		const uint64_t w = rows_at(at + rows), x = rows_at(at + S::w_bytes);

		barrier_wait(b.full + s.index * 8, s.parity);
		settle(sums);
		products_fence();
#pragma unroll
		for (int i = 0; i < COLS / 16; i++)
			product(sums, w + i * 2, x + i * 2);
		products_commit();
		boxes_read<N>(b, s.index);
		if (chunk != b.chunk) {
			products_wait<1>();
			boxes_read<N>(b, before);
			release(b, before);
		}
		before = s.index;
		s.next(a.n_stages);
	}
	products_wait<0>();
	settle(sums);
	if (b.chunk < b.chunk_end) {
		boxes_read<N>(b, before);
		release(b, before);
	}
}

/* sums[row of x][row of the tile] */
template <int N> __device__ static inline void leave_sums(float *to, const float (&sums)[N / 8][4])
{
	const uint32_t lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16 + lane / 4;

#pragma unroll
	for (int i = 0; i < N / 8; i++) {
		float *at = to + (i * 8 + lane % 4 * 2) * PITCH + row;

		at[0] = sums[i][0];
		at[PITCH] = sums[i][1];
		at[8] = sums[i][2];
		at[PITCH + 8] = sums[i][3];
	}
}

/* Add four adjacent sums of the tile over the blocks that split it, in the order of the blocks. */
__device__ static inline void sum_4(
	const wide_args &a, const float *sums, uint32_t at, float (&v)[4])
{
	float4 parts[SPLITS_MAX], sum = make_float4(0, 0, 0, 0);

	if (a.splits == 1) {
		*(float4 *)v = *(const float4 *)(sums + at);
		return;
	}
#pragma unroll
	for (uint32_t i = 0; i < SPLITS_MAX; i++)
		if (i < a.splits)
			parts[i] = load_of_block(of_block(shared_address(sums + at), i));
#pragma unroll
	for (uint32_t i = 0; i < SPLITS_MAX; i++)
		if (i < a.splits)
			sum = make_float4(sum.x + parts[i].x, sum.y + parts[i].y,
				sum.z + parts[i].z, sum.w + parts[i].w);
	*(float4 *)v = sum;
}

__device__ static inline void store_4(
	const wide_args &a, uint32_t row, uint32_t col, float (&v)[4])
{
	const size_t at = (size_t)row * a.n + col;

	if (a.add)
#pragma unroll
		for (uint32_t i = 0; i < 4; i++)
			v[i] += __bfloat162float(((const bf16 *)a.y)[at + (col + i < a.n ? i : 0)]);

	if (a.packed && a.f32)
		*(float4 *)((float *)a.y + at) = make_float4(v[0], v[1], v[2], v[3]);
	else if (a.packed)
		*(ushort4 *)((bf16 *)a.y + at) =
			make_ushort4(__bfloat16_as_ushort(__float2bfloat16_rn(v[0])),
				__bfloat16_as_ushort(__float2bfloat16_rn(v[1])),
				__bfloat16_as_ushort(__float2bfloat16_rn(v[2])),
				__bfloat16_as_ushort(__float2bfloat16_rn(v[3])));
	for (uint32_t i = 0; !a.packed && i < 4 && col + i < a.n; i++) {
		if (a.f32)
			((float *)a.y)[at + i] = v[i];
		else
			((bf16 *)a.y)[at + i] = __float2bfloat16_rn(v[i]);
	}
}

/* A sum of W's row `row` becomes a number of y, but for the gate. */
template <bool FACTORS>
__device__ static inline float finished(const wide_args &a, float sum, uint32_t row)
{
	return (FACTORS ? sum * a.factors[row] : sum) + bias_of(a, row);
}

/* Store this block's share of a tile's rows into y. */
template <bool GATED, bool FACTORS = false>
__device__ static inline void store_tile(
	const wide_args &a, const wide_block &b, const float *sums, uint32_t tile)
{
	const uint32_t cols = GATED ? a.height : 2 * a.height, packs = cols / 4;
	const uint32_t first = tile * cols;

	for (uint32_t i = threadIdx.x;; i += WARPS * WARP) {
		const uint32_t row = b.split + i / packs * a.splits, at = i % packs * 4;
		const uint32_t place = at < a.height ? at : at - a.height + GROUP_ROWS;
		float v[4], up[4];

		if (row >= a.n_rows)
			break;
		if (first + at >= a.n)
			continue;
		sum_4(a, sums, row * PITCH + place, v);
		if (GATED)
			sum_4(a, sums, row * PITCH + place + GROUP_ROWS, up);
#pragma unroll
		for (uint32_t j = 0; j < 4; j++) {
			const uint32_t col = min(first + at + j, a.n - 1);

			v[j] = finished<FACTORS>(a, v[j], col);
			if (GATED)
				v[j] = v[j] / (1.0f + __expf(-v[j])) *
				       finished<FACTORS>(a, up[j], a.n + col);
		}
		store_4(a, row, first + at, v);
	}
}

template <int N, bool GATED>
__device__ static inline void multiply_all(
	const wide_args &a, const wide_block &b, float *sum_memory)
{
	float sums[N / 8][4];
	ring_stage s = {};

	for (uint32_t tile = b.tile; tile < b.n_tiles; tile += b.step) {
		multiply_tile<N>(a, b, s, sums);
		meet(); /* the previous tile has been stored */
		leave_sums<N>(sum_memory, sums);
		if (a.splits > 1)
			return; /* there is no other */
		meet();
		store_tile<GATED>(a, b, sum_memory, tile);
	}
}

__device__ static inline wide_block block_make(
	const wide_args &a, uint32_t n_tiles, uint32_t n_chunks, uint32_t ring, const uint64_t *barriers)
{
	wide_block b;

	b.ring = ring;
	b.full = shared_address(barriers);
	b.empty = b.full + STAGES_MAX * 8;
	b.split = blockIdx.x % a.splits;
	b.tile = blockIdx.x / a.splits;
	b.n_tiles = n_tiles;
	b.step = gridDim.x / a.splits;
	b.chunk = n_chunks * b.split / a.splits;
	b.chunk_end = n_chunks * (b.split + 1) / a.splits;
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < a.n_stages; i++) {
			barrier_init(b.full + i * 8, 1);
			barrier_init(b.empty + i * 8, WARPS * WARP_ARRIVALS);
		}
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	__syncthreads();
	return b;
}

#endif

template <int N, bool GATED>
static __global__ void __launch_bounds__(THREADS, 1) wide(const __grid_constant__ wide_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	typedef wide_shape<N> S;
	extern __shared__ uint8_t memory[];
	__shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX];
	const uint32_t cols = GATED ? a.height : 2 * a.height;
	const uint32_t skip = (S::align - shared_address(memory) % S::align) % S::align;
	float *const sums = (float *)(memory + skip + a.n_stages * S::stage_bytes);

	overlap_trigger();
	const wide_block b = block_make(a, (a.n + cols - 1) / cols, (a.k + COLS - 1) / COLS,
		shared_address(memory) + skip, barriers);
	if (threadIdx.x / WARP == WARPS) {
		fetch<N, GATED>(a, b);
	} else {
		overlap_wait();
		multiply_all<N, GATED>(a, b, sums);
	}
	if (a.splits > 1) {
		cluster_meet();
		if (threadIdx.x / WARP != WARPS)
			store_tile<GATED>(a, b, sums, b.tile);
		cluster_meet_only(); /* other blocks may still read this memory */
	}
#endif
}

#endif
