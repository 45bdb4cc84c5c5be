/* SPDX-License-Identifier: MIT */

/*
 * Packed weights to bf16: W[n, k] = (q - zero) * factor in float32, rounded.
 *
 * Grid: as many blocks as run at once; block: eight warps. A warp takes every so many-th unit: a lane widens
 * its 16 or 8 bytes of each half, 64 columns, and stores two numbers at a time; a quad's stores of a step are
 * 32 adjacent bytes. Moves the codes once and twice or four times their bytes of bf16.
 */

#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/widen.h"

enum { THREADS = 256 };

struct widen_args {
	const uint8_t *units;
	const float *factors; /* [rows], or NULL: units have theirs */
	bf16 *to;
	uint64_t n_units;
	uint32_t cols;
};

#if __CUDA_ARCH__ >= 900

template <class F> __device__ static inline void widen_unit(const widen_args &a, uint64_t index)
{
	const uint32_t lane = threadIdx.x % WARP, row = lane / 4, across = a.cols / PACKED_COLS;
	const uint8_t *unit = a.units + index * F::unit_bytes;
	const uint64_t first_row = index / across * PACKED_ROWS;
	uint32_t *to = (uint32_t *)(a.to + (first_row + row) * a.cols + index % across * PACKED_COLS) + lane % 4;
	const uint32_t *const factors = (const uint32_t *)(unit + F::code_bytes) + row; /* [groups, 8] */
	const uint4 v = ((const uint4 *)unit)[lane];
	uint32_t words[2][4][2], bits[4]; /* of 32 columns each */
	float factor[4];

#pragma unroll
	for (int g = 0; g < 4; g++) {
		bits[g] = !F::grouped ? 0 : g < F::groups ? factors[g * PACKED_ROWS] : bits[0];
		factor[g] = F::grouped ? factor_of<F>(bits[g]) : a.factors[first_row + row];
	}
	if constexpr (F::is_u4) {
		widen_fragment(words[0], v.x, v.y, zeros_of(bits[0]), zeros_of(bits[1]));
		widen_fragment(words[1], v.z, v.w, zeros_of(bits[2]), zeros_of(bits[3]));
	} else {
		widen_fragment(words[0], v);
		widen_fragment(words[1], ((const uint4 *)(unit + PACKED_FRAGMENT_BYTES))[lane]);
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		to[i * 8] = scaled(words[i / 4][i % 4][0], factor[i / 2]);
		to[i * 8 + 4] = scaled(words[i / 4][i % 4][1], factor[i / 2]);
	}
}

#endif

template <class F> static __global__ void __launch_bounds__(THREADS) widen(const __grid_constant__ widen_args a)
{
#if __CUDA_ARCH__ >= 900
	const uint32_t warps = THREADS / WARP;

	overlap_trigger();
	overlap_wait(); /* the product before may still read `to` */
	for (uint64_t i = (uint64_t)blockIdx.x * warps + threadIdx.x / WARP; i < a.n_units; i += (uint64_t)gridDim.x * warps)
		widen_unit<F>(a, i);
#endif
}

typedef void (*widen_kernel)(widen_args);

static widen_kernel widen_kernel_of(enum packed_kind kind)
{
	if (kind == PACKED_U4)
		return widen<packed_format<PACKED_U4>>;
	if (kind == PACKED_U4_32)
		return widen<packed_format<PACKED_U4_32>>;
	return kind == PACKED_E4M3_ROWS ? widen<packed_format<PACKED_E4M3_ROWS>>
					: widen<packed_format<PACKED_E4M3_GROUPS>>;
}

int widen_start(struct stream *stream)
{
	return cuda_launch_begin(stream, "widen", (const void *)widen_kernel_of(PACKED_U4));
}

void widen_launch(struct stream *stream, const struct weight *w, void *to)
{
	const uint64_t at_once = 8 * cuda_limits(stream)->n_sms;
	widen_args args = {};
	uint64_t blocks;

	args.units = (const uint8_t *)w->data;
	args.factors = w->factors;
	args.to = (bf16 *)to;
	args.cols = w->cols;
	args.n_units = (uint64_t)(w->rows / PACKED_ROWS) * (w->cols / PACKED_COLS);
	blocks = (args.n_units + THREADS / WARP - 1) / (THREADS / WARP);
	launch(stream, widen_kernel_of(packed_kind_of(w)), (uint32_t)(blocks < at_once ? blocks : at_once), THREADS, 0,
		args);
}
