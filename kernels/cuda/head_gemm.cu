/* SPDX-License-Identifier: MIT */

/*
 * Products per head: latent attention's absorption (`transposed`) and expansion. Their weights are 2
 * MB each for 16 heads of 128 over a rank of 512, 0.5 us at memory bandwidth, so latency dominates.
 * A warp loads its part of W into registers before the wait for the preceding kernel; then x takes one round
 * trip, and mma.sync does the rest. A warp keeps its weights for all rows and processes 16 or 32 rows at a
 * time.
 *
 * x and W go from memory into fragments as they lie, 8 or 16 bytes a lane: a product may run over
 * its inner dimension, and over its columns, in any order that both operands share. Lane l is g = l
 * / 4, q = l % 4, as the fragments have it (PTX ISA, "Matrix Fragments for mma.m16n8k16").
 *
 *	along    y = x W^T, W along its rows: of each 32 columns of W lane l has 8 of row g, from 8 q
 *	         on, two products' worth; a tile of 8 rows of W is one of 8 columns of y. Warps with
 *	         16 columns of y each share rows of x in shared memory
 *	across   y = x W, W across its rows: of each 16 rows of W lane l has four, from 4 q on, 8
 *	         columns of each, from 8 g on; pairs of rows are interleaved, and the warp's 64 columns
 *	         of y are 8 tiles: tile j has column j of every lane's 8, so that y, too, is 16 bytes a
 *	         lane
 *	plain    a thread an element, for weights that are not bf16 and for what is not aligned
 *
 * Grid: (heads x parts of a head's columns of y, tiles of rows or a part of them). Block: along up
 * to eight warps, across one, plain 128 threads. Shared memory: along 16 or 32 rows of x. Bytes: W
 * once for each y of the grid, x once for each part of a head's columns; all but the first time
 * from the L2.
 *
 * Measured on an H200, one after the other in a graph, weights from memory, at 1, 8, 32 and 128 rows,
 * us (cuBLAS, batched): 16 heads, across 2.0, 2.1, 2.5, 4.8 (3.0, 3.0, 3.4, 3.8), along 1.8, 2.4,
 * 3.6, 3.7 (3.4, 3.7, 3.8, 3.9); 128 heads, 6.0, 6.2, 8.1, 17.6 (6.7, 6.6, 7.2, 10.6) and 5.0, 5.2,
 * 6.6, 15.2 (6.6, 6.6, 6.7, 8.6). Known gap: many heads with many rows, where W is read from the L2
 * too often.
 */

#include "kernels/cuda/kernel.cuh"

enum { BUSY_WARPS = 1056, BUSY_BLOCKS = 120 }; /* eight and nearly one per multiprocessor of an H200 */

/* The rows of x and y that a lane has of a tile of 16: g and g + 8. */
struct head_tile {
	const bf16 *x[2];
	bf16 *y[2];
	bool there[2];

	__device__ __forceinline__ head_tile(
		const struct op_head_gemm &a, uint32_t head, uint32_t tile)
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t t = tile * 16 + i * 8 + threadIdx.x % WARP / 4;

			there[i] = t < a.n_rows;
			x[i] = (const bf16 *)a.x + (size_t)t * a.x_stride +
			       (size_t)head * a.x_head_stride;
			y[i] = (bf16 *)a.y + (size_t)t * a.y_stride +
			       (size_t)head * a.y_head_stride;
		}
	}
};

/* Volatile, because the compiler would move a load of constants behind the wait. */
static __device__ __forceinline__ uint4 load_16(const bf16 *from, bool there)
{
	uint4 w;

	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %5, 0;\n\t"
		     "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
		     "@p ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
		     : "=&r"(w.x), "=&r"(w.y), "=&r"(w.z), "=&r"(w.w)
		     : "l"(from), "r"((int)there)
		     : "memory");
	return w;
}

static __device__ __forceinline__ const bf16 *weight_rows(
	const struct op_head_gemm &a, uint32_t head)
{
	return (const bf16 *)a.w.data + ((size_t)head * a.head_rows + a.head_first) * a.w.cols;
}

/* ---- along ---- */

enum {
	STEPS = 16, /* of 32 columns of W, that a warp has at once */
	PITCH = STEPS * 32 + 32, /* of x in shared memory: without bank conflicts */
	WARPS_MAX = 8
};

static __device__ __forceinline__ void along_weights(uint4 (&w)[2][STEPS],
	const struct op_head_gemm &a, const bf16 *from, uint32_t n_first, uint32_t k_first)
{
	const uint32_t g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;

#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int s = 0; s < STEPS; s++) {
			const uint32_t row = n_first + n * 8 + g, k = k_first + s * 32 + q * 8;

			w[n][s] = load_16(from + (size_t)row * a.w.cols + k,
				row < a.head_n && k < a.w.cols);
		}
}

/* Two products into two sums, so that neither waits for the other. */
static __device__ __forceinline__ void along_step(
	float (&c)[2][4], const uint4 &x0, const uint4 &x1, const uint4 &w)
{
	mma(c[0], x0.x, x1.x, x0.y, x1.y, w.x, w.y);
	mma(c[1], x0.z, x1.z, x0.w, x1.w, w.z, w.w);
}

/* Both rows' two columns of a tile of 8. */
static __device__ __forceinline__ void along_store(
	const struct op_head_gemm &a, const head_tile &at, const float (&c)[2][4], uint32_t n_first)
{
	const uint32_t col = n_first + threadIdx.x % 4 * 2;

#pragma unroll
	for (int i = 0; i < 2; i++)
		if (at.there[i] && col < a.head_n)
			*(uint32_t *)(at.y[i] + col) = pack_2(c[0][i * 2] + c[1][i * 2],
				c[0][i * 2 + 1] + c[1][i * 2 + 1]);
}

/* 16 bytes to shared memory, or zeros if not `there`; nothing is read then. */
static __device__ __forceinline__ void copy_16(bf16 *to, const bf16 *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
			     (uint32_t)__cvta_generic_to_shared(to)),
		     "l"(from), "r"(there ? 16 : 0)
		     : "memory");
}

/* x's columns from k_first on, of MT x 16 rows from t_first on. Rows past the last are not read,
 * nor are their rows of y written. */
template <int MT>
static __device__ __forceinline__ void along_load(bf16 (*to)[PITCH], const struct op_head_gemm &a,
	uint32_t head, uint32_t t_first, uint32_t k_first)
{
	const bf16 *x = (const bf16 *)a.x + (size_t)head * a.x_head_stride;

	const uint32_t n_rows = min(a.n_rows - t_first, (uint32_t)MT * 16);

	__syncthreads();
#pragma unroll 8
	for (uint32_t i = threadIdx.x; i < n_rows * STEPS * 4; i += blockDim.x) {
		const uint32_t row = i / (STEPS * 4), k = i % (STEPS * 4) * 8;
		const bool there = k_first + k < a.w.cols;

		copy_16(&to[row][k],
			there ? x + (size_t)(t_first + row) * a.x_stride + k_first + k : x, there);
	}
	asm volatile("cp.async.wait_all;" ::: "memory");
	__syncthreads();
}

template <int MT>
static __global__ void __launch_bounds__(WARPS_MAX *WARP)
	along(const struct op_head_gemm a, uint32_t n_parts)
{
	__shared__ __align__(16) bf16 xs[MT * 16][PITCH];
	const uint32_t head = blockIdx.x / n_parts, g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
	const uint32_t n_first =
		(blockIdx.x % n_parts * (blockDim.x / WARP) + threadIdx.x / WARP) * 16;
	const bf16 *from = weight_rows(a, head);
	uint4 w[2][STEPS];

	overlap_trigger();
	along_weights(w, a, from, n_first, 0);
	overlap_wait();
	for (uint32_t t_first = blockIdx.y * MT * 16; t_first < a.n_rows;
		t_first += gridDim.y * MT * 16) {
		float c[MT][2][2][4] = {};

		for (uint32_t k_first = 0; k_first < a.w.cols; k_first += STEPS * 32) {
			if (a.w.cols > STEPS * 32)
				along_weights(w, a, from, n_first, k_first);
			along_load<MT>(xs, a, head, t_first, k_first);
#pragma unroll
			for (int s = 0; s < STEPS; s++)
#pragma unroll
				for (int m = 0; m < MT; m++) {
					const bf16 *x = &xs[m * 16 + g][s * 32 + q * 8];
					const uint4 x0 = *(const uint4 *)x;
					const uint4 x1 = *(const uint4 *)(x + 8 * PITCH);

					along_step(c[m][0], x0, x1, w[0][s]);
					along_step(c[m][1], x0, x1, w[1][s]);
				}
		}
#pragma unroll
		for (int m = 0; m < MT; m++) {
			const head_tile at(a, head, t_first / 16 + m);

			along_store(a, at, c[m][0], n_first);
			along_store(a, at, c[m][1], n_first + 8);
		}
	}
}

/* ---- across ---- */

enum { ACROSS_STEPS = 8, ACROSS_COLS = 64 };

/* The 16 rows of W from k_first on: two pairs of rows, interleaved, of 8 columns. */
static __device__ __forceinline__ void across_weights(uint32_t (&b)[8][2],
	const struct op_head_gemm &a, const bf16 *from, uint32_t n_first, uint32_t k_first)
{
	const uint32_t g = threadIdx.x / 4, q = threadIdx.x % 4;
	const uint32_t col = n_first + g * 8, k = k_first + q * 4;
	const bool there = col < a.w.cols && k < a.head_n;
	uint4 w[4];

#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = load_16(from + (size_t)(k + i) * a.w.cols + col, there);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const uint32_t lower[] = {w[2 * i].x, w[2 * i].y, w[2 * i].z, w[2 * i].w};
		const uint32_t upper[] = {
			w[2 * i + 1].x, w[2 * i + 1].y, w[2 * i + 1].z, w[2 * i + 1].w};

#pragma unroll
		for (int j = 0; j < 4; j++) {
			b[2 * j][i] = __byte_perm(lower[j], upper[j], 0x5410);
			b[2 * j + 1][i] = __byte_perm(lower[j], upper[j], 0x7632);
		}
	}
}

/* A tile's rows of x in the order of the products. */
static __device__ __forceinline__ void across_load(uint2 (&x)[ACROSS_STEPS][2],
	const struct op_head_gemm &a, const head_tile &at, uint32_t k_first)
{
#pragma unroll
	for (int i = 0; i < 2 * ACROSS_STEPS; i++) {
		const uint32_t k = k_first + i / 2 * 16 + threadIdx.x % 4 * 4;

		x[i / 2][i % 2] = at.there[i % 2] && k < a.head_n
					  ? __ldcg((const uint2 *)(at.x[i % 2] + k))
					  : make_uint2(0, 0);
	}
	__syncwarp(); /* keeps the compiler from moving loads down to their use */
}

static __device__ __forceinline__ void across_store(
	const struct op_head_gemm &a, const head_tile &at, const float (&c)[8][4], uint32_t n_first)
{
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const uint32_t col = n_first + (threadIdx.x % 4 * 2 + e % 2) * 8;

		if (at.there[e / 2] && col < a.w.cols)
			*(uint4 *)(at.y[e / 2] + col) = make_uint4(pack_2(c[0][e], c[1][e]),
				pack_2(c[2][e], c[3][e]), pack_2(c[4][e], c[5][e]),
				pack_2(c[6][e], c[7][e]));
	}
}

static __global__ void __launch_bounds__(WARP) across(const struct op_head_gemm a, uint32_t n_parts)
{
	const uint32_t head = blockIdx.x / n_parts, n_first = blockIdx.x % n_parts * ACROSS_COLS;
	const bf16 *from = weight_rows(a, head);
	uint32_t b[ACROSS_STEPS][8][2];

	overlap_trigger();
#pragma unroll
	for (int s = 0; s < ACROSS_STEPS; s++)
		across_weights(b[s], a, from, n_first, s * 16);
	overlap_wait();
	for (uint32_t tile = blockIdx.y; tile * 16 < a.n_rows; tile += gridDim.y) {
		const head_tile at(a, head, tile);
		float c[8][4] = {};

		for (uint32_t k_first = 0; k_first < a.head_n; k_first += ACROSS_STEPS * 16) {
			uint2 x[ACROSS_STEPS][2];

			across_load(x, a, at, k_first);
			if (a.head_n > ACROSS_STEPS * 16)
#pragma unroll
				for (int s = 0; s < ACROSS_STEPS; s++)
					across_weights(b[s], a, from, n_first, k_first + s * 16);
#pragma unroll
			for (int s = 0; s < ACROSS_STEPS; s++)
#pragma unroll
				for (int j = 0; j < 8; j++)
					mma(c[j], x[s][0].x, x[s][1].x, x[s][0].y, x[s][1].y,
						b[s][j][0], b[s][j][1]);
		}
		across_store(a, at, c, n_first);
	}
}

/* ---- plain ---- */

enum { PLAIN_THREADS = 128 };

static __global__ void plain(const struct op_head_gemm a)
{
	const uint32_t n_in = a.transposed ? a.head_n : a.w.cols;
	const uint32_t n_out = a.transposed ? a.w.cols : a.head_n, head = blockIdx.z;
	const size_t first = ((size_t)head * a.head_rows + a.head_first) * a.w.cols;

	overlap_begin();
	for (size_t t = blockIdx.y; t < a.n_rows; t += gridDim.y) {
		const bf16 *x = (const bf16 *)a.x + t * a.x_stride + (size_t)head * a.x_head_stride;
		bf16 *y = (bf16 *)a.y + t * a.y_stride + (size_t)head * a.y_head_stride;

		for (uint32_t n = blockIdx.x * PLAIN_THREADS + threadIdx.x; n < n_out;
			n += gridDim.x * PLAIN_THREADS) {
			float sum = 0;

			for (uint32_t k = 0; k < n_in; k++) {
				float w[1];

				load_weight<1>(w, a.w,
					first + (a.transposed ? (size_t)k * a.w.cols + n
							      : (size_t)n * a.w.cols + k));
				sum += __bfloat162float(x[k]) * w[0];
			}
			y[n] = __float2bfloat16_rn(sum);
		}
	}
}

/* ---- host ---- */

static bool head_gemm_fast(const struct op_head_gemm *a)
{
	const uint32_t strides = a->x_stride | a->x_head_stride | a->y_stride | a->y_head_stride;

	return a->w.dtype == DTYPE_BF16 && a->w.cols % 8 == 0 && a->head_n % 8 == 0 &&
	       strides % 8 == 0 && aligned(a->x) && aligned(a->y) && aligned(a->w.data);
}

static uint32_t head_gemm_divided(uint32_t n, uint32_t by)
{
	return (n + by - 1) / by;
}

/* Tiles of rows in the grid, so that BUSY_WARPS warps run; the warps process the other tiles with the same
 * weights. */
static uint32_t head_gemm_tiles_at_once(uint32_t n_rows, uint32_t rows, uint32_t n_warps)
{
	const uint32_t n_tiles = n_rows ? head_gemm_divided(n_rows, rows) : 1;
	const uint32_t most = n_warps < BUSY_WARPS ? BUSY_WARPS / n_warps : 1;

	return n_tiles < most ? n_tiles : most;
}

static void head_gemm_launch_across(struct stream *stream, const struct op_head_gemm *a)
{
	const uint32_t n_parts = head_gemm_divided(a->w.cols, ACROSS_COLS),
		       n_blocks = a->n_heads * n_parts;

	launch(stream, across, dim3(n_blocks, head_gemm_tiles_at_once(a->n_rows, 16, n_blocks)),
		WARP, 0, *a, n_parts);
}

/* Use fewer warps per block if there would be too few blocks. */
static void head_gemm_launch_along(struct stream *stream, const struct op_head_gemm *a)
{
	const uint32_t n_sixteens = head_gemm_divided(a->head_n, 16),
		       rows = a->n_rows > 16 ? 32 : 16;
	const uint32_t n_tiles = a->n_rows ? head_gemm_divided(a->n_rows, rows) : 1;
	/* a single warp is too slow at loading more than a few rows */
	const uint32_t fewest = a->n_rows > 8 ? 2 : 1;
	uint32_t n_warps = WARPS_MAX, n_parts = head_gemm_divided(n_sixteens, n_warps);

	while (n_warps > fewest && (uint64_t)a->n_heads * n_parts * n_tiles < BUSY_BLOCKS) {
		n_warps /= 2;
		n_parts = head_gemm_divided(n_sixteens, n_warps);
	}
	launch(stream, rows == 32 ? along<2> : along<1>,
		dim3(a->n_heads * n_parts,
			head_gemm_tiles_at_once(a->n_rows, rows, a->n_heads * n_parts * n_warps)),
		n_warps * WARP, 0, *a, n_parts);
}

static int head_gemm_launch(struct stream *stream, const struct op_head_gemm *a)
{
	if (head_gemm_fast(a)) {
		if (a->transposed)
			head_gemm_launch_across(stream, a);
		else
			head_gemm_launch_along(stream, a);
		return 0;
	}
	launch(stream, plain,
		dim3(blocks_for(a->transposed ? a->w.cols : a->head_n, PLAIN_THREADS),
			blocks_for(a->n_rows, 1), a->n_heads),
		PLAIN_THREADS, 0, *a);
	return 0;
}

CUDA_OP(head_gemm, plain)
