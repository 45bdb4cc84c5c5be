/* SPDX-License-Identifier: MIT */

/*
 * Grid: (rows, packs of a row / 256); block: 256 threads, each one access of 16 bytes (2 where
 * rows are odd); no shared memory. Moves rows * cols * 4 bytes. The time at a decode's row counts
 * is that of two dependent reads, the index and the row.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 256 };

/* T: what a thread moves at a time, n_packs of them a row. */
template <typename T>
static __global__ void gather_rows(const struct op_gather_rows a, uint32_t n_packs)
{
	const T *row;

	overlap_begin();
	if (blockIdx.x >= a.n_rows)
		return;
	row = (const T *)a.x + (size_t)clamp_index(a.index[blockIdx.x], a.x_rows) * n_packs;
	for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < n_packs;
		i += gridDim.y * THREADS)
		((T *)a.out)[(size_t)blockIdx.x * n_packs + i] = row[i];
}

int cuda_gather_rows(struct stream *stream, const struct op_gather_rows *a)
{
	const uint32_t n_packs = a->cols / PACK;
	int rc;

	if (!a->x || !a->index || !a->out || !a->x_rows || !a->cols || a->n_rows > INT32_MAX)
		return -EINVAL;
	rc = cuda_launch_begin(stream, "gather_rows", (const void *)gather_rows<uint4>);
	if (rc != 0)
		return rc;
	if (a->cols % PACK == 0 && aligned(a->x) && aligned(a->out))
		launch(stream, gather_rows<uint4>, row_grid(a->n_rows, n_packs, THREADS), THREADS,
			0, *a, n_packs);
	else
		launch(stream, gather_rows<uint16_t>, row_grid(a->n_rows, a->cols, THREADS),
			THREADS, 0, *a, a->cols);
	return cuda_launch_end(stream, "gather_rows");
}
