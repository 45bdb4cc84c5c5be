/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_RANGES_H
#define MIMEO_TESTS_RANGES_H

/*
 * Parts of a block of memory: none may overlap another, nor leave the block. Only addresses are
 * looked at, so the memory may be a device's.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

struct range {
	const void *at;
	size_t bytes;
};

/* n elements at a pointer. */
#define RANGE(pointer, n) {(pointer), (size_t)(n) * sizeof(*(pointer))}

static inline int ranges_compare(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

/* Sorts the ranges by address. */
#define assert_ranges_disjoint(ranges, n, block, bytes)                                            \
	ranges_assert_disjoint(ranges, n, block, bytes, __FILE__, __LINE__)

static inline void ranges_assert_disjoint(struct range *ranges, size_t n, const void *block,
	size_t bytes, const char *file, int line)
{
	uintptr_t free_from = (uintptr_t)block, end = free_from + bytes;

	qsort(ranges, n, sizeof(ranges[0]), ranges_compare);
	for (size_t i = 0; i < n; i++) {
		_assert_true((uintptr_t)ranges[i].at >= free_from, "it begins behind the one before",
			file, line);
		free_from = (uintptr_t)ranges[i].at + ranges[i].bytes;
	}
	_assert_true(free_from <= end, "the last one ends within the block", file, line);
}

#endif
