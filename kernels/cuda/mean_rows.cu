/* SPDX-License-Identifier: MIT */

/*
 * Grid: columns / 128; block: 128 threads, one for each column; no shared memory. Reads 2 bytes per element and
 * adds rows in their order, in double precision, so the result does not depend on the parts.
 */

#include "kernels/cuda/kernel.cuh"

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS) mean_rows(const struct op_mean_rows a)
{
	const uint32_t c = blockIdx.x * THREADS + threadIdx.x;
	double sum;

	overlap_begin();
	if (c >= a.cols)
		return;
	sum = a.first ? 0 : a.sum[c];
#pragma unroll 8
	for (uint32_t r = 0; r < a.n_rows; r++)
		sum += (double)__bfloat162float(((const bf16 *)a.x)[(size_t)r * a.cols + c]);
	a.sum[c] = sum;
	if (a.total)
		a.mean[c] = (float)(sum / a.total);
}

static int mean_rows_launch(struct stream *stream, const struct op_mean_rows *a)
{
	launch(stream, mean_rows, (a->cols - 1) / THREADS + 1, THREADS, 0, *a);
	return 0;
}

CUDA_OP(mean_rows, mean_rows)
