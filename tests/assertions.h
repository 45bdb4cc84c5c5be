/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ASSERTIONS_H
#define MIMEO_TESTS_ASSERTIONS_H

/*
 * Assertions on numbers. Each fails at its caller's line and prints the first element that differs
 * too much.
 */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* |got - want| <= tolerance; an infinite `want` only equals itself, and a NaN is never close. */
#define assert_close(got, want, tolerance)                                                         \
	assertions_close(0, got, want, tolerance, __FILE__, __LINE__)

/* n elements, each within relative * |want| + absolute, or a NaN in both. */
#define assert_floats_close(got, want, n, relative, absolute)                                      \
	assertions_floats_close(got, want, n, relative, absolute, __FILE__, __LINE__)

/* n elements, bit for bit. */
#define assert_floats_equal(got, want, n)                                                          \
	assertions_floats_equal(got, want, n, __FILE__, __LINE__)

/* The greatest |got - want| as a part of the greatest |want|; infinite if `got` is not finite. */
static inline double floats_error(const float *got, const float *want, size_t n)
{
	double worst = 0, largest = 0;

	for (size_t i = 0; i < n; i++) {
		double error = fabs((double)got[i] - (double)want[i]);

		largest = fmax(largest, fabs((double)want[i]));
		worst = isfinite(error) ? fmax(worst, error) : HUGE_VAL;
	}
	return worst == 0 ? 0 : worst / largest;
}

/* n elements, each within `tolerance` of the greatest |want|. */
#define assert_floats_error(got, want, n, tolerance)                                               \
	assertions_close(0, floats_error(got, want, n), 0, tolerance, __FILE__, __LINE__)

static inline void assertions_close(
	size_t i, double got, double want, double tolerance, const char *file, int line)
{
	if (got == want || (isfinite(want) && fabs(got - want) <= tolerance))
		return;
	print_error("element %zu: %.9g is not within %.3g of %.9g\n", i, got, tolerance, want);
	_fail(file, line);
}

static inline void assertions_floats_close(const float *got, const float *want, size_t n,
	double relative, double absolute, const char *file, int line)
{
	for (size_t i = 0; i < n; i++)
		if (!isnan(got[i]) || !isnan(want[i]))
			assertions_close(i, (double)got[i], (double)want[i],
				relative * fabs((double)want[i]) + absolute, file, line);
}

static inline void assertions_floats_equal(
	const float *got, const float *want, size_t n, const char *file, int line)
{
	for (size_t i = 0; i < n; i++) {
		if (memcmp(&got[i], &want[i], sizeof(*got)) == 0)
			continue;
		print_error("element %zu: %.9g is not %.9g\n", i, (double)got[i], (double)want[i]);
		_fail(file, line);
	}
}

#endif
