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

CPU_OP(rms_norm, a->weight.cols * sizeof(float))
