/* SPDX-License-Identifier: MIT */

/*
 * Grid: packs of 8 elements / 256, 65535 blocks at most, which stride; block: 256 threads; no
 * shared memory. Moves n * 6 bytes: one 16-byte read and two 16-byte writes a pack, as wide as a thread's
 * accesses can be.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

/* The first threads convert the last n % N elements, one each. */
template <int N> static __global__ void to_f32(const struct op_to_f32 a)
{
	const uint64_t n_packs = a.n / N, first = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
	const bf16 *x = (const bf16 *)a.x;

	overlap_begin();
	for (uint64_t i = first; i < n_packs; i += (uint64_t)gridDim.x * THREADS) {
		float v[N];

		load<N>(v, x + i * N);
		if constexpr (N == PACK) {
			((float4 *)a.out)[2 * i] = make_float4(v[0], v[1], v[2], v[3]);
			((float4 *)a.out)[2 * i + 1] = make_float4(v[4], v[5], v[6], v[7]);
		} else {
			a.out[i] = v[0];
		}
	}
	if (first < a.n % N)
		a.out[n_packs * N + first] = __bfloat162float(x[n_packs * N + first]);
}

static int to_f32_launch(struct stream *stream, const struct op_to_f32 *a)
{
	const bool packs = aligned(a->x) && aligned(a->out);

	launch(stream, packs ? to_f32<PACK> : to_f32<1>,
		blocks_for(packs ? a->n / PACK : a->n, THREADS), THREADS, 0, *a);
	return 0;
}

CUDA_OP(to_f32, to_f32<PACK>)
