/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>

#include "kernels/convert.h"
#include "kernels/cpu/launchers.h"
#include "kernels/cpu/rms.h"

CPU_ARGS_FIT(op_rms_norm);
CPU_ARGS_FIT(op_add_rms_norm);

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

static const struct cpu_op rms_norm_op = {.name = "rms_norm", .run = rms_norm_run};
static const struct cpu_op add_rms_norm_op = {.name = "add_rms_norm", .run = add_rms_norm_run};

static bool norm_shape_ok(const struct weight *weight, float eps)
{
	return weight_is(weight, 1, weight->cols) && isfinite(eps) && eps >= 0;
}

int cpu_rms_norm(struct stream *stream, const struct op_rms_norm *a)
{
	if (!a->x || !a->out || !norm_shape_ok(&a->weight, a->eps))
		return -EINVAL;
	return CPU_LAUNCH(stream, &rms_norm_op, a, a->weight.cols * sizeof(float));
}

int cpu_add_rms_norm(struct stream *stream, const struct op_add_rms_norm *a)
{
	if (!a->x || !a->residual || !a->out || !norm_shape_ok(&a->weight, a->eps))
		return -EINVAL;
	if (a->residual == a->out)
		return -EINVAL;
	return CPU_LAUNCH(stream, &add_rms_norm_op, a, a->weight.cols * sizeof(float));
}
