/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_WIDE_PACKED_CUH
#define MIMEO_KERNELS_CUDA_WIDE_PACKED_CUH

/*
 * wide.cuh's kernel for packed weights: the same tiles, warpgroups, clusters and stores. A warp takes two units
 * of 8 rows, widens the codes from shared memory to registers, which are an operand of its warpgroup's
 * product, and scales the sums of a group by its factors while the other warpgroup multiplies. Groups of 32 columns
 * would want sums of their own after every second product: there W is rounded to bf16 with its factors.
 *
 * A stage is one or two units (128 columns each) of a tile's rows, in one box for each warpgroup, and x's boxes
 * of 64 columns. A bulk copy for each 8 rows was slower: a multiprocessor starts one in 50 to 90 ns.
 *
 * Measured on an H100 (copies 3.0 TB/s), us, plain / E4M3 in groups / U4: 8B's gate_up 80/50/45 at 32 rows, 82/60/54
 * at 64 and 87/119/108 at 128, by two launches; its down 43/35/27, 43/35/30 and 45/68/59. Known gap: from 65 rows
 * on W is read twice, so plain weights are faster.
 */

#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/wide.cuh"

/* KIND: of W; N: rows of x, padded; UNITS: of a stage. */
template <enum packed_kind KIND, int N, int UNITS> struct wide_packed_shape {
	typedef packed_format<KIND> F;
	static constexpr int n = N, units = UNITS;
	static constexpr uint32_t panels = GROUP_ROWS / PACKED_ROWS; /* of a warpgroup at most */
	static constexpr uint32_t panel_bytes = UNITS * F::unit_bytes;
	static constexpr uint32_t w_bytes = (2 * panels * panel_bytes + 1023) / 1024 * 1024;
	static constexpr uint32_t box_bytes = N * COLS * 2, x_bytes = 2 * UNITS * box_bytes;
	static constexpr uint32_t stage_bytes = w_bytes + x_bytes;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- the warp that fetches: lane 0 ---- */

/* The units of both warpgroups' parts of a tile; units past W are zeros. */
template <class S, bool GATED>
__device__ static inline void fetch_units(
	const wide_args &a, const wide_block &b, uint32_t tile, uint32_t chunk, uint32_t index)
{
	const uint32_t to = b.ring + index * S::stage_bytes, full = b.full + index * 8;
	const uint32_t panels = a.height / PACKED_ROWS, first = tile * panels * (GATED ? 1 : 2);

	barrier_expect(full, 2 * panels * S::panel_bytes + 2 * S::units * (S::box_bytes + WITNESS_BYTES));
	copy_box(to, &a.w, full, 0, chunk * S::units, first);
	copy_box(to + S::panels * S::panel_bytes, &a.w, full, 0, chunk * S::units,
		first + (GATED ? a.n / PACKED_ROWS : panels));
}

template <class S>
__device__ static inline void fetch_boxes(const wide_args &a, const wide_block &b, uint32_t chunk, uint32_t index)
{
	const uint32_t to = b.ring + index * S::stage_bytes + S::w_bytes;

#pragma unroll
	for (int i = 0; i < 2 * S::units; i++)
		copy_box(to + i * S::box_bytes, &a.x, b.full + index * 8, (chunk * S::units * 2 + i) * COLS, 0);
}

template <class S, bool GATED> __device__ static inline void fetch_packed(const wide_args &a, const wide_block &b)
{
	const bool fetches = threadIdx.x % WARP == 0;
	const auto w = [&](uint32_t tile, uint32_t chunk, uint32_t index) {
		fetch_units<S, GATED>(a, b, tile, chunk, index);
	};
	const auto x = [&](uint32_t, uint32_t chunk, uint32_t index) { fetch_boxes<S>(a, b, chunk, index); };
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

/* Widened columns [64 half, + 64) times the factors of their groups of 32, rounded. */
template <class F>
__device__ static inline void scale_half(uint32_t (&to)[4][4], uint32_t lower, uint32_t upper, int half)
{
	const uint32_t row = threadIdx.x % WARP / 4 * 4;

#pragma unroll
	for (int g = 0; g < 2; g++) {
		const float low = factor_of<F>(load_4(factors_at<F>(lower, half * 2 + g) + row));
		const float high = factor_of<F>(load_4(factors_at<F>(upper, half * 2 + g) + row));

#pragma unroll
		for (int j = g * 2; j < g * 2 + 2; j++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				to[j][i] = scaled(to[j][i], i % 2 ? high : low);
	}
}

/* sums += the unit's product; x: its two boxes. */
template <class S>
__device__ static inline void multiply_unit(float (&sums)[S::n / 8][4], uint32_t lower, uint32_t upper, uint32_t x)
{
	typedef typename S::F F;
	constexpr bool SCALES_SUMS = F::grouped && F::groups == 1;
	const uint32_t row = threadIdx.x % WARP / 4;
	float part[S::n / 8][4], (&to)[S::n / 8][4] = SCALES_SUMS ? part : sums;
	uint32_t first[4][4], second[4][4];

	widen_half<F>(first, lower, upper, 0);
	if (F::groups == 4)
		scale_half<F>(first, lower, upper, 0);
	settle(first);
	settle(to);
	products_fence();
#pragma unroll
	for (int j = 0; j < 4; j++)
		product_of_words(to, first[j], rows_at(x) + j * 2, !SCALES_SUMS || j > 0);
	products_commit();
	widen_half<F>(second, lower, upper, 1);
	if (F::groups == 4)
		scale_half<F>(second, lower, upper, 1);
	settle(second);
	products_fence();
#pragma unroll
	for (int j = 0; j < 4; j++)
		product_of_words(to, second[j], rows_at(x + S::box_bytes) + j * 2, 1);
	products_commit();
	products_wait<0>();
	settle(first);
	settle(second);
	settle(to);
	if (!SCALES_SUMS)
		return;
	const float low = factor_of<F>(load_4(lower + F::code_bytes + row * 4));
	const float high = factor_of<F>(load_4(upper + F::code_bytes + row * 4));

#pragma unroll
	for (int i = 0; i < S::n / 8; i++) {
		sums[i][0] += part[i][0] * low;
		sums[i][1] += part[i][1] * low;
		sums[i][2] += part[i][2] * high;
		sums[i][3] += part[i][3] * high;
	}
}

template <class S>
__device__ static inline void multiply_packed_tile(
	const wide_args &a, const wide_block &b, ring_stage &s, float (&sums)[S::n / 8][4])
{
	const uint32_t panel = threadIdx.x / WARP * 2; /* eight warps, sixteen panels */

#pragma unroll
	for (int i = 0; i < S::n / 8; i++)
		sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
	for (uint32_t chunk = b.chunk; chunk < b.chunk_end; chunk++) {
		const uint32_t at = b.ring + s.index * S::stage_bytes, lower = at + panel * S::panel_bytes;
		const uint32_t units = min((uint32_t)S::units, a.k / PACKED_COLS - chunk * S::units);

		barrier_wait(b.full + s.index * 8, s.parity);
		for (uint32_t u = 0; u < units; u++)
			multiply_unit<S>(sums, lower + u * S::F::unit_bytes,
				lower + S::panel_bytes + u * S::F::unit_bytes, at + S::w_bytes + u * 2 * S::box_bytes);
		__syncwarp();
		release(b, s.index);
		s.next(a.n_stages);
	}
}

template <class S, bool GATED>
__device__ static inline void multiply_packed(const wide_args &a, const wide_block &b, float *sum_memory)
{
	float sums[S::n / 8][4];
	ring_stage s = {};

	for (uint32_t tile = b.tile; tile < b.n_tiles; tile += b.step) {
		multiply_packed_tile<S>(a, b, s, sums);
		meet(); /* the previous tile has been stored */
		leave_sums<S::n>(sum_memory, sums);
		if (a.splits > 1)
			return; /* there is no other */
		meet();
		store_tile<GATED, !S::F::grouped>(a, b, sum_memory, tile);
	}
}

#endif

template <class S, bool GATED>
static __global__ void __launch_bounds__(THREADS, 1) wide_packed(const __grid_constant__ wide_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ uint8_t memory[];
	__shared__ __align__(8) uint64_t barriers[2 * STAGES_MAX];
	const uint32_t cols = GATED ? a.height : 2 * a.height, chunk_cols = S::units * PACKED_COLS;
	const uint32_t skip = (1024 - shared_address(memory) % 1024) % 1024;
	float *const sums = (float *)(memory + skip + a.n_stages * S::stage_bytes);

	overlap_trigger();
	const wide_block b = block_make(a, (a.n + cols - 1) / cols, (a.k + chunk_cols - 1) / chunk_cols,
		shared_address(memory) + skip, barriers);
	if (threadIdx.x / WARP == WARPS) {
		fetch_packed<S, GATED>(a, b);
	} else {
		overlap_wait();
		multiply_packed<S, GATED>(a, b, sums);
	}
	if (a.splits > 1) {
		cluster_meet();
		if (threadIdx.x / WARP != WARPS)
			store_tile<GATED, !S::F::grouped>(a, b, sums, b.tile);
		cluster_meet_only(); /* other blocks may still read this memory */
	}
#endif
}

#endif
