/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_VECTOR_CPU_H
#define MIMEO_ATTENTION_VECTOR_CPU_H

/*
 * Sums over a head's elements on the host, float32, in orders that the lengths alone decide. They are
 * written with vectors: left to itself, -O2 keeps partial sums in memory.
 */

#include <stddef.h>
#include <stdint.h>

#define VECTOR 4u
#define VECTOR_LANES (4 * VECTOR)

/* What every machine has registers for; at any float's address. */
typedef float vector_f32 __attribute__((vector_size(VECTOR * sizeof(float)), aligned(4), may_alias));

/* VECTOR_LANES partial sums, folded in an order that n alone decides. */
static inline float vector_dot(const float *a, const float *b, size_t n)
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

/* acc += the weighted sum of rows[n_rows], n elements of each from `first` on; four at a time. */
static inline void vector_add_weighted(float *acc, const float *const *rows, size_t first,
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

static inline void vector_scale(float *x, float factor, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] *= factor;
}

#endif
