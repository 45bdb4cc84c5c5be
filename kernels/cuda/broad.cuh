/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_BROAD_CUH
#define MIMEO_KERNELS_CUDA_BROAD_CUH

/*
 * y = x W^T (+ bias) for 33 rows and more: bf16 in, float32 sums, bf16 or float32 out. GATED: y =
 * silu(gate) * up; the first half of W's rows are the gates'.
 *
 * A tile is up to 128 rows of W by up to 256 rows of x, all if there are no more. Two warpgroups multiply; each has a piece of
 * `height` rows of W as the long side, 64, of its products (sums of rows past it are dropped); x,
 * padded with zeros to N rows, is the short side. Gated: of 16 rows of a piece 8 are gates and 8
 * their ups, so that a thread has both sums of a column. A ninth warp fetches a ring of stages, 64
 * columns of both operands, by boxes of the copy engine. The ring's part of W is requested before
 * the wait for the preceding kernel.
 *
 * A cluster is splits x sharers blocks. Sharers have different tiles and the same columns: each
 * fetches a part of x for all. Splits have the same tile and different columns: their sums meet in
 * shared memory, and block i ends rows 8 i, 8 (i + splits) ... of x (broad_end.cuh). Several tiles of x's rows are not
 * split.
 *
 * Grid: tiles x splits, or as many clusters as run at once, which take several tiles each; block:
 * nine warps; shared memory: the ring, and two slabs of y; small blocks of the next kernel, a norm's,
 * still fit. Bytes: W once from memory; x once for each tile of W, divided by sharers, from the L2, and W again for
 * each further tile of x.
 *
 * Measured on an H100, us, each behind another of its kind (cuBLASLt's best of 8, with its
 * silu_mul, in parentheses): 96 rows, 1B gate_up 26.0 (30.3), 1B down 16.9 (17.4), 8B gate_up 84.8
 * (91.4), 8B down 46.4 (48.8), but 1B qkv 9.0 (7.4) and o 8.0 (6.4); 128 rows, 1B gate_up 27.8
 * (31.0), 8B 86.6 (93.4); 256 rows, 34.3 (35.6) and 105 (110); 1024 and 2048 rows, 8B gate_up 319 (330) and 641 (653)
 * alone. Prompts keep the device at its limit of power, and its clocks low: with gate_up of this kernel a prompt of 8192
 * tokens takes 8B 214 ms (217 without sharers, cuBLASLt's 218), 1B 38.5 ms (40.1). Sharers gain 2 % at 192 and 256
 * rows. A split product of 128 rows spends 4 us outside its main loop, 0.4 in the exchange. Tried
 * and no faster: 256 rows of W a tile; two blocks of 112 KB a multiprocessor; a prefetch of the
 * next W into the L2 at the end; columns in an order of each block's own. Arrivals of the cluster's
 * scope at other blocks' barriers made sharers 1.4 times as slow: products and the copy engine do
 * not need that scope.
 */

#include "kernels/cuda/broad_ptx.cuh"
#include "kernels/cuda/tiles.cuh"

enum {
	PIECE = 64, /* rows of W on the long side of a product */
	ROW_BYTES = COLS * 2,
	ALIGN = 1024,
};

struct broad_args {
	struct cuda_tensor_map w, x;
	const void *bias; /* of y's type, or NULL */
	void *y;
	uint32_t n, k, n_rows; /* n: columns of y */
	uint32_t row_tiles;    /* of N rows of x */
	uint32_t height;       /* rows of W of a piece: a multiple of 8, gated 16; 64 at most */
	uint32_t n_stages, stage_bytes;
	uint32_t splits, sharers;
	bool f32;
	bool add;    /* to y, which is bf16 */
	bool packed; /* y can be written eight columns at a time */
};

/* A warpgroup's slab of bf16 y: [SLAB_FRAGS fragments of 8 rows of x][a piece's columns]. */
enum {
	SLAB_FRAGS = 4,
	SLAB_PITCH = PIECE + 8, /* in columns */
	SLAB_BYTES = SLAB_FRAGS * 8 * SLAB_PITCH * 2,
};

/* N: rows of x, padded. */
template <int N> struct broad_shape {
	static constexpr int frags = N / 8;
	/* the sums of a block, for splits */
	static constexpr uint32_t sum_bytes = frags * WARPS * WARP * 16;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* A block's share of the work. */
struct broad_block {
	uint32_t slab, ring, full, empty; /* slab: of the thread's warpgroup */
	uint32_t split, share;            /* its numbers in the cluster */
	uint32_t tile, n_tiles, step;     /* the cluster's first, all of a cluster, from one to the next */
	uint32_t chunk, chunk_end;    /* of COLS columns */
};

/* ---- the warp that fetches: lane 0 ---- */

/* A cluster's tile is a tile of W for each sharer by a tile of x's rows. Neighbours take the same rows of W, so that
 * these are read from memory once. */
__device__ static inline uint32_t w_tile(const broad_args &a, const broad_block &b, uint32_t tile)
{
	return tile / a.row_tiles * a.sharers + b.share;
}

template <int N> __device__ static inline uint32_t first_row(const broad_args &a, uint32_t tile)
{
	return tile % a.row_tiles * N;
}

/* The rows of W of a tile; rows past W are zeros. */
template <int N, bool GATED>
__device__ static inline void fetch_w(
	const broad_args &a, const broad_block &b, uint32_t tile, uint32_t chunk, uint32_t index)
{
	const uint32_t to = b.ring + index * a.stage_bytes, full = b.full + index * 8;
	const uint32_t rows = 2 * a.height;

	barrier_expect(full, a.stage_bytes + 2 * WITNESS_BYTES);
	if (GATED)
		copy_halves(to, &a.w, full, chunk * COLS, w_tile(a, b, tile) * rows / 16);
	else
		copy_box(to, &a.w, full, chunk * COLS, w_tile(a, b, tile) * rows);
}

template <int N>
__device__ static inline void fetch_x(
	const broad_args &a, const broad_block &b, uint32_t tile, uint32_t chunk, uint32_t index)
{
	const uint32_t full = b.full + index * 8, rows = N / a.sharers, part = b.share * rows;
	const uint32_t to = b.ring + index * a.stage_bytes + (2 * a.height + part) * ROW_BYTES;
	const uint32_t row = first_row<N>(a, tile) + part;

	if (a.sharers == 1)
		copy_box(to, &a.x, full, chunk * COLS, row);
	else
		copy_box_to_all(to, &a.x, full, chunk * COLS, row,
			(uint16_t)(((1u << a.sharers) - 1) << b.split * a.sharers));
}

/* Until sharers have read every stage: their arrivals must not come to a block that has exited.
 * `s` is the stage behind the last; those that were not used pass at once. */
__device__ static inline void drain(const broad_args &a, const broad_block &b, ring_stage s)
{
	for (uint32_t i = 0; a.sharers > 1 && i < a.n_stages; i++) {
		barrier_wait(b.empty + s.index * 8, s.parity ^ 1);
		s.next(a.n_stages);
	}
}

__device__ static inline void barriers_init(const broad_args &a, const broad_block &b)
{
	for (uint32_t i = 0; i < a.n_stages; i++) {
		barrier_init(b.full + i * 8, 1);
		barrier_init(b.empty + i * 8, WARPS * WARP_ARRIVALS * a.sharers);
	}
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* After this all threads, sharers' too, may use the barriers. */
__device__ static inline void barriers_meet(const broad_args &a)
{
	__syncthreads();
	if (a.sharers > 1)
		cluster_meet_only();
}

template <int N, bool GATED>
__device__ static inline void fetch(const broad_args &a, const broad_block &b)
{
	const bool fetches = threadIdx.x % WARP == 0;
	const auto w = [&](uint32_t tile, uint32_t chunk, uint32_t index) {
		fetch_w<N, GATED>(a, b, tile, chunk, index);
	};
	const auto x = [&](uint32_t tile, uint32_t chunk, uint32_t index) {
		fetch_x<N>(a, b, tile, chunk, index);
	};
	uint32_t n_ahead = 0;

	if (fetches) {
		prefetch_map(&a.w);
		barriers_init(a, b);
		n_ahead = fetch_ahead(a, b, w);
		prefetch_map(&a.x);
	}
	__syncwarp();
	barriers_meet(a);
	overlap_wait();
	if (fetches)
		drain(a, b, fetch_all(a, b, n_ahead, w, x));
	__syncwarp();
}

/* ---- the warpgroups that multiply ---- */

/* For racecheck: products read a stage's boxes from their start to their end. */
__device__ static inline void boxes_read(const broad_args &a, const broad_block &b, uint32_t index)
{
	const uint32_t at = b.ring + index * a.stage_bytes;

	box_read(at);
	box_read(at + 2 * a.height * ROW_BYTES);
}

/* This warp has read a stage: all who write to it are told. */
__device__ static inline void release(const broad_args &a, const broad_block &b, uint32_t index)
{
	const uint32_t empty = b.empty + index * 8, lane = threadIdx.x % WARP;

	if (a.sharers == 1)
		barrier_arrive_warp(empty);
	else if (lane < a.sharers)
		barrier_arrive_at(empty, b.split * a.sharers + lane);
}

/* The sums of this warpgroup's piece over the block's columns. */
template <int N>
__device__ static inline void multiply_tile(
	const broad_args &a, const broad_block &b, ring_stage &s, float (&sums)[N / 8][4])
{
	const uint32_t piece_bytes = a.height * ROW_BYTES;
	uint32_t before = 0;

#pragma unroll
	for (int i = 0; i < N / 8; i++)
		sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
	for (uint32_t chunk = b.chunk; chunk < b.chunk_end; chunk++) {
		const uint32_t at = b.ring + s.index * a.stage_bytes;
		const uint64_t w = rows_at(at + threadIdx.x / 128 * piece_bytes);
		const uint64_t x = rows_at(at + 2 * piece_bytes);

		barrier_wait(b.full + s.index * 8, s.parity);
		settle(sums);
		products_fence();
#pragma unroll
		for (int i = 0; i < COLS / 16; i++)
			product(sums, w + i * 2, x + i * 2);
		products_commit();
		boxes_read(a, b, s.index);
		if (chunk != b.chunk) {
			products_wait<1>();
			boxes_read(a, b, before);
			release(a, b, before);
		}
		before = s.index;
		s.next(a.n_stages);
	}
	products_wait<0>();
	settle(sums);
	if (b.chunk < b.chunk_end) {
		boxes_read(a, b, before);
		release(a, b, before);
	}
}

#endif

#endif
