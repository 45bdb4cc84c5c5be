/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/rms.h"

static void rms_norm_run(const void *args, void *workspace)
{
	const struct op_rms_norm *a = args;
	const float *weight = weight_vector(&a->weight, workspace);
	size_t cols = a->weight.cols;

	for (size_t r = 0; r < a->n_rows; r++)
		rms_normalise((float *)a->out + r * cols, (const float *)a->x + r * cols, weight,
			cols, a->eps);
}

static void add_rms_norm_run(const void *args, void *workspace)
{
	const struct op_add_rms_norm *a = args;
	const float *weight = weight_vector(&a->weight, workspace);
	size_t cols = a->weight.cols;

	for (size_t r = 0; r < a->n_rows; r++) {
		float *residual = (float *)a->residual + r * cols;
		const float *x = (const float *)a->x + r * cols;

		for (size_t i = 0; i < cols; i++)
			residual[i] += x[i];
		rms_normalise((float *)a->out + r * cols, residual, weight, cols, a->eps);
	}
}

CPU_OP(rms_norm, a->weight.cols * sizeof(float))
CPU_OP(add_rms_norm, a->weight.cols * sizeof(float))
