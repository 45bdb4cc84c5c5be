/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_PANEL_H
#define MIMEO_KERNELS_CPU_PANEL_H

/*
 * GEMM by OpenBLAS whose rows do not depend on the batch.
 *
 * A BLAS picks its kernel by the shape of the call, and kernels differ in the order of their sums:
 * one call for all rows would give a row other bits at another batch size. So a product is cut
 * into calls of one shape: CHUNK rows of x against PANEL rows of W, over BLOCK columns at a time.
 * Rows that a last chunk or panel lacks are zeroes. Only the last block of columns is shorter, and
 * that depends on the layer alone.
 *
 * Every block of weights is converted to float32 once and used by all chunks. The sizes are the
 * fastest on a machine with AVX-512, where OpenBLAS multiplies small matrices (up to 100^3)
 * without packing them: 80 GFLOP/s on one core at 64 rows against 20 with the columns in one piece
 * of 8192. With AVX2 kernels CHUNK 8 is 1.4 times as fast as 4; beyond 8, single rows get slow.
 */

#include <cblas.h>

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"

#define CHUNK 8
#define PANEL 32
#define BLOCK 1024

/* Before the first product; any thread, any number of times. */
void panel_blas_init(void);
/* NULL, or that OpenBLAS has chosen kernels for an older CPU than this one. Static storage. */
const char *panel_blas_advice(void);

/* sums[CHUNK, PANEL] = x[CHUNK, k] panel[PANEL, k]^T */
static inline void panel_multiply(const float *x, const float *panel, uint32_t k, float *sums)
{
	for (uint32_t first = 0; first < k; first += BLOCK) {
		uint32_t n = k - first < BLOCK ? k - first : BLOCK;

		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, CHUNK, PANEL, (int)n, 1.0f,
			x + first, (int)k, panel + first, (int)k, first ? 1.0f : 0.0f, sums, PANEL);
	}
}

#endif
