/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_RANDOM_H
#define MIMEO_TESTS_RANDOM_H

/*
 * Repeatable random numbers: splitmix64. The state is the test's own 64-bit word; the same start
 * gives the same numbers on every machine.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* The finaliser: a hash of z, for numbers that depend on their index alone. */
static inline uint64_t random_mix(uint64_t z)
{
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static inline uint64_t random_u64(uint64_t *state)
{
	return random_mix(*state += UINT64_C(0x9e3779b97f4a7c15));
}

static inline uint32_t random_u32(uint64_t *state)
{
	return (uint32_t)(random_u64(state) >> 32);
}

/* In [0, n). */
static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)((uint64_t)random_u32(state) * n >> 32);
}

/* In (-1, 1), uniform. */
static inline float random_float(uint64_t *state)
{
	return (float)((int32_t)random_u32(state) >> 7) * 0x1p-24f;
}

/* Mean 0, variance 1. */
static inline float random_normal(uint64_t *state)
{
	double u = ((double)random_u32(state) + 0.5) * 0x1p-32;
	double v = (double)random_u32(state) * 0x1p-32;

	return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static inline void random_fill_floats(uint64_t *state, float *values, size_t n)
{
	for (size_t i = 0; i < n; i++)
		values[i] = random_float(state);
}

#endif
