/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CPU_RMS_H
#define MIMEO_KERNELS_CPU_RMS_H

#include <math.h>
#include <stddef.h>

#define RMS_LANES 8

/* 1 / sqrt(mean(x^2) + eps). The sum is kept in double, in a fixed number of lanes, so that it costs no
 * precision and a row's bits depend on the row alone. */
static inline float rms_scale(const float *x, size_t n, float eps)
{
	double lanes[RMS_LANES] = {0}, sum = 0;
	size_t i = 0;

	for (; i + RMS_LANES <= n; i += RMS_LANES)
		for (size_t j = 0; j < RMS_LANES; j++)
			lanes[j] += (double)x[i + j] * (double)x[i + j];
	for (; i < n; i++)
		lanes[i % RMS_LANES] += (double)x[i] * (double)x[i];
	for (size_t j = 0; j < RMS_LANES; j++)
		sum += lanes[j];
	return (float)(1.0 / sqrt(sum / (double)n + (double)eps));
}

/* out = x rms_scale(x) weight; out may be x. */
static inline void rms_normalise(
	float *out, const float *x, const float *weight, size_t n, float eps)
{
	const float scale = rms_scale(x, n, eps);

	for (size_t i = 0; i < n; i++)
		out[i] = x[i] * scale * weight[i];
}

/* The same, added to out, which is not x. */
static inline void rms_add(float *out, const float *x, const float *weight, size_t n, float eps)
{
	const float scale = rms_scale(x, n, eps);

	for (size_t i = 0; i < n; i++)
		out[i] += x[i] * scale * weight[i];
}

#endif
