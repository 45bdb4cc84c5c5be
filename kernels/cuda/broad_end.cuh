/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_BROAD_END_CUH
#define MIMEO_KERNELS_CUDA_BROAD_END_CUH

/*
 * The end of broad.cuh's tiles: from the warpgroups' sums to y.
 *
 * A fragment is 8 rows of x by a warpgroup's piece of W. Splits leave their sums in the ring, which
 * is then done, each thread's together; block s adds the fragments s, s + splits ... of all blocks,
 * in the order of the blocks, thread by thread. Sums in float32 are stored as they are: 8 columns,
 * 32 bytes, are together. Of bf16, a slab of fragments at a time is transposed through shared
 * memory and stored in rows.
 */

#include "kernels/cuda/broad.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Of one tile, what a thread needs to end its fragments. */
struct broad_tile {
	uint32_t row;  /* the first of x */
	uint32_t col;  /* the first column of y of this warpgroup's piece */
	float bias[2]; /* of the thread's two rows of W: gated, a gate's and its up's */
};

/* Columns of y of a piece. */
template <bool GATED> __device__ static inline uint32_t piece_cols(const broad_args &a)
{
	return GATED ? a.height / 2 : a.height;
}

template <int N, bool GATED>
__device__ static inline broad_tile tile_make(const broad_args &a, const broad_block &b, uint32_t tile)
{
	const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	broad_tile t;
	uint32_t row;

	t.row = first_row<N>(a, tile);
	t.col = (w_tile(a, b, tile) * 2 + warp / 4) * piece_cols<GATED>(a);
	row = t.col + warp % 4 * (GATED ? 8 : 16) + lane / 4;
	t.bias[0] = bias_of(a, min(row, a.n - 1));
	t.bias[1] = bias_of(a, GATED ? min(row, a.n - 1) + a.n : min(row + 8, a.n - 1));
	return t;
}

__device__ static inline float gated(float gate, float up)
{
	return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* ---- float32 ---- */

__device__ static inline void store_floats(
	const broad_args &a, const broad_tile &t, uint32_t fragment, const float (&v)[4])
{
	const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	const uint32_t row = t.row + fragment * 8 + lane % 4 * 2;

#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t at = warp % 4 * 16 + lane / 4 + i / 2 * 8, col = t.col + at;

		if (at < a.height && col < a.n && row + i % 2 < a.n_rows)
			((float *)a.y)[(size_t)(row + i % 2) * a.n + col] = v[i] + t.bias[i / 2];
	}
}

/* ---- bf16 ---- */

template <bool GATED>
__device__ static inline void fill_slab(
	const broad_block &b, const broad_tile &t, const float (&v)[SLAB_FRAGS][4])
{
	const uint32_t warp = threadIdx.x / WARP % 4, lane = threadIdx.x % WARP;
	const uint32_t col = GATED ? warp * 8 : warp * 16 + lane / 8 % 2 * 8;
	const uint32_t row = (GATED ? lane / 8 : lane / 16) * 8 + lane % 8;

#pragma unroll
	for (int f = 0; f < SLAB_FRAGS; f += GATED ? 4 : 2) {
		uint32_t words[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float(&c)[4] = v[f + (GATED ? i : i / 2)];
			const int at = i % 2 * 2;

			words[i] = GATED ? pack_2(gated(c[0] + t.bias[0], c[2] + t.bias[1]),
						   gated(c[1] + t.bias[0], c[3] + t.bias[1]))
					 : pack_2(c[at] + t.bias[i % 2], c[at + 1] + t.bias[i % 2]);
		}
		store_transposed(b.slab + ((f * 8 + row) * SLAB_PITCH + col) * 2, words);
	}
}

__device__ static inline void store_pack(const broad_args &a, uint32_t row, uint32_t col, uint4 raw)
{
	bf16 *y = (bf16 *)a.y + (size_t)row * a.n + col;

	if (a.packed) {
		float v[PACK], sums[PACK];

		if (a.add) {
			load<PACK>(v, y);
			unpack(sums, raw);
#pragma unroll
			for (uint32_t i = 0; i < PACK; i++)
				v[i] += sums[i];
			store<PACK>(y, v);
		} else {
			*(uint4 *)y = raw;
		}
		return;
	}
	for (uint32_t i = 0; i < PACK && col + i < a.n; i++) {
		const bf16 v = ((const bf16 *)&raw)[i];

		y[i] = a.add ? __float2bfloat16_rn(__bfloat162float(y[i]) + __bfloat162float(v)) : v;
	}
}

/* Fragment f of the slab is fragment first + f * step of the tile. */
template <bool GATED>
__device__ static inline void store_slab(
	const broad_args &a, const broad_block &b, const broad_tile &t, uint32_t first, uint32_t step)
{
	constexpr uint32_t packs = GATED ? 4 : 8;
	const uint32_t pack = threadIdx.x % packs, at = pack * PACK, col = t.col + at;

	if (at >= piece_cols<GATED>(a) || col >= a.n)
		return;
	for (uint32_t i = threadIdx.x % 128 / packs; i < SLAB_FRAGS * 8; i += 128 / packs) {
		const uint32_t row = t.row + (first + i / 8 * step) * 8 + i % 8;

		if (row < a.n_rows)
			store_pack(
				a, row, col, load_16(b.slab + (i * SLAB_PITCH + pack * PACK) * 2));
	}
}

/* ---- a slab of fragments ---- */

template <bool GATED>
__device__ static inline void end_slab(const broad_args &a, const broad_block &b,
	const broad_tile &t, uint32_t first, uint32_t step, const float (&v)[SLAB_FRAGS][4])
{
	if (!GATED && a.f32) {
#pragma unroll
		for (int f = 0; f < SLAB_FRAGS; f++)
			store_floats(a, t, first + f * step, v[f]);
		return;
	}
	meet_warpgroup(); /* the slab before has been stored */
	fill_slab<GATED>(b, t, v);
	meet_warpgroup();
	store_slab<GATED>(a, b, t, first, step);
}

/* Of a tile whose columns are not split. */
template <int N, bool GATED>
__device__ static inline void end_tile(const broad_args &a, const broad_block &b,
	const broad_tile &t, const float (&sums)[N / 8][4])
{
#pragma unroll
	for (int first = 0; first < N / 8; first += SLAB_FRAGS) {
		float v[SLAB_FRAGS][4];

		if (t.row + first * 8 >= a.n_rows)
			break;
#pragma unroll
		for (int f = 0; f < SLAB_FRAGS; f++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				v[f][i] = sums[first + f][i];
		end_slab<GATED>(a, b, t, first, 1, v);
	}
}

/* ---- splits ---- */

/* Does this warp have rows of W that become columns of y? Of a piece's 64 rows those past its height
 * are not used. A warp that has none must not load sums either: since it would not use them, their
 * block could exit before they are here. */
template <bool GATED>
__device__ static inline bool has_rows(const broad_args &a, const broad_tile &t)
{
	const uint32_t piece_warp = threadIdx.x / WARP % 4;

	return piece_warp * 16 < a.height && t.col + piece_warp * (GATED ? 8 : 16) < a.n;
}

/* Where a thread's four sums of a fragment are left. */
__device__ static inline uint32_t sums_at(const broad_block &b, uint32_t fragment)
{
	return b.ring + (fragment * WARPS * WARP + threadIdx.x) * 16;
}

template <int N, bool GATED>
__device__ static inline void leave_sums(const broad_args &a, const broad_block &b,
	const broad_tile &t, const float (&sums)[N / 8][4])
{
	const bool leaves = has_rows<GATED>(a, t);

	meet(); /* the ring has been read */
#pragma unroll
	for (uint32_t f = 0; f < N / 8; f++)
		if (f * 8 < a.n_rows && leaves)
			store_shared_4(sums_at(b, f), sums[f]);
}

/* Add the blocks' sums of a fragment, in the order of the blocks. */
__device__ static inline void add_blocks(
	const broad_args &a, uint32_t share, uint32_t at, float (&v)[4])
{
	float4 parts[SPLITS_MAX];

#pragma unroll
	for (uint32_t i = 0; i < SPLITS_MAX; i++)
		if (i < a.splits)
			parts[i] = load_of_block(of_block(at, i * a.sharers + share));
#pragma unroll
	for (uint32_t i = 0; i < SPLITS_MAX; i++)
		if (i < a.splits) {
			v[0] += parts[i].x;
			v[1] += parts[i].y;
			v[2] += parts[i].z;
			v[3] += parts[i].w;
		}
}

/* This block's fragments of a tile, once all blocks have left their sums. */
template <bool GATED>
__device__ static inline void end_splits(const broad_args &a, const broad_block &b, const broad_tile &t)
{
	const uint32_t n_frags = (a.n_rows + 7) / 8;
	const bool adds = has_rows<GATED>(a, t);

	for (uint32_t first = b.split; first < n_frags; first += SLAB_FRAGS * a.splits) {
		float v[SLAB_FRAGS][4] = {};

#pragma unroll
		for (int f = 0; f < SLAB_FRAGS; f++)
			if (first + f * a.splits < n_frags && adds)
				add_blocks(a, b.share, sums_at(b, first + f * a.splits), v[f]);
		end_slab<GATED>(a, b, t, first, a.splits, v);
	}
}

/* ---- the kernel ---- */

template <int N, bool GATED>
__device__ static inline void multiply_all(const broad_args &a, const broad_block &b)
{
	float sums[N / 8][4];
	ring_stage s = {};

	for (uint32_t tile = b.tile; tile < b.n_tiles; tile += b.step) {
		const broad_tile t = tile_make<N, GATED>(a, b, tile);

		multiply_tile<N>(a, b, s, sums);
		if (a.splits == 1) {
			end_tile<N, GATED>(a, b, t, sums);
			continue;
		}
		leave_sums<N, GATED>(a, b, t, sums);
		cluster_meet();
		end_splits<GATED>(a, b, t);
		return; /* there is no other */
	}
}

__device__ static inline broad_block block_make(
	const broad_args &a, uint32_t n_w_tiles, uint32_t slabs, const uint64_t *barriers)
{
	const uint32_t n_chunks = (a.k + COLS - 1) / COLS, cluster = a.splits * a.sharers;
	const uint32_t rank = blockIdx.x % cluster;
	broad_block b;

	b.slab = slabs + threadIdx.x / 128 % 2 * SLAB_BYTES;
	b.ring = (slabs + 2 * SLAB_BYTES + ALIGN - 1) / ALIGN * ALIGN;
	b.full = shared_address(barriers);
	b.empty = b.full + STAGES_MAX * 8;
	b.split = rank / a.sharers;
	b.share = rank % a.sharers;
	b.tile = blockIdx.x / cluster;
	b.n_tiles = (n_w_tiles + a.sharers - 1) / a.sharers * a.row_tiles;
	b.step = gridDim.x / cluster;
	b.chunk = n_chunks * b.split / a.splits;
	b.chunk_end = n_chunks * (b.split + 1) / a.splits;
	return b;
}

#endif

template <int N, bool GATED>
static __global__ void __launch_bounds__(THREADS, 1) broad(const __grid_constant__ broad_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ __align__(16) uint8_t memory[];
	__shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX];
	const uint32_t cols = 2 * piece_cols<GATED>(a);
	const broad_block b =
		block_make(a, (a.n + cols - 1) / cols, shared_address(memory), barriers);

	overlap_trigger();
	if (threadIdx.x / WARP == WARPS) {
		fetch<N, GATED>(a, b);
		if (a.splits > 1)
			cluster_meet();
	} else {
		barriers_meet(a);
		overlap_wait();
		multiply_all<N, GATED>(a, b);
	}
	if (a.splits * a.sharers > 1)
		cluster_meet_only(); /* other blocks may still use this memory */
#endif
}

#endif
