/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_GROUPED_CUH
#define MIMEO_KERNELS_CUDA_GROUPED_CUH

/*
 * For each expert's pairs y[p] = x[p / x_div] W_e^T: bf16 in, float32 sums, bf16 out. GATED: y =
 * silu(gate) * up; the first half of W_e's rows are the gates'. grouped_packed.cuh has packed weights.
 *
 * Only the device knows how many pairs an expert has. Every block reads where the experts' pairs begin,
 * divides each expert's pairs into the fewest equal parts of at most N, and counts tiles: a tile is a part by
 * up to 128 rows of W_e, and a block takes every gridDim.x-th tile. Grid and memory therefore do not depend
 * on the routing, and a launch without pairs reads the list and ends. The tiles of an expert are in the order
 * of W's rows, its parts side by side, so that W is read once from memory.
 *
 * Two warpgroups multiply: 64 rows of W each are the long side of their products, pairs the other,
 * in about as many columns as there are pairs. GATED rows come in groups of eight, gates and ups in
 * turn, by a box of five dimensions, so that the thread with a gate's sum has the up's as well.
 *
 * Four warps load a ring of stages of 64 columns (packed weights: 128): one thread loads W, by boxes of the copy
 * engine, and three warps the rows of x, which are scattered, by copies of 16 bytes per lane. Products see the
 * latter only after a fence: the copies arrive at a separate barrier (`landed`), and the thread that loads W
 * fences and signals the stage. Columns past a tile's pairs are not fetched; their sums are not stored.
 *
 * With few pairs it is bandwidth-bound by W, and where there would be fewer tiles than blocks,
 * tiles are 96, 64 or 32 rows high. Sums leave through shared memory, transposed, in lines of 64
 * columns.
 *
 * Grid: one block a multiprocessor; block: twelve warps; shared memory: the ring (its size is in
 * grouped.cu) and two buffers a warpgroup. Bytes: W of the chosen experts, once; x from the L2, once for
 * every 128 rows of W.
 *
 * Measured on an H200, 64 experts of 1408, 6 a token, hidden 2048, us of both products (TB/s of the
 * weights of the experts chosen; `bench-internals --shape V2-Lite experts`): 1 token 19.7 (3.5) and
 * 12.6 (2.7), 8 tokens 96 (4.15) and 52 (3.9), 32 170 (4.2) and 88 (4.1), 128 178 (4.2) and 92
 * (4.1), 1024 202 (3.8) and 120 (3.4); 4096 tokens 639 (444 TFLOP/s) and 355 (399). There the tensor cores
 * wait for x from the L2: without loading x the first product took 489 of 659 us, without any loads 397.
 * Tried without gain: prefetching W into the L2, and smaller rings so that the next launch's blocks start
 * early.
 */

#include "kernels/cuda/grouped_ptx.cuh"
#include "kernels/cuda/kernel.cuh"

enum {
	GROUPS = 2, /* warpgroups that multiply */
	WARPS = GROUPS * 4,
	FEEDERS = 96,            /* of rows of x */
	FEED_ROWS = FEEDERS / 8, /* at a time */
	THREADS = WARPS * 32 + 32 + FEEDERS,
	GROUP_ROWS = 64,
	TILE_ROWS = GROUPS * GROUP_ROWS,
	LOW_ROWS = TILE_ROWS / 4, /* a tile's height is a multiple of it */
	COLS = 64,                /* of a stage */
	ROW_BYTES = COLS * 2,
	STAGES_MAX = 24,
	EXPERTS_MAX = 1024,
	OUT_TOKENS = 32,                 /* that a warpgroup transposes at a time */
	OUT_PITCH = GROUP_ROWS * 2 + 16, /* bytes of each */
	OUT_BYTES = OUT_TOKENS * OUT_PITCH,
	OUT_BUFFERS = 2, /* of a warpgroup */
};

struct grouped_args {
	struct cuda_tensor_map w, w_low; /* by boxes of TILE_ROWS rows, and of LOW_ROWS */
	const bf16 *x;
	bf16 *y;
	const int32_t *expert_start, *pairs;
	uint32_t n_experts, x_div;
	uint32_t k, n; /* n: columns of y */
	bool low;      /* tiles may be lower than TILE_ROWS */
	uint32_t ring_bytes;
};

/*
 * W is a form of weights, plain_rows or packed_units (grouped_packed.cuh): n, the most pairs of a tile; gated; of
 * a stage the boxes of x and the bytes of a row of W, and in W's maps the columns from one stage to the next
 * and the rows of W that are one row; multiply, the sums of a tile.
 */

/* N: most pairs of a tile. */
template <int N> struct grouped_shape {
	static constexpr uint32_t x_bytes = N * ROW_BYTES; /* of 64 columns */
	static constexpr int rows = (N + FEED_ROWS - 1) / FEED_ROWS; /* of x, a feeder's */
	static constexpr int fragments = N < OUT_TOKENS ? N / 8 : OUT_TOKENS / 8;
	static constexpr int outs = N < OUT_TOKENS ? 1 : N / OUT_TOKENS;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where experts' pairs and tiles of pairs begin. */
struct grouped_lists {
	uint32_t starts[EXPERTS_MAX + 1], parts[EXPERTS_MAX + 1];
	uint32_t height; /* of tiles, in rows of W */
};

/* A block's share of the work. */
struct grouped_block {
	const grouped_lists *of;
	uint32_t ring, full, empty, landed, out;
	uint32_t stage_bytes, n_stages;
	uint32_t w_bytes; /* W's part of a stage; x's is behind it */
	uint32_t height;  /* of tiles, in rows of W */
	uint32_t n_high; /* tiles above each other */
	uint32_t n_tiles, n_chunks;
};

struct grouped_tile {
	uint32_t expert, first, n; /* the tile's pairs: first of the sorted ones, number */
	uint32_t above;            /* tiles of the same pairs before it */
};

/* ---- the list of tiles ---- */

template <int N>
__device__ static inline grouped_tile tile_of(
	const grouped_block &b, uint32_t n_experts, uint32_t t)
{
	const grouped_lists &l = *b.of;
	const uint32_t part = t / b.n_high;
	uint32_t e = 0, end = n_experts, local, n_parts, n, size;

	while (end - e > 1) {
		const uint32_t middle = (e + end) / 2;

		if (l.parts[middle] <= part)
			e = middle;
		else
			end = middle;
	}
	n_parts = l.parts[e + 1] - l.parts[e];
	local = t - l.parts[e] * b.n_high;
	n = l.starts[e + 1] - l.starts[e];
	size = ((n + n_parts - 1) / n_parts + 7) / 8 * 8;
	n -= local % n_parts * size;
	return {e, l.starts[e] + local % n_parts * size, min(n, size), local / n_parts};
}

/* Called by one warp: the smallest height with at most one tile per block; TILE_ROWS if there is none. */
__device__ static inline uint32_t height_for(uint32_t n_parts, uint32_t rows)
{
	const uint32_t lane = threadIdx.x % WARP, height = TILE_ROWS - lane % 4 * LOW_ROWS;
	const uint32_t n = n_parts * ((rows + height - 1) / height);
	const uint32_t fit = __ballot_sync(~0u, lane < 4 && n <= gridDim.x);

	return TILE_ROWS - (fit ? 31 - __clz(fit) : 0) * LOW_ROWS;
}

/* Called by one warp: list each expert's parts of up to N pairs. Returns the number of all parts. */
template <int N> __device__ static inline uint32_t list_parts(uint32_t n_experts, grouped_lists &l)
{
	const uint32_t lane = threadIdx.x % WARP, each = (n_experts + WARP - 1) / WARP;
	const uint32_t first = min(lane * each, n_experts), end = min(first + each, n_experts);
	uint32_t n = 0, all;

	for (uint32_t e = first; e < end; e++)
		n += (l.starts[e + 1] - l.starts[e] + N - 1) / N;
	all = warp_prefix(n);
	n = all - n;
	all = __shfl_sync(~0u, all, WARP - 1);
	for (uint32_t e = first; e < end; e++) {
		l.parts[e] = n;
		n += (l.starts[e + 1] - l.starts[e] + N - 1) / N;
	}
	if (lane == 0)
		l.parts[n_experts] = all;
	return all;
}

/* All threads. */
template <class W> __device__ static inline void list_tiles(const grouped_args &a, grouped_lists &l)
{
	for (uint32_t e = threadIdx.x; e <= a.n_experts; e += THREADS)
		l.starts[e] = (uint32_t)a.expert_start[e];
	__syncthreads();
	if (threadIdx.x < WARP) {
		const uint32_t n_parts = list_parts<W::n>(a.n_experts, l);

		l.height = a.low ? height_for(n_parts, W::gated ? 2 * a.n : a.n) : TILE_ROWS;
	}
	__syncthreads();
}

/* ---- the warps that fetch ---- */

/* `first`: row of W_e; gated: of both halves in turn. */
template <class W>
__device__ static inline void copy_w(const void *map, uint32_t to, uint32_t full, uint32_t chunk,
	uint32_t first, uint32_t expert)
{
	if (W::gated)
		copy_box_5(to, map, full, chunk * W::map_cols, first / 16, expert);
	else
		copy_box_3(to, map, full, chunk * W::map_cols, first / W::map_rows, expert);
}

template <class W>
__device__ static inline void fetch_w(const grouped_args &a, const grouped_block &b,
	const grouped_tile &t, uint32_t chunk, uint32_t index)
{
	const uint32_t to = b.ring + index * b.stage_bytes, full = b.full + index * 8;
	const uint32_t first = t.above * b.height;

	barrier_expect(full, b.height * W::row_bytes);
	if (b.height == TILE_ROWS)
		return copy_w<W>(&a.w, to, full, chunk, first, t.expert);
	for (uint32_t row = 0; row < b.height; row += LOW_ROWS)
		copy_w<W>(&a.w_low, to + row * W::row_bytes, full, chunk, first + row, t.expert);
}

/* A feeder's rows of a tile's x; it copies 8 columns of each. All are loaded together. */
template <int N>
__device__ static inline void find_rows(
	const grouped_args &a, const grouped_tile &t, uint32_t (&rows)[grouped_shape<N>::rows])
{
	const uint32_t first = (threadIdx.x - (THREADS - FEEDERS)) / 8;

#pragma unroll
	for (int i = 0; i < grouped_shape<N>::rows; i++)
		rows[i] = (uint32_t)a.pairs[t.first + min(first + i * FEED_ROWS, t.n - 1)];
#pragma unroll
	for (int i = 0; i < grouped_shape<N>::rows; i++)
		rows[i] = first + i * FEED_ROWS < t.n ? rows[i] / a.x_div : ~0u;
}

/* 64 columns of the rows, from `col` on, to `to`. */
template <int N>
__device__ static inline void copy_x(
	const grouped_args &a, uint32_t to, uint32_t col, const uint32_t (&rows)[grouped_shape<N>::rows])
{
	const uint32_t first = (threadIdx.x - (THREADS - FEEDERS)) / 8, pack = threadIdx.x % 8;

	col += pack * 8;
#pragma unroll
	for (int i = 0; i < grouped_shape<N>::rows; i++) {
		const uint32_t row = first + i * FEED_ROWS;

		if (rows[i] != ~0u)
			copy_16(to + row * ROW_BYTES + (pack ^ row % 8) * 16,
				a.x + (size_t)rows[i] * a.k + col, col < a.k);
	}
}

template <class W>
__device__ static inline void fetch_x(const grouped_args &a, const grouped_block &b, uint32_t chunk,
	uint32_t index, const uint32_t (&rows)[grouped_shape<W::n>::rows])
{
	const uint32_t to = b.ring + index * b.stage_bytes + b.w_bytes;

#pragma unroll
	for (uint32_t i = 0; i < W::boxes; i++)
		copy_x<W::n>(a, to + i * grouped_shape<W::n>::x_bytes, (chunk * W::boxes + i) * COLS, rows);
	barrier_arrive_behind_copies(b.landed + index * 8);
}

template <class W> __device__ static inline void feed_x(const grouped_args &a, const grouped_block &b)
{
	uint32_t rows[grouped_shape<W::n>::rows];
	ring_stage s = {};

	for (uint32_t i = blockIdx.x; i < b.n_tiles; i += gridDim.x) {
		const grouped_tile t = tile_of<W::n>(b, a.n_experts, i);

		find_rows<W::n>(a, t, rows);
		for (uint32_t chunk = 0; chunk < b.n_chunks; chunk++) {
			barrier_wait(b.empty + s.index * 8, s.parity ^ 1);
			fetch_x<W>(a, b, chunk, s.index, rows);
			s.next(b.n_stages);
		}
	}
}

/* A position in the block's sequence of boxes of W. */
struct grouped_cursor {
	uint32_t n, i, chunk; /* so many, then this chunk of this tile */
	grouped_tile t;
};

template <int N>
__device__ static inline void next(const grouped_args &a, const grouped_block &b, grouped_cursor &c)
{
	c.n++;
	if (++c.chunk < b.n_chunks)
		return;
	c.chunk = 0;
	c.i += gridDim.x;
	if (c.i < b.n_tiles)
		c.t = tile_of<N>(b, a.n_experts, c.i);
}

/* Called by one thread: loads W, and signals the stages whose x has arrived. It polls both, so that neither
 * delays the other. */
template <class W> __device__ static inline void feed_w(const grouped_args &a, const grouped_block &b)
{
	uint32_t n_passed = 0;
	ring_stage s = {}, oldest = {};
	grouped_cursor at = {0, blockIdx.x, 0, {}};

	if (at.i < b.n_tiles)
		at.t = tile_of<W::n>(b, a.n_experts, at.i);
	while (at.i < b.n_tiles || n_passed < at.n) {
		if (at.i < b.n_tiles && barrier_done(b.empty + s.index * 8, s.parity ^ 1)) {
			fetch_w<W>(a, b, at.t, at.chunk, s.index);
			s.next(b.n_stages);
			next<W::n>(a, b, at);
		}
		if (n_passed < at.n && barrier_done(b.landed + oldest.index * 8, oldest.parity)) {
			order_before_products();
			barrier_arrive(b.full + oldest.index * 8);
			oldest.next(b.n_stages);
			n_passed++;
		}
	}
}

/* ---- the warpgroups that multiply ---- */

/* This warp has read a stage. */
__device__ static inline void release(const grouped_block &b, uint32_t index)
{
	barrier_arrive_warp(b.empty + index * 8);
}

/* The sums of this warpgroup's rows of W over all columns; USED: columns of pairs, at least as many
 * as the tile has. */
template <int N, int USED>
__device__ static inline void multiply(const grouped_block &b, ring_stage &s, float (&sums)[N / 8][4])
{
	const uint32_t group = threadIdx.x / 128;
	uint32_t before = 0;

#pragma unroll
	for (int i = 0; i < N / 8; i++)
		sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
	for (uint32_t chunk = 0; chunk < b.n_chunks; chunk++) {
		const uint32_t at = b.ring + s.index * b.stage_bytes;
		const uint64_t w = rows_at(at + group * GROUP_ROWS * ROW_BYTES);
		const uint64_t x = rows_at(at + b.w_bytes);

		barrier_wait(b.full + s.index * 8, s.parity);
		settle(sums);
		products_fence();
#pragma unroll
		for (int i = 0; i < COLS / 16; i++)
			product(*(float(*)[USED / 8][4]) & sums, w + i * 2, x + i * 2);
		products_commit();
		if (chunk != 0) {
			products_wait<1>();
			release(b, before);
		}
		before = s.index;
		s.next(b.n_stages);
	}
	products_wait<0>();
	settle(sums);
	release(b, before);
}

/* Multiply as many of a tile's N columns as there are pairs. */
template <int N>
__device__ static inline void multiply_used(
	const grouped_block &b, const grouped_tile &t, ring_stage &s, float (&sums)[N / 8][4])
{
	if constexpr (N <= 64)
		return multiply<N, N>(b, s, sums);
	if constexpr (N == 128) {
		if (t.n <= 64)
			return multiply<N, 64>(b, s, sums);
		if (t.n <= 96)
			return multiply<N, 96>(b, s, sums);
		return multiply<N, 128>(b, s, sums);
	}
	if constexpr (N == 256) {
		if (t.n <= 128)
			return multiply<N, 128>(b, s, sums);
		if (t.n <= 160)
			return multiply<N, 160>(b, s, sums);
		if (t.n <= 192)
			return multiply<N, 192>(b, s, sums);
		if (t.n <= 224)
			return multiply<N, 224>(b, s, sums);
		return multiply<N, 256>(b, s, sums);
	}
}

/* Skip a tile without rows for this warpgroup. */
__device__ static inline void pass_by(const grouped_block &b, ring_stage &s)
{
	for (uint32_t chunk = 0; chunk < b.n_chunks; chunk++) {
		barrier_wait(b.full + s.index * 8, s.parity);
		__syncwarp();
		release(b, s.index);
		s.next(b.n_stages);
	}
}

__device__ static inline float gated(float gate, float up)
{
	return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* Barrier of this warpgroup. */
__device__ static inline void meet(void)
{
	asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}

/* Transposes up to OUT_TOKENS pairs' sums, from fragment `first` on: this warp's columns of
 * them. */
template <int N, bool GATED>
__device__ static inline void turn(const float (&sums)[N / 8][4], int first, uint32_t memory)
{
	const uint32_t lane = threadIdx.x % WARP, cols = GATED ? 8 : 16;
	const uint32_t mine = memory + lane % 8 * OUT_PITCH + threadIdx.x % 128 / WARP * cols * 2 +
			      lane / 8 % 2 * 16;

#pragma unroll
	for (int i = 0; i < grouped_shape<N>::fragments; i++) {
		const float(&v)[4] = sums[first + i];

		if (GATED)
			store_turned(mine + i * 8 * OUT_PITCH,
				pack_2(gated(v[0], v[2]), gated(v[1], v[3])));
		else
			store_turned(mine + i * 8 * OUT_PITCH, pack_2(v[0], v[1]), pack_2(v[2], v[3]));
	}
}

/* n transposed pairs into y, of which the warpgroup has n_cols from `col` on; `pair`: the
 * lane's. */
template <int N, bool GATED>
__device__ static inline void store_some(const grouped_args &a, uint32_t memory, int32_t pair,
	uint32_t n, uint32_t col, uint32_t n_cols)
{
	constexpr uint32_t PACKS = GROUP_ROWS / 8 / (GATED ? 2 : 1), AT_ONCE = 128 / PACKS;
	const uint32_t first = threadIdx.x % 128 / PACKS, at = threadIdx.x % PACKS * 8;

#pragma unroll
	for (uint32_t i = 0; i < grouped_shape<N>::fragments * 8; i += AT_ONCE) {
		const uint32_t token = first + i;
		const int32_t p = __shfl_sync(~0u, pair, token % WARP);

		if (token < n && at < n_cols && col + at < a.n)
			*(uint4 *)(a.y + (size_t)p * a.n + col + at) =
				load_16(memory + token * OUT_PITCH + at * 2);
	}
}

template <int N, bool GATED>
__device__ static inline void store_tile(const grouped_args &a, const grouped_block &b,
	const grouped_tile &t, const float (&sums)[N / 8][4],
	const int32_t (&pairs)[grouped_shape<N>::outs])
{
	constexpr uint32_t ROWS = GATED ? 2 : 1; /* of W, a column's */
	const uint32_t group = threadIdx.x / 128, row = group * GROUP_ROWS;

#pragma unroll
	for (int i = 0; i < grouped_shape<N>::outs; i++) {
		const uint32_t memory = b.out + (group * OUT_BUFFERS + i % OUT_BUFFERS) * OUT_BYTES;

		if (i * OUT_TOKENS >= t.n)
			break;
		if (i == 0)
			meet(); /* the previous tile has been stored */
		turn<N, GATED>(sums, i * (OUT_TOKENS / 8), memory);
		meet();
		store_some<N, GATED>(a, memory, pairs[i], t.n - i * OUT_TOKENS,
			(t.above * b.height + row) / ROWS, (b.height - row) / ROWS);
	}
}

template <class W> __device__ static inline void multiply_all(const grouped_args &a, const grouped_block &b)
{
	typedef grouped_shape<W::n> S;
	const uint32_t lane = threadIdx.x % WARP;
	const bool high = threadIdx.x / 128 * GROUP_ROWS < b.height;
	float sums[W::n / 8][4];
	int32_t pairs[S::outs];
	ring_stage s = {};

	for (uint32_t i = blockIdx.x; i < b.n_tiles; i += gridDim.x) {
		const grouped_tile t = tile_of<W::n>(b, a.n_experts, i);

		if (!high) {
			pass_by(b, s);
			continue;
		}
#pragma unroll
		for (int j = 0; j < S::outs; j++)
			pairs[j] = a.pairs[t.first + min(j * OUT_TOKENS + lane, t.n - 1)];
		W::multiply(b, t, s, sums);
		store_tile<W::n, W::gated>(a, b, t, sums, pairs);
	}
}

/* ---- all of it ---- */

/* Called by one thread: with one thread per stage a launch takes 1 us longer. */
__device__ static inline void barriers_init(uint32_t full, uint32_t empty, uint32_t landed)
{
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < STAGES_MAX; i++) {
			barrier_init(full + i * 8, 2);
			barrier_init(empty + i * 8, WARPS * WARP_ARRIVALS);
			barrier_init(landed + i * 8, FEEDERS);
		}
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
}

template <class W>
__device__ static inline grouped_block block_make(
	const grouped_args &a, const grouped_lists &l, uint32_t ring, uint32_t barriers)
{
	const uint32_t rows = W::gated ? 2 * a.n : a.n, n_parts = l.parts[a.n_experts];
	grouped_block b;

	b.of = &l;
	b.ring = ring;
	b.full = barriers;
	b.empty = barriers + STAGES_MAX * 8;
	b.landed = barriers + 2 * STAGES_MAX * 8;
	b.out = ring + a.ring_bytes;
	b.height = l.height;
	b.w_bytes = (b.height * W::row_bytes + 1023) / 1024 * 1024; /* where x may begin */
	b.stage_bytes = b.w_bytes + W::boxes * grouped_shape<W::n>::x_bytes;
	b.n_stages = min(a.ring_bytes / b.stage_bytes, (uint32_t)STAGES_MAX);
	b.n_high = (rows + b.height - 1) / b.height;
	b.n_tiles = n_parts * b.n_high;
	b.n_chunks = (a.k + W::boxes * COLS - 1) / (W::boxes * COLS);
	return b;
}

#endif

/* ---- plain weights ---- */

template <int N, bool GATED> struct plain_rows {
	static constexpr int n = N;
	static constexpr bool gated = GATED;
	static constexpr uint32_t boxes = 1, row_bytes = ROW_BYTES, map_cols = COLS, map_rows = 1;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	__device__ static inline void multiply(
		const grouped_block &b, const grouped_tile &t, ring_stage &s, float (&sums)[N / 8][4])
	{
		multiply_used<N>(b, t, s, sums);
	}
#endif
};

template <class W>
static __global__ void __launch_bounds__(THREADS, 1) grouped(const __grid_constant__ grouped_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ uint8_t memory[];
	__shared__ __align__(8) uint64_t barriers[3 * STAGES_MAX];
	__shared__ grouped_lists l;
	const uint32_t at = shared_address(memory), skip = (1024 - at % 1024) % 1024;

	overlap_trigger();
	barriers_init(shared_address(barriers), shared_address(barriers + STAGES_MAX),
		shared_address(barriers + 2 * STAGES_MAX));
	if (threadIdx.x == 0) {
		prefetch_map(&a.w);
		prefetch_map(&a.w_low);
	}
	overlap_wait();
	list_tiles<W>(a, l);
	const grouped_block b = block_make<W>(a, l, at + skip, shared_address(barriers));
	if (threadIdx.x / WARP < WARPS)
		multiply_all<W>(a, b);
	else if (threadIdx.x >= THREADS - FEEDERS)
		feed_x<W>(a, b);
	else if (threadIdx.x % WARP == 0)
		feed_w<W>(a, b);
#endif
}

#endif
