/* SPDX-License-Identifier: MIT */
/* Parts of a task on several threads. */
#include "tests/model/fixture.h"

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>

#include "daemon/model/workers.h"

#define PARTS 1000u

struct seen {
	uint32_t calls[PARTS], n; /* plain: what a part wrote is the caller's to read */
	_Atomic uint32_t n_inside, most;
};

static void see(void *userdata, uint32_t i)
{
	struct seen *seen = userdata;
	uint32_t inside = atomic_fetch_add(&seen->n_inside, 1) + 1, most = seen->most;

	assert(i < seen->n);
	while (inside > most && !atomic_compare_exchange_weak(&seen->most, &most, inside))
		;
	seen->calls[i]++;
	atomic_fetch_sub(&seen->n_inside, 1);
}

static void expect_each_once(struct workers *workers, uint32_t n)
{
	struct seen seen = {.n = n};

	workers_run(workers, see, &seen, n);
	assert_int_equal(seen.n_inside, 0);
	for (uint32_t i = 0; i < PARTS; i++)
		assert_int_equal(seen.calls[i], i < n);
	assert_in_range(seen.most, n > 0, workers_n(workers));
}

static void test_each_part_is_called_once(void **state)
{
	static const uint32_t sizes[] = {1, 2, 3, WORKERS_MAX, WORKERS_MAX + 1, PARTS};
	struct workers *workers = workers_new();

	assert_non_null(workers);
	for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++)
		expect_each_once(workers, sizes[i]);
	workers_free(workers);
}

static void test_task_of_no_parts_ends(void **state)
{
	struct workers *workers = workers_new();

	assert_non_null(workers);
	expect_each_once(workers, 0);
	expect_each_once(workers, 5);
	workers_free(workers);
}

static void test_many_tasks_follow_each_other(void **state)
{
	struct workers *workers = workers_new();

	assert_non_null(workers);
	for (uint32_t i = 0; i < 3000; i++)
		expect_each_once(workers, 1 + i % 20);
	workers_free(workers);
}

/* Returns when two calls run at the same time. */
static void meet(void *userdata, uint32_t i)
{
	_Atomic uint32_t *n = userdata;

	atomic_fetch_add(n, 1);
	while (*n < 2)
		sched_yield();
}

static void test_parts_run_beside_each_other(void **state)
{
	struct workers *workers = workers_new();
	_Atomic uint32_t n = 0;

	assert_non_null(workers);
	if (workers_n(workers) < 2) {
		workers_free(workers);
		skip();
	}
	workers_run(workers, meet, &n, 2);
	assert_int_equal(n, 2);
	workers_free(workers);
}

static void test_workers_without_a_task_end(void **state)
{
	workers_free(workers_new());
	workers_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_part_is_called_once),
		cmocka_unit_test(test_task_of_no_parts_ends),
		cmocka_unit_test(test_many_tasks_follow_each_other),
		cmocka_unit_test(test_parts_run_beside_each_other),
		cmocka_unit_test(test_workers_without_a_task_end),
	};

	return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
