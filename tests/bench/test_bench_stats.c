/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/bench/stats.h"

static struct samples *filled(uint32_t capacity, const uint64_t *ns, uint32_t n)
{
	struct samples *samples = samples_new(capacity);

	assert_non_null(samples);
	for (uint32_t i = 0; i < n; i++)
		samples_add(samples, ns[i]);
	return samples;
}

static void assert_quantile(struct samples *samples, double fraction, uint64_t ns)
{
	assert_true(samples_quantile(samples, fraction) == (double)ns * 1e-9);
}

static void test_quantile_is_the_nearest_rank(void **state)
{
	static const uint64_t ns[] = {40, 10, 30, 20};
	struct samples *samples = filled(4, ns, 4);

	assert_quantile(samples, 0, 10);
	assert_quantile(samples, 0.25, 10);
	assert_quantile(samples, 0.26, 20);
	assert_quantile(samples, 0.5, 20);
	assert_quantile(samples, 0.75, 30);
	assert_quantile(samples, 0.99, 40);
	assert_quantile(samples, 1, 40);
	samples_free(samples);
}

static void test_p99_of_a_hundred_leaves_the_slowest_out(void **state)
{
	struct samples *samples = samples_new(100);

	assert_non_null(samples);
	for (uint64_t i = 100; i > 0; i--)
		samples_add(samples, i);
	assert_quantile(samples, 0.99, 99);
	assert_quantile(samples, 0.5, 50);
	samples_free(samples);
}

static void test_quantile_of_nothing_is_no_number(void **state)
{
	struct samples *samples = samples_new(1);

	assert_non_null(samples);
	assert_true(isnan(samples_quantile(samples, 0.5)));
	samples_free(samples);
}

static void test_sample_after_a_quantile_counts_in_the_next(void **state)
{
	static const uint64_t ns[] = {30, 20};
	struct samples *samples = filled(3, ns, 2);

	assert_quantile(samples, 1, 30);
	samples_add(samples, 10);
	assert_quantile(samples, 0, 10);
	assert_quantile(samples, 0.5, 20);
	samples_free(samples);
}

static void test_sample_beyond_the_capacity_is_dropped(void **state)
{
	static const uint64_t ns[] = {1, 2, 3};
	struct samples *samples = filled(2, ns, 3);

	assert_int_equal(samples->n, 2);
	assert_quantile(samples, 1, 2);
	samples_free(samples);
}

static void test_childs_samples_are_its_parents(void **state)
{
	struct samples *samples = samples_new(1);
	pid_t pid;

	assert_non_null(samples);
	pid = fork();
	if (pid == 0) {
		samples_add(samples, 7);
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_quantile(samples, 0.5, 7);
	samples_free(samples);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quantile_is_the_nearest_rank),
		cmocka_unit_test(test_p99_of_a_hundred_leaves_the_slowest_out),
		cmocka_unit_test(test_quantile_of_nothing_is_no_number),
		cmocka_unit_test(test_sample_after_a_quantile_counts_in_the_next),
		cmocka_unit_test(test_sample_beyond_the_capacity_is_dropped),
		cmocka_unit_test(test_childs_samples_are_its_parents),
	};

	return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
