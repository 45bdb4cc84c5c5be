/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DEVICE_H
#define MIMEO_TESTS_DEVICE_H

/*
 * Which device a test program runs on: $MIMEO_DEVICE, cpu where it is not set, or cuda. What is
 * claimed of both is tested on both, within the device's own tolerances; what is true of one alone
 * is taken out of the group on the other, by name and with its reason, and counted as skipped.
 *
 * A device that was asked for and is not there fails a test: nothing here falls back to another.
 */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* "cpu", "cuda" or "cuda:N", for --device and device_open. */
static inline const char *test_device(void)
{
	const char *name = getenv("MIMEO_DEVICE");

	return name != NULL && *name != '\0' ? name : "cpu";
}

static inline bool test_on_cuda(void)
{
	return strncmp(test_device(), "cuda", 4) == 0;
}

/*
 * How far logits may be from a reference in float32, as a part of the largest: the cpu device keeps
 * activations and KV cache in float32, the cuda device in bf16, where a random checkpoint, whose
 * logits are close together, is further off than a trained model. Drafts and their target, of 8 narrow
 * layers, are off by 0.02 to 0.24 in make_drafts.py's arithmetic if that rounds to bf16, depending on
 * where it rounds (gate and up, and what is added to the residual).
 */
#define TEST_LOGITS_CPU 1e-4
#define TEST_LOGITS_CUDA 2e-2
#define TEST_LOGITS_CUDA_RANDOM 5e-2
#define TEST_LOGITS_CUDA_BIASED 1e-1
#define TEST_LOGITS_CUDA_DRAFT 2.5e-1

static inline double test_logits_tolerance(bool trained)
{
	if (!test_on_cuda())
		return TEST_LOGITS_CPU;
	return trained ? TEST_LOGITS_CUDA : TEST_LOGITS_CUDA_RANDOM;
}

/* A forced loss of the device: "launch:N" or "op:NAME:N" in this variable. */
static inline const char *test_fault_variable(void)
{
	return test_on_cuda() ? "MIMEO_CUDA_FAULT" : "MIMEO_CPU_FAULT";
}

/* Of two batches: bit for bit, or as near as a device comes whose sums go by the batch's shape. */
static inline bool test_same_logits(
	const float *have, const float *want, size_t n, bool trained)
{
	double largest = 0, worst = 0;

	for (size_t i = 0; i < n; i++) {
		largest = fmax(largest, fabs((double)want[i]));
		worst = fmax(worst, fabs((double)have[i] - (double)want[i]));
		if (!isfinite(have[i]) || !isfinite(want[i]))
			return memcmp(have, want, n * sizeof(*have)) == 0;
	}
	return test_on_cuda() ? worst <= test_logits_tolerance(trained) * largest
			      : memcmp(have, want, n * sizeof(*have)) == 0;
}

/*
 * May a greedy choice be `have` where a reference with these logits [n] chooses `want`? Only if both
 * are the same, or the logits are closer than what two computations within the tolerance may differ by.
 */
static inline bool test_same_choice(
	const float *logits, size_t n, int32_t have, int32_t want, bool trained)
{
	double largest = 0, gap;

	if (have == want)
		return true;
	if (!test_on_cuda() || have < 0 || (size_t)have >= n)
		return false;
	for (size_t i = 0; i < n; i++)
		largest = fmax(largest, fabs((double)logits[i]));
	gap = (double)logits[want] - (double)logits[have];
	fprintf(stderr, "# token %d for %d: logits %g and %g, largest %g, gap %.4f of it\n", (int)have,
		(int)want, (double)logits[have], (double)logits[want], largest, gap / largest);
	return gap <= 2 * test_logits_tolerance(trained) * largest;
}

/* The cpu device can always be lost on demand, the cuda one in builds with -Dtest_faults=true. */
static inline bool test_can_lose_device(void)
{
#ifdef MIMEO_TEST_FAULTS
	return true;
#else
	return !test_on_cuda();
#endif
}
#define TEST_CANNOT_LOSE "built without -Dtest_faults=true"

/* A test, or all whose names have `name` within, that cannot be run on the cuda device. */
struct test_cpu_only {
	const char *name, *reason;
};

#define TEST_GROUP_MAX 256u

static inline const char *test_why_not(
	const char *name, const struct test_cpu_only *only, size_t n_only)
{
	for (size_t i = 0; test_on_cuda() && i < n_only; i++) {
		if (only[i].name != NULL && strstr(name, only[i].name) != NULL)
			return only[i].reason;
	}
	return NULL;
}

/*
 * Run a group without the tests that this device cannot run. cmocka's number of failures; a name in
 * `only` that no test has is a failure, too.
 */
static inline int test_run_group(const char *group, const struct CMUnitTest *tests, size_t n,
	const struct test_cpu_only *only, size_t n_only, CMFixtureFunction setup,
	CMFixtureFunction teardown)
{
	struct CMUnitTest kept[TEST_GROUP_MAX] = {0};
	size_t n_kept = 0;
	int failed;

	for (size_t k = 0; k < n_only; k++) {
		bool found = only[k].name == NULL;

		for (size_t i = 0; i < n && !found; i++)
			found = strstr(tests[i].name, only[k].name) != NULL;
		if (!found) {
			fprintf(stderr, "%s: no test is called %s\n", group, only[k].name);
			return 1;
		}
	}
	for (size_t i = 0; i < n; i++) {
		if (test_why_not(tests[i].name, only, n_only) == NULL && n_kept < TEST_GROUP_MAX)
			kept[n_kept++] = tests[i];
	}
	failed = _cmocka_run_group_tests(group, kept, n_kept, setup, teardown);
	/* Behind the rest: nothing may stand before TAP's first line. */
	for (size_t i = 0; i < n; i++) {
		const char *why = test_why_not(tests[i].name, only, n_only);

		if (why != NULL)
			printf("# skipped: %s: %s\n", tests[i].name, why);
	}
	return failed;
}

#define TEST_RUN_GROUP(group, tests, only, setup, teardown)                                        \
	test_run_group((group), (tests), sizeof(tests) / sizeof((tests)[0]), (only),               \
		sizeof(only) / sizeof((only)[0]), (setup), (teardown))

#endif
