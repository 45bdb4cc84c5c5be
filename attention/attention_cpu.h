/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_ATTENTION_CPU_H
#define MIMEO_ATTENTION_ATTENTION_CPU_H

/*
 * Shared by the kernels of the cpu device: float32 sums over a head's elements, in an order that depends only
 * on the lengths, and one step of a running softmax. The sums are written with vectors, because -O2 keeps an
 * array of partial sums in memory.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/unchecked.h"

/* ---- untrusted inputs: lengths and page ids are what the device's memory says ---- */

static inline uint32_t attention_clamp(int32_t value, uint32_t low, uint32_t high)
{
	if (value < 0 || (uint32_t)value < low)
		return low;
	return (uint32_t)value < high ? (uint32_t)value : high;
}

/* A page that does not exist is the null page. n_pages 0: unknown, only negative ids are. */
static inline size_t attention_page(int32_t page, uint32_t n_pages)
{
	return page < 0 || (n_pages && (uint32_t)page >= n_pages) ? 0 : (size_t)page;
}

/* ---- sums ---- */

#define VECTOR 4u
#define VECTOR_LANES (4 * VECTOR)

/* A width for which every machine has registers; needs only the alignment of a float. */
typedef float vector_f32
	__attribute__((vector_size(VECTOR * sizeof(float)), aligned(4), may_alias));

/* VECTOR_LANES partial sums, folded in an order that n alone decides. */
UNCHECKED_LOOP float vector_dot_loop(const float *a, const float *b, size_t n)
{
	vector_f32 sums[VECTOR_LANES / VECTOR] = { 0 };
	float sum = 0;
	size_t i = 0;

	for (; i + VECTOR_LANES <= n; i += VECTOR_LANES)
		for (size_t j = 0; j < VECTOR_LANES / VECTOR; j++)
			sums[j] += *(const vector_f32 *)(a + i + j * VECTOR) *
				   *(const vector_f32 *)(b + i + j * VECTOR);
	for (; i < n; i++)
		sum += a[i] * b[i];
	sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
	return sum + ((sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]));
}

static inline float vector_dot(const float *a, const float *b, size_t n)
{
	check_range(a, n * sizeof(*a));
	check_range(b, n * sizeof(*b));
	return vector_dot_loop(a, b, n);
}

UNCHECKED_LOOP void vector_add_weighted_loop(float *acc, const float *const *rows, size_t first,
	const float *weights, uint32_t n_rows, size_t n)
{
	uint32_t r = 0;

	for (; r + 4 <= n_rows; r += 4) {
		const float *x[4] = { rows[r] + first, rows[r + 1] + first, rows[r + 2] + first,
			rows[r + 3] + first };
		size_t i = 0;

		for (; i + VECTOR <= n; i += VECTOR)
			*(vector_f32 *)(acc + i) +=
				(*(const vector_f32 *)(x[0] + i) * weights[r] +
					*(const vector_f32 *)(x[1] + i) * weights[r + 1]) +
				(*(const vector_f32 *)(x[2] + i) * weights[r + 2] +
					*(const vector_f32 *)(x[3] + i) * weights[r + 3]);
		for (; i < n; i++)
			acc[i] += (x[0][i] * weights[r] + x[1][i] * weights[r + 1]) +
				  (x[2][i] * weights[r + 2] + x[3][i] * weights[r + 3]);
	}
	for (; r < n_rows; r++)
		for (size_t i = 0; i < n; i++)
			acc[i] += rows[r][first + i] * weights[r];
}

/* acc += the weighted sum of rows[n_rows], n elements of each from `first` on; four at a time. */
static inline void vector_add_weighted(float *acc, const float *const *rows, size_t first,
	const float *weights, uint32_t n_rows, size_t n)
{
	check_range(acc, n * sizeof(*acc));
	check_range(weights, n_rows * sizeof(*weights));
	for (uint32_t r = 0; r < n_rows; r++)
		check_range(rows[r] + first, n * sizeof(**rows));
	vector_add_weighted_loop(acc, rows, first, weights, n_rows, n);
}

UNCHECKED_LOOP void vector_scale_loop(float *x, float factor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] *= factor;
}

static inline void vector_scale(float *x, float factor, size_t n)
{
	check_range(x, n * sizeof(*x));
	vector_scale_loop(x, factor, n);
}

/* ---- scores ---- */

/* cap 0: none */
static inline void scores_cap(float *scores, uint32_t n, float cap)
{
	for (uint32_t i = 0; cap != 0 && i < n; i++)
		scores[i] = cap * tanhf(scores[i] / cap);
}

/* ---- softmax ---- */

/* A softmax so far: the highest score, and the sum of weights relative to it. */
struct running_softmax {
	float highest, sum;
};

#define RUNNING_SOFTMAX_NONE ((struct running_softmax){ .highest = -INFINITY })

/* Take a tile of n >= 1 keys into the softmax and into the weighted sum acc[dim] of the values,
 * which are `dim` elements of values[] from `first` on. scores[n] is overwritten. */
static inline void softmax_take(struct running_softmax *run, float *scores, uint32_t n,
	const float *const *values, size_t first, float *acc, size_t dim)
{
	float highest = run->highest, keep, sum;

	for (uint32_t i = 0; i < n; i++)
		highest = scores[i] > highest ? scores[i] : highest;
	keep = expf(run->highest - highest); /* 0 at the first tile: the highest so far is -inf */
	if (keep != 1.0f)
		vector_scale(acc, keep, dim);
	sum = run->sum * keep;
	for (uint32_t i = 0; i < n; i++) {
		scores[i] = expf(scores[i] - highest);
		sum += scores[i];
	}
	vector_add_weighted(acc, values, first, scores, n, dim);
	run->highest = highest;
	run->sum = sum;
}

#endif
