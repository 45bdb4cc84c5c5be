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
	float *normed = (float *)workspace + cols;

	for (size_t r = 0; r < a->n_rows; r++) {
		float *out = (float *)a->out + r * cols;

		(a->add ? rms_add : rms_normalise)(
			a->order ? normed : out, (const float *)a->x + r * cols, weight, cols, a->eps);
		for (size_t k = 0; a->order && k < cols; k++)
			out[k] = normed[a->order[k]];
	}
}

CPU_OP(rms_norm, (a->order ? 2 : 1) * a->weight.cols * sizeof(float))
