/* SPDX-License-Identifier: MIT */

/*
 * Grid: packs of a page / 128; block: 128 threads; shared memory: 2 KB of pairs, which are read over the bus.
 * Moves n_pairs * page_bytes * 2. Each thread owns one pack of every page and takes the pairs in their order,
 * as the cpu device does: a page that one pair writes and a later one reads needs no barrier. DEPTH pairs are
 * loaded at a time unless one of them reads what another writes; a layer of a 16-token page is about 2000
 * packs, so that one pair already fills 16 blocks.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 128, DEPTH = 4, TILE = 256 };

__device__ static bool chained(const uint32_t *src, const uint32_t *dst)
{
	bool found = false;

#pragma unroll
	for (int i = 0; i < DEPTH; i++)
#pragma unroll
		for (int j = i + 1; j < DEPTH; j++)
			found |= dst[i] == src[j];
	return found;
}

/* Pack p of the pages, of which there are n_packs each. */
template <typename T>
__device__ static void copy_pack(
	T *kv, const uint32_t *pairs, uint32_t n, uint64_t n_packs, uint64_t p)
{
	uint32_t i = 0;

	for (; i + DEPTH <= n; i += DEPTH) {
		uint32_t src[DEPTH], dst[DEPTH];
		T v[DEPTH];

#pragma unroll
		for (int j = 0; j < DEPTH; j++) {
			src[j] = pairs[2 * (i + j)];
			dst[j] = pairs[2 * (i + j) + 1];
		}
		if (chained(src, dst)) {
#pragma unroll
			for (int j = 0; j < DEPTH; j++)
				kv[dst[j] * n_packs + p] = kv[src[j] * n_packs + p];
			continue;
		}
#pragma unroll
		for (int j = 0; j < DEPTH; j++)
			v[j] = kv[src[j] * n_packs + p];
#pragma unroll
		for (int j = 0; j < DEPTH; j++)
			kv[dst[j] * n_packs + p] = v[j];
	}
	for (; i < n; i++)
		kv[pairs[2 * i + 1] * n_packs + p] = kv[pairs[2 * i] * n_packs + p];
}

template <typename T>
static __global__ void copy_pages(const struct op_copy_pages a, uint64_t n_packs)
{
	__shared__ uint32_t pairs[2 * TILE];

	overlap_begin();
	for (uint32_t base = 0; base < a.n_pairs; base += TILE) {
		const uint32_t n = min(a.n_pairs - base, (uint32_t)TILE);

		__syncthreads();
		for (uint32_t i = threadIdx.x; i < 2 * n; i += THREADS)
			pairs[i] = a.pairs[2 * (size_t)base + i];
		__syncthreads();
		for (uint64_t p = (uint64_t)blockIdx.x * THREADS + threadIdx.x; p < n_packs;
			p += (uint64_t)gridDim.x * THREADS)
			copy_pack((T *)a.kv, pairs, n, n_packs, p);
	}
}

static int copy_pages_launch(struct stream *stream, const struct op_copy_pages *a)
{
	const bool packs = aligned(a->kv) && a->page_bytes % sizeof(uint4) == 0;
	const uint64_t n = packs ? a->page_bytes / sizeof(uint4) : a->page_bytes;

	launch(stream, packs ? copy_pages<uint4> : copy_pages<uint8_t>, blocks_for(n, THREADS),
		THREADS, 0, *a, n);
	return 0;
}

CUDA_OP(copy_pages, copy_pages<uint4>)
