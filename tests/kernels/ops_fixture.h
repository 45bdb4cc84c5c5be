/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_OPS_FIXTURE_H
#define MIMEO_TESTS_KERNELS_OPS_FIXTURE_H

/*
 * What tests of ops share on every device: repeatable random numbers, weights of every dtype,
 * memory that lasts as long as its test, and the run of a group.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/assertions.h"
#include "tests/random.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t rng; /* the state of all random numbers */

static const enum dtype weight_dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Value i of a weight: of magnitude 2^-8 to 2, of both signs, with a random mantissa. */
static inline void random_weight_value(void *data, enum dtype dtype, size_t i)
{
	uint32_t sign = random_u32(&rng) & 1, below_one = random_below(&rng, 8);
	uint32_t noise = random_u32(&rng);

	if (dtype == DTYPE_F32)
		((float *)data)[i] = random_float(&rng);
	else if (dtype == DTYPE_BF16)
		((uint16_t *)data)[i] =
			(uint16_t)(sign << 15 | (126 - below_one) << 7 | (noise & 0x7f));
	else
		((uint16_t *)data)[i] =
			(uint16_t)(sign << 15 | (14 - below_one) << 10 | (noise & 0x3ff));
}

/* ---- host memory of the test ---- */

struct scratch {
	struct scratch *next;
	uint64_t data[];
};

static struct scratch *scratches;

/* Zeroes; freed when the test ends. */
static inline void *scratch(size_t bytes)
{
	struct scratch *s = calloc(1, sizeof(*s) + bytes);

	assert_non_null(s);
	s->next = scratches;
	scratches = s;
	return s->data;
}

/* Frees what was allocated since `scratches` was `until`. */
static inline void scratch_release(const struct scratch *until)
{
	struct scratch *s;

	while ((s = scratches) != until) {
		scratches = s->next;
		free(s);
	}
}

/* ---- the run ---- */

#define OPS_TESTS_MAX 64

/* Runs the group; `release` is every test's teardown. */
static inline int ops_run_group(const char *name, const struct CMUnitTest *tests, size_t n,
	CMFixtureFunction setup, CMFixtureFunction teardown, CMFixtureFunction release)
{
	struct CMUnitTest run[OPS_TESTS_MAX];

	if (n > OPS_TESTS_MAX)
		return 1;
	memcpy(run, tests, n * sizeof(*tests));
	for (size_t i = 0; i < n; i++)
		run[i].teardown_func = release;
	return _cmocka_run_group_tests(name, run, n, setup, teardown);
}

#endif
