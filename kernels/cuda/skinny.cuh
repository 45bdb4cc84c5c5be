/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_SKINNY_CUH
#define MIMEO_KERNELS_CUDA_SKINNY_CUH

/*
 * y = x W^T (+ bias) for up to 32 rows: bf16 in, float32 sums, bf16 or float32 out. GATED: y =
 * silu(gate) * up; the first half of W's rows are the gates', and a tile is half gate and half up
 * rows. W is bf16 (plain_rows), or packed (skinny_packed.cuh).
 *
 * Grid: one block a multiprocessor, or one a tile if there are fewer; a block takes every
 * gridDim-th tile of R rows of W. Block: eight warps that multiply, one that fetches, three that finish
 * tiles. Shared memory: x, a ring of stages, and sums; how much, skinny.cu says. A stage is KC columns of a
 * tile's rows, one bulk copy a row, of 2 KB or more, because a multiprocessor starts one copy in about 50
 * ns (copies of 1 KB: 2.4 TB/s, of 2 KB: 4.4). Where x does not fit (a product of up to 16 rows, plain and
 * gated excepted), its columns come with each stage. The ring's part of W is requested before the
 * wait for the preceding kernel, so that it arrives while that kernel ends.
 *
 * The warps divide a stage's columns in steps of 64 and multiply on the tensor cores, with x as the
 * 16-row operand and W as the 8-column one. At a tile's end they leave their sums in shared memory and go
 * on; one of the finishing warps, which take turns, adds them in the order of the warps, so that the bits
 * depend on the variant alone, and stores the tile. That takes about as long as 64 KB of W take to arrive.
 * A block's last tile, with which the kernel ends, is stored by all warps that multiply.
 *
 * If the kernel has the norm of x to do as well (norm_gemm), each block does it for itself, while its ring fills: a
 * launch less on the way, for as little as a row of x costs a block.
 *
 * Bytes: W once from memory; x once a block from the L2, or once a tile where it does not stay.
 *
 * Measured on an H200, us (cuBLASLt's in parentheses):
 *
 *	rows  model  qkv          o           gate_up      down         head
 *	1     1B     5.4 (6.5)    3.6 (6.1)   17.9 (19.2)  10.2 (14.0)  119.4 (125), 4.40 TB/s
 *	8     1B     5.1 (6.5)    3.8 (6.1)   18.2 (19.3)  10.7 (13.2)  125 (129)
 *	1     8B     13.7 (16.9)  9.7 (13.6)  55.0 (57.6)  28.8 (31.9)  235 (243), 4.48 TB/s
 *	8     8B                                                        247 (244)
 *
 * That was with the warps that multiply storing each tile together. On an H100, us, 1B: qkv at 8 rows 4.8 so, 6.2 with
 * finishing warps, 5.8 if the last tile is not theirs; o at 16 rows 4.4, 5.3, 4.4.
 *
 * Tried and slower (ms of a decode step of 1B at one row without prepare and plan, 0.81 as it is): fetching the next
 * product's weights into the L2, 0.83 to 0.90; products of two launches on one multiprocessor,
 * 1.00.
 */

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/skinny_ptx.cuh"

enum { WARPS = 8, PRODUCER = WARPS, FINISHERS = 3, THREADS = (WARPS + 1 + FINISHERS) * 32, STEP = 64, STAGES_MAX = 32 };
enum { NORM_ROWS = 8, NORM_PACKS = 2 }; /* of x that a block can norm: rows; packs of columns a thread */

struct skinny_args {
	const void *w;
	const bf16 *x;
	const float *factors; /* [rows of W] of packed rows without groups, or NULL */
	const void *bias;     /* of y's type, or NULL */
	void *y;
	uint32_t n, k, n_rows;
	uint32_t n_stages;
	uint32_t x_bytes; /* of shared memory for all of x; 0: it comes with the stages */
	const bf16 *norm; /* [k], or NULL: x is what is multiplied */
	float eps;
	bool f32;
	bool add; /* to y, which is bf16 */
};

/* M: rows of x, 8, 16 or 32; R: rows of W; KC: columns. */
template <int M, int R, int KC> struct skinny_shape {
	static constexpr uint32_t n_sums = M * R;
	/* The finishing warps have a buffer each, or share one. */
	static constexpr uint32_t n_buffers = n_sums <= 256 ? FINISHERS : 1, n_sharing = FINISHERS / n_buffers;
	static constexpr uint32_t sum_bytes = n_buffers * WARPS * n_sums * 4;
	static_assert(KC % (STEP * WARPS) == 0, "the warps share a stage out evenly");
};

/* A block's shared memory and its share of the work. */
struct skinny_block {
	uint32_t ring, stage_bytes;
	uint32_t x;       /* all of x, or 0 */
	uint32_t x_pitch; /* of its rows, or of those in a stage */
	uint32_t full, empty, x_full;
	uint32_t sums_full, sums_empty; /* of buffers of sums */
	uint32_t n_chunks, n_iterations;
};

/* Where iteration `it` of this block is: its tile and its columns. */
struct skinny_place {
	uint32_t tile, chunk;
};

#if __CUDA_ARCH__ >= 900

__device__ static inline skinny_place place_of(const skinny_block &b, uint32_t it)
{
	return {blockIdx.x + it / b.n_chunks * gridDim.x, it % b.n_chunks};
}

/* ---- the warp that fetches ---- */

template <int KC>
__device__ static inline uint32_t chunk_bytes(const skinny_args &a, skinny_place p)
{
	return min((uint32_t)KC, a.k - p.chunk * KC) * 2;
}

/* Load the stage's columns of x, if x is not kept in shared memory. */
template <class W>
__device__ static inline void fetch_x(
	const skinny_args &a, const skinny_block &b, skinny_place p, uint32_t s, uint32_t lane)
{
	if (lane < a.n_rows)
		bulk_copy(b.ring + s * b.stage_bytes + W::w_bytes + lane * b.x_pitch,
			a.x + (size_t)lane * a.k + p.chunk * W::kc, chunk_bytes<W::kc>(a, p),
			b.full + s * 8);
}

template <class W> __device__ static inline void fetch_all_x(const skinny_args &a, const skinny_block &b)
{
	barrier_expect(b.x_full, a.k * 2 * a.n_rows);
	if constexpr (W::x_pad == 0) /* contiguous, in memory and in shared memory */
		bulk_copy(b.x, a.x, a.k * 2 * a.n_rows, b.x_full);
	else
		for (uint32_t row = 0; row < a.n_rows; row++)
			bulk_copy(b.x + row * b.x_pitch, a.x + (size_t)row * a.k, a.k * 2, b.x_full);
}

template <class W> __device__ static inline void fetch(const skinny_args &a, const skinny_block &b)
{
	const uint32_t lane = threadIdx.x % WARP, first = min(b.n_iterations, a.n_stages);
	uint32_t s = 0, parity = 0;

	for (uint32_t it = 0; it < first; it++)
		W::fetch(a, b, place_of(b, it), it, lane);
	overlap_wait();
	for (uint32_t it = 0; !b.x && it < first; it++)
		fetch_x<W>(a, b, place_of(b, it), it, lane);
	for (uint32_t it = first; it < b.n_iterations; it++) {
		barrier_wait(b.empty + s * 8, parity);
		W::fetch(a, b, place_of(b, it), s, lane);
		if (!b.x)
			fetch_x<W>(a, b, place_of(b, it), s, lane);
		if (++s == a.n_stages) {
			s = 0;
			parity ^= 1;
		}
	}
}

/* ---- the warps that multiply ---- */

/*
 * 64 columns of a row: of each half a lane has 8, in the order of the lanes of its quad. Lanes of
 * odd rows read the halves in the other order, so that eight lanes, which are two rows, use each
 * bank once although rows are multiples of 128 bytes apart.
 */
struct pack64 {
	uint4 first, second;
};

__device__ static inline pack64 load_64(uint32_t row, uint32_t offset, bool odd)
{
	const uint4 u = load_16(row + (offset ^ (odd ? 64 : 0)));
	const uint4 v = load_16(row + (offset ^ (odd ? 0 : 64)));
	pack64 p;

	p.first.x = odd ? v.x : u.x;
	p.first.y = odd ? v.y : u.y;
	p.first.z = odd ? v.z : u.z;
	p.first.w = odd ? v.w : u.w;
	p.second.x = odd ? u.x : v.x;
	p.second.y = odd ? u.y : v.y;
	p.second.z = odd ? u.z : v.z;
	p.second.w = odd ? u.w : v.w;
	return p;
}

/* Over 32 columns, in any order that x and W share. */
template <int N>
__device__ static inline void multiply_32(
	float (&sums)[N][4], const uint4 &lower, const uint4 &upper, const uint4 (&w)[N])
{
#pragma unroll
	for (int n = 0; n < N; n++)
		mma(sums[n], lower.x, upper.x, lower.y, upper.y, w[n].x, w[n].y);
#pragma unroll
	for (int n = 0; n < N; n++)
		mma(sums[n], lower.z, upper.z, lower.w, upper.w, w[n].z, w[n].w);
}

#endif

/*
 * W's rows as they are: what a stage has of them, how it is fetched, and the products of one warp's columns;
 * rows past the last of x are read as the last.
 */
template <int M, int R, int KC, bool GATED> struct plain_rows {
	static constexpr int m = M, r = R, kc = KC;
	static constexpr bool gated = GATED;
	static constexpr uint32_t pitch = KC * 2, w_bytes = R * pitch, x_pad = 0;

	__device__ static inline void fetch(
		const skinny_args &a, const skinny_block &b, skinny_place p, uint32_t s, uint32_t lane)
	{
#if __CUDA_ARCH__ >= 900
		constexpr int GROUP = GATED ? R / 2 : R; /* rows that lie together */
		const uint32_t bytes = chunk_bytes<KC>(a, p), full = b.full + s * 8;
		const uint32_t row = min(p.tile * GROUP + lane % GROUP, a.n - 1) +
				     (lane < GROUP ? 0 : a.n);
		const bool whole = KC == a.k && p.tile * GROUP + GROUP <= a.n;
		/* whole rows are contiguous */
		const uint32_t n_rows = whole ? GROUP : 1;

		if (lane == 0)
			barrier_expect(full, bytes * (R + (b.x ? 0 : a.n_rows)));
		__syncwarp();
		if (lane < R && lane % n_rows == 0)
			bulk_copy(b.ring + s * b.stage_bytes + lane * pitch,
				(const bf16 *)a.w + (size_t)row * a.k + p.chunk * KC, bytes * n_rows,
				full);
#endif
	}

	__device__ static inline void multiply(float (&sums)[(M + 15) / 16][R / 8][4],
		const skinny_args &a, uint32_t w, uint32_t x, uint32_t x_pitch, uint32_t n_cols)
	{
#if __CUDA_ARCH__ >= 900
		const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = lane / 4;
		const bool odd = row % 2;

#pragma unroll
		for (int i = 0; i < KC / STEP / WARPS; i++) {
			const uint32_t col = (i * WARPS + warp) * STEP * 2 + lane % 4 * 16;
			uint4 first[R / 8], second[R / 8];

			if ((i * WARPS + warp) * STEP >= n_cols)
				break;
#pragma unroll
			for (int n = 0; n < R / 8; n++) {
				const pack64 p = load_64(w + (n * 8 + row) * pitch, col, odd);

				first[n] = p.first;
				second[n] = p.second;
			}
#pragma unroll
			for (int m = 0; m < (M + 15) / 16; m++) {
				const pack64 lower = load_64(
					x + min(m * 16 + row, a.n_rows - 1) * x_pitch, col, odd);
				pack64 upper = {};

				if (M > 8)
					upper = load_64(x + min(m * 16 + 8 + row, a.n_rows - 1) *
								x_pitch,
						col, odd);
				multiply_32<R / 8>(sums[m], lower.first, upper.first, first);
				multiply_32<R / 8>(sums[m], lower.second, upper.second, second);
			}
		}
#endif
	}
};

#if __CUDA_ARCH__ >= 900

template <int M, int R>
__device__ static inline void leave_sums(float *to, const float (&sums)[(M + 15) / 16][R / 8][4])
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int m = 0; m < (M + 15) / 16; m++)
#pragma unroll
		for (int n = 0; n < R / 8; n++) {
			float *at = to + (m * 16 + lane / 4) * R + n * 8 + lane % 4 * 2;

			*(float2 *)at = make_float2(sums[m][n][0], sums[m][n][1]);
			if (M > 8)
				*(float2 *)(at + 8 * R) =
					make_float2(sums[m][n][2], sums[m][n][3]);
		}
}

/* Sum one element of the tile over the warps; then W's row's factor and bias. */
template <int M, int R>
__device__ static inline float sum_of(
	const skinny_args &a, const float *sums, uint32_t element, uint32_t row)
{
	float sum = 0;

#pragma unroll
	for (int w = 0; w < WARPS; w++)
		sum += sums[w * M * R + element];
	if (a.factors)
		sum *= a.factors[row];
	if (a.bias)
		sum += a.f32 ? ((const float *)a.bias)[row]
			     : __bfloat162float(((const bf16 *)a.bias)[row]);
	return sum;
}

/* Store a tile into y, this thread every step-th element: R columns, or half as many of silu(gate) * up. */
template <int M, int R, bool GATED>
__device__ static inline void store_tile(
	const skinny_args &a, const float *sums, uint32_t tile, uint32_t first, uint32_t step)
{
	constexpr int COLS = GATED ? R / 2 : R;

#pragma unroll(M > 16 ? 1 : 4)
	for (uint32_t i = first; i < a.n_rows * COLS; i += step) {
		const uint32_t element = i / COLS * R + i % COLS, col = tile * COLS + i % COLS;
		const size_t at = (size_t)(i / COLS) * a.n + col;
		float v;

		if (col >= a.n)
			continue;
		v = sum_of<M, R>(a, sums, element, col);
		if (GATED)
			v = v / (1.0f + __expf(-v)) *
			    sum_of<M, R>(a, sums, element + COLS, a.n + col);
		if (a.add)
			v += __bfloat162float(((const bf16 *)a.y)[at]);
		if (a.f32)
			((float *)a.y)[at] = v;
		else
			((bf16 *)a.y)[at] = __float2bfloat16_rn(v);
	}
}

/* ---- the norm of x, in shared memory ---- */

/* This thread's part of the norm's weight. */
struct norm_part {
	uint4 packs[NORM_PACKS];
};

__device__ static inline norm_part norm_load(const skinny_args &a)
{
	norm_part part = {};

#pragma unroll
	for (uint32_t i = 0; i < NORM_PACKS; i++)
		if (a.norm && (threadIdx.x + i * WARPS * WARP) * PACK < a.k)
			part.packs[i] = ((const uint4 *)a.norm)[threadIdx.x + i * WARPS * WARP];
	return part;
}

/* Sum each row's values over a warp: lane l gets the sum of row l / 4. */
__device__ static inline float rows_sum(float (&v)[NORM_ROWS])
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int n = NORM_ROWS / 2, offset = 16; offset; n /= 2, offset /= 2) {
		const bool upper = lane & offset;

		if (!n)
			v[0] += __shfl_xor_sync(~0u, v[0], offset);
#pragma unroll
		for (int i = 0; i < n; i++)
			v[i] = (upper ? v[n + i] : v[i]) + __shfl_xor_sync(~0u, upper ? v[i] : v[n + i], offset);
	}
	return v[0];
}

/* squares: [NORM_ROWS][WARPS], a warp's part of each row's sum. */
__device__ static inline void norm_measure(const skinny_args &a, const skinny_block &b, float *squares)
{
	float sums[NORM_ROWS] = {};

	for (uint32_t i = threadIdx.x; i < a.k / PACK; i += WARPS * WARP)
#pragma unroll
		for (uint32_t row = 0; row < NORM_ROWS; row++) {
			float v[PACK];

			if (row >= a.n_rows)
				break;
			unpack(v, load_16(b.x + row * b.x_pitch + i * 16));
#pragma unroll
			for (int j = 0; j < PACK; j++)
				sums[row] += v[j] * v[j];
		}
	const float sum = rows_sum(sums);

	if (threadIdx.x % 4 == 0)
		squares[threadIdx.x % WARP / 4 * WARPS + threadIdx.x / WARP] = sum;
}

__device__ static inline void norm_apply(
	const skinny_args &a, const skinny_block &b, const norm_part &part, const float *squares)
{
	static_assert(WARPS == 8, "a row's parts are two float4");
#pragma unroll 2
	for (uint32_t row = 0; row < a.n_rows; row++) {
		const float4 low = ((const float4 *)squares)[row * 2], high = ((const float4 *)squares)[row * 2 + 1];
		const float sum = (low.x + low.y + low.z + low.w) + (high.x + high.y + high.z + high.w);
		const float scale = rsqrtf(sum / (float)a.k + a.eps);

#pragma unroll
		for (uint32_t i = 0; i < NORM_PACKS; i++) {
			const uint32_t pack = threadIdx.x + i * WARPS * WARP, at = b.x + row * b.x_pitch + pack * 16;
			float v[PACK], weight[PACK];
			uint4 raw;

			if (pack * PACK >= a.k)
				break;
			unpack(v, load_16(at));
			unpack(weight, part.packs[i]);
#pragma unroll
			for (int j = 0; j < PACK; j++)
				v[j] = v[j] * scale * weight[j];
			store<PACK>((bf16 *)&raw, v);
			store_16(at, raw);
		}
	}
}

/* Barrier of the warps that multiply. */
__device__ static inline void meet(void)
{
	asm volatile("bar.sync 1, %0;" ::"n"(WARPS * WARP) : "memory");
}

/* x := norm(x), by the warps that multiply; `memory` is that of sums, which there are none of yet. */
__device__ static inline void norm_x(
	const skinny_args &a, const skinny_block &b, const norm_part &part, float *memory)
{
	norm_measure(a, b, memory);
	meet();
	norm_apply(a, b, part, memory);
	meet();
}

template <class W>
__device__ static inline void multiply_all(
	const skinny_args &a, const skinny_block &b, const norm_part &part, float *sum_memory)
{
	constexpr int M = W::m, R = W::r;
	typedef skinny_shape<M, R, W::kc> S;
	const uint32_t warp = threadIdx.x / WARP;
	float sums[(M + 15) / 16][R / 8][4] = {};
	uint32_t s = 0, parity = 0, buffer = 0, buffer_parity = 0;

	if (b.x && threadIdx.x == 0)
		fetch_all_x<W>(a, b);
	if (b.x)
		barrier_wait(b.x_full, 0);
	if constexpr (M == NORM_ROWS)
		if (a.norm)
			norm_x(a, b, part, sum_memory);
	for (uint32_t it = 0; it < b.n_iterations; it++) {
		const skinny_place p = place_of(b, it);
		const uint32_t stage = b.ring + s * b.stage_bytes;

		barrier_wait(b.full + s * 8, parity);
		W::multiply(sums, a, stage, b.x ? b.x + p.chunk * W::kc * 2 : stage + W::w_bytes,
			b.x_pitch, a.k - p.chunk * W::kc);
		__syncwarp();
		barrier_arrive_warp(b.empty + s * 8);
		if (++s == a.n_stages) {
			s = 0;
			parity ^= 1;
		}
		if (p.chunk != b.n_chunks - 1)
			continue;
		barrier_wait(b.sums_empty + buffer * 8, buffer_parity ^ 1);
		leave_sums<M, R>(sum_memory + (buffer * WARPS + warp) * S::n_sums, sums);
		__syncwarp();
		barrier_arrive_warp(b.sums_full + buffer * 8);
		if (it == b.n_iterations - 1)
			break;
		memset(sums, 0, sizeof(sums));
		if (++buffer == S::n_buffers) {
			buffer = 0;
			buffer_parity ^= 1;
		}
	}
	barrier_wait(b.sums_full + buffer * 8, buffer_parity);
	store_tile<M, R, W::gated>(a, sum_memory + buffer * WARPS * S::n_sums, place_of(b, b.n_iterations - 1).tile,
		threadIdx.x, WARPS * WARP);
}

/* ---- the warps that finish ---- */

template <class W>
__device__ static inline void finish_all(
	const skinny_args &a, const skinny_block &b, const float *sum_memory, uint32_t finisher)
{
	typedef skinny_shape<W::m, W::r, W::kc> S;
	const uint32_t buffer = finisher % S::n_buffers, first = finisher / S::n_buffers * WARP + threadIdx.x % WARP;
	uint32_t parity = 0;

	for (uint32_t i = buffer; i + 1 < b.n_iterations / b.n_chunks; i += S::n_buffers) {
		barrier_wait(b.sums_full + buffer * 8, parity);
		store_tile<W::m, W::r, W::gated>(a, sum_memory + buffer * WARPS * S::n_sums, blockIdx.x + i * gridDim.x,
			first, S::n_sharing * WARP);
		__syncwarp();
		barrier_arrive_warp(b.sums_empty + buffer * 8);
		parity ^= 1;
	}
}

template <class W> __device__ static inline void barriers_init(const skinny_block &b, uint32_t n_stages)
{
	if (threadIdx.x == 0) {
		for (uint32_t s = 0; s < n_stages; s++) {
			barrier_init(b.full + s * 8, 1);
			barrier_init(b.empty + s * 8, WARPS * WARP_ARRIVALS);
		}
		for (uint32_t i = 0; i < FINISHERS; i++) {
			barrier_init(b.sums_full + i * 8, WARPS * WARP_ARRIVALS);
			barrier_init(b.sums_empty + i * 8,
				skinny_shape<W::m, W::r, W::kc>::n_sharing * WARP_ARRIVALS);
		}
		barrier_init(b.x_full, 1);
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	__syncthreads();
}

#endif

template <class W> static __global__ void __launch_bounds__(THREADS, W::m > 16 ? 1 : 2) skinny(const __grid_constant__ skinny_args a)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) uint8_t memory[];
	__shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX + 2 * FINISHERS + 1];
	constexpr int COLS = W::gated ? W::r / 2 : W::r;
	const uint32_t n_tiles = (a.n + COLS - 1) / COLS, warp = threadIdx.x / WARP;
	skinny_block b;

	overlap_trigger();
	b.x_pitch = (a.x_bytes ? a.k : W::kc) * 2 + W::x_pad;
	b.stage_bytes = W::w_bytes + (a.x_bytes ? 0 : a.n_rows * b.x_pitch);
	b.ring = shared_address(memory) + a.x_bytes;
	b.x = a.x_bytes ? shared_address(memory) : 0;
	b.full = shared_address(barriers);
	b.empty = b.full + STAGES_MAX * 8;
	b.sums_full = b.empty + STAGES_MAX * 8;
	b.sums_empty = b.sums_full + FINISHERS * 8;
	b.x_full = b.sums_empty + FINISHERS * 8;
	b.n_chunks = (a.k + W::kc - 1) / W::kc;
	b.n_iterations = ((n_tiles - 1 - blockIdx.x) / gridDim.x + 1) * b.n_chunks;
	float *const sums = (float *)(memory + a.x_bytes + a.n_stages * b.stage_bytes);

	barriers_init<W>(b, a.n_stages);
	if (warp == PRODUCER) {
		fetch<W>(a, b);
		return;
	}
	const norm_part part = warp < WARPS ? norm_load(a) : norm_part{};

	overlap_wait();
	if (warp < WARPS)
		multiply_all<W>(a, b, part, sums);
	else
		finish_all<W>(a, b, sums, warp - WARPS - 1);
#endif
}

#endif
