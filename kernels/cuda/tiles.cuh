/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_TILES_CUH
#define MIMEO_KERNELS_CUDA_TILES_CUH

/*
 * What wide.cu and broad.cu share: blocks of nine warps, eight that multiply in two warpgroups and
 * one that fetches a ring of stages, and how a product is divided among them.
 */

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/wide_ptx.cuh"

enum {
	WARPS = 8, /* that multiply */
	THREADS = (WARPS + 1) * 32,
	COLS = 64, /* of a stage */
	STAGES_MAX = 16,
	SPLITS_MAX = 8,
};

/* ---- host ---- */

/* Leaves memory for small blocks of the next kernel: a norm that does not fit in it starts only after
 * this kernel. */
static const uint32_t BLOCK_BYTES = 216 * 1024;

static inline bool tiles_able(struct stream *stream)
{
	const struct cuda_limits *limits = cuda_limits(stream);

	return limits->arch == 90 && limits->shared_bytes_optin >= BLOCK_BYTES + 1024;
}

static inline uint32_t divided(uint32_t n, uint32_t by)
{
	return (n + by - 1) / by;
}

/* ---- device ---- */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Barrier of the warps that multiply. */
__device__ static inline void meet(void)
{
	asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
}

/* Barrier of one warpgroup of these. */
__device__ static inline void meet_warpgroup(void)
{
	asm volatile("bar.sync %0, 128;" ::"r"(2 + threadIdx.x / 128) : "memory");
}

template <typename Args> __device__ static inline float bias_of(const Args &a, uint32_t col)
{
	if (!a.bias)
		return 0;
	return a.f32 ? ((const float *)a.bias)[col] : __bfloat162float(((const bf16 *)a.bias)[col]);
}

/* Load the first stages of W, as many as the ring holds, also of later tiles, by
 * fetch_w(tile, chunk, stage). Returns how many. */
template <typename Args, typename Block, typename Fetch>
__device__ static inline uint32_t fetch_ahead(const Args &a, const Block &b, Fetch fetch_w)
{
	uint32_t n = 0;

	for (uint32_t tile = b.tile; tile < b.n_tiles; tile += b.step)
		for (uint32_t chunk = b.chunk; chunk < b.chunk_end; chunk++, n++) {
			if (n == a.n_stages)
				return n;
			fetch_w(tile, chunk, n);
		}
	return n;
}

/* Load what remains of W, and x by fetch_x(tile, chunk, stage). Returns the stage behind the last. */
template <typename Args, typename Block, typename FetchW, typename FetchX>
__device__ static inline ring_stage fetch_all(
	const Args &a, const Block &b, uint32_t n_ahead, FetchW fetch_w, FetchX fetch_x)
{
	uint32_t n = 0;
	ring_stage s = {};

	for (uint32_t tile = b.tile; tile < b.n_tiles; tile += b.step)
		for (uint32_t chunk = b.chunk; chunk < b.chunk_end; chunk++, n++) {
			if (n >= n_ahead) {
				barrier_wait(b.empty + s.index * 8, s.parity ^ 1);
				fetch_w(tile, chunk, s.index);
			}
			fetch_x(tile, chunk, s.index);
			s.next(a.n_stages);
		}
	return s;
}

#endif

#endif
