/* SPDX-License-Identifier: MIT */

/*
 * Grid: packs of 4 elements / 256, 65535 blocks at most, which stride; block: 256 threads; no shared memory. Moves
 * n * 8 bytes, a 16-byte read and a 16-byte write a pack. Logits are its use: 256,000 of a row are 250 blocks.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

__device__ static inline float capped(float x, float cap)
{
	return cap * tanhf(x / cap);
}

/* The first threads take the last n % N elements, one each. */
template <int N> static __global__ void soft_cap(const struct op_soft_cap a)
{
	const uint64_t n_packs = a.n / N, first = (uint64_t)blockIdx.x * THREADS + threadIdx.x;

	overlap_begin();
	for (uint64_t i = first; i < n_packs; i += (uint64_t)gridDim.x * THREADS) {
		if constexpr (N == 4) {
			const float4 v = ((const float4 *)a.x)[i];

			((float4 *)a.x)[i] = make_float4(
				capped(v.x, a.cap), capped(v.y, a.cap), capped(v.z, a.cap), capped(v.w, a.cap));
		} else {
			a.x[i] = capped(a.x[i], a.cap);
		}
	}
	if (first < a.n % N)
		a.x[n_packs * N + first] = capped(a.x[n_packs * N + first], a.cap);
}

static int soft_cap_launch(struct stream *stream, const struct op_soft_cap *a)
{
	const bool packs = aligned(a->x);

	launch(stream, packs ? soft_cap<4> : soft_cap<1>, blocks_for(packs ? a->n / 4 : a->n, THREADS), THREADS, 0,
		*a);
	return 0;
}

CUDA_OP(soft_cap, soft_cap<4>)
