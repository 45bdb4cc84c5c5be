/* SPDX-License-Identifier: MIT */

/*
 * Grid: (tokens, packs of a row / 256); block: 256 threads, each one pack of 8 elements; no shared
 * memory. Moves tokens * hidden * (the table's element + 2) bytes. At a decode's few rows it is
 * latency-bound by one dependent read (the id, then the row): a thread has one access only, so that
 * a row costs one round trip whatever its width. The address of a given embedding is read together with the
 * id. Only the kernel knows it, and so decides whether it can be read in packs.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

/* Bit for bit; `to` is aligned to N elements, `from` to one. */
template <int N> __device__ static void copy_pack(bf16 *to, const bf16 *from)
{
	if (N == PACK && (uintptr_t)from % 16 == 0) {
		*(uint4 *)to = *(const uint4 *)from;
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		to[i] = from[i];
}

template <int N> static __global__ void embed(const struct op_embed a)
{
	const uint32_t n_packs = a.table.cols / N;
	const uint32_t stride = a.out_stride ? a.out_stride : a.table.cols;
	const bf16 *from;
	size_t row;

	overlap_begin();
	if (blockIdx.x >= a.n_tokens)
		return;
	from = a.from ? (const bf16 *)a.from[blockIdx.x] : NULL;
	row = (size_t)clamp_index(a.ids[blockIdx.x], a.table.rows) * a.table.cols;
	for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < n_packs;
		i += gridDim.y * THREADS) {
		bf16 *out = (bf16 *)a.out + (size_t)blockIdx.x * stride + (size_t)i * N;
		float v[N];

		if (from != NULL) {
			copy_pack<N>(out, from + (size_t)i * N);
			continue;
		}
		load_weight<N>(v, a.table, row + (size_t)i * N);
		if (a.scale != 0)
#pragma unroll
			for (int j = 0; j < N; j++)
				v[j] *= a.scale;
		store<N>(out, v);
	}
}

static int embed_launch(struct stream *stream, const struct op_embed *a)
{
	const uint32_t cols = a->table.cols;
	const bool packs = cols % PACK == 0 && a->out_stride % PACK == 0 &&
			   aligned(a->table.data) && aligned(a->out);

	return launch_rows(
		stream, packs, embed<PACK>, embed<1>, a->n_tokens, cols, THREADS, *a);
}

CUDA_OP(embed, embed<PACK>)
