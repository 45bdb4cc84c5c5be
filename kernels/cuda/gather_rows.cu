/* SPDX-License-Identifier: MIT */

/*
 * Grid: (rows, packs of a row / 256); block: 256 threads, each one access of 16 bytes (2 where
 * rows are odd); no shared memory. Moves rows * cols * 4 bytes. At a decode's row counts it is
 * latency-bound by two dependent reads, the index and the row.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

/* T: the type of one access; a row has n_packs of them, and the rows of out are out_packs apart. */
template <typename T>
static __global__ void gather_rows(
	const struct op_gather_rows a, uint32_t n_packs, uint32_t out_packs)
{
	const T *row;
	T *out;
	int32_t index;

	overlap_begin();
	if (blockIdx.x >= a.n_rows)
		return;
	index = a.index ? a.index[blockIdx.x] : (int32_t)blockIdx.x;
	row = (const T *)a.x + (size_t)clamp_index(index, a.x_rows) * n_packs;
	out = (T *)a.out + (size_t)blockIdx.x * out_packs;
	for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < n_packs;
		i += gridDim.y * THREADS)
		out[i] = row[i];
}

static int gather_rows_launch(struct stream *stream, const struct op_gather_rows *a)
{
	const uint32_t cols = a->cols, stride = a->out_stride ? a->out_stride : cols;

	if (cols % PACK == 0 && stride % PACK == 0 && aligned(a->x) && aligned(a->out))
		launch(stream, gather_rows<uint4>, row_grid(a->n_rows, cols / PACK, THREADS),
			THREADS, 0, *a, cols / PACK, stride / PACK);
	else
		launch(stream, gather_rows<uint16_t>, row_grid(a->n_rows, cols, THREADS), THREADS,
			0, *a, cols, stride);
	return 0;
}

CUDA_OP(gather_rows, gather_rows<uint4>)
