/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/arena.h"
#include "kernels/cpu/cpu.h"

static alignas(ARENA_ALIGN) uint8_t block[4 * ARENA_ALIGN];

static void carve(struct arena *arena, void *ret[3])
{
	ret[0] = arena_take(arena, 3, 100);
	ret[1] = arena_take(arena, 1, 1);
	ret[2] = arena_take(arena, 2, 8);
}

static void test_arena_counting_gives_no_memory(void **state)
{
	struct arena arena = {0};
	void *taken[3];

	carve(&arena, taken);
	assert_null(taken[0]);
	assert_null(taken[2]);
	assert_false(arena.failed);
	assert_int_equal(arena.used, 3 * ARENA_ALIGN + 16);
}

static void test_arena_block_of_the_counted_size_is_exactly_enough(void **state)
{
	struct arena counted = {0}, arena;
	void *taken[3];

	carve(&counted, taken);
	arena = (struct arena){.base = block, .size = counted.used};
	carve(&arena, taken);
	assert_false(arena.failed);
	assert_ptr_equal(taken[0], block);
	assert_ptr_equal(taken[1], block + 2 * ARENA_ALIGN);
	assert_ptr_equal(taken[2], block + 3 * ARENA_ALIGN);
	assert_int_equal(arena.used, counted.used);
}

static void test_arena_one_byte_less_fails_and_stays_failed(void **state)
{
	struct arena counted = {0}, arena;
	void *taken[3];

	carve(&counted, taken);
	arena = (struct arena){.base = block, .size = counted.used - 1};
	carve(&arena, taken);
	assert_true(arena.failed);
	assert_non_null(taken[1]);
	assert_null(taken[2]);
	assert_null(arena_take(&arena, 1, 1));
}

static void test_arena_product_overflow_fails_when_counting(void **state)
{
	struct arena arena = {0};

	assert_null(arena_take(&arena, SIZE_MAX / 2, 3));
	assert_true(arena.failed);
}

static void test_arena_sum_overflow_fails_when_counting(void **state)
{
	struct arena arena = {0};

	arena_take(&arena, SIZE_MAX - 2 * ARENA_ALIGN, 1);
	assert_false(arena.failed);
	arena_take(&arena, 2 * ARENA_ALIGN, 1);
	assert_true(arena.failed);
}

static void test_arena_rounding_overflow_fails(void **state)
{
	struct arena arena = {0};

	arena_take(&arena, SIZE_MAX, 1);
	assert_false(arena.failed);
	arena_take(&arena, 0, 1);
	assert_true(arena.failed);
}

struct carving {
	uint32_t n_runs;
	size_t n; /* of the one thing taken */
	void *at;
};

static void carve_one(void *userdata, struct arena *arena)
{
	struct carving *carving = userdata;

	carving->n_runs++;
	carving->at = arena_take(arena, carving->n, 3);
}

static void test_arena_of_a_device_is_placed_as_it_was_counted(void **state)
{
	struct carving carving = {.n = 100};
	struct device *device;
	void *memory;
	size_t bytes;

	assert_int_equal(cpu_device_new(NULL, &device), 0);
	assert_int_equal(arena_alloc(device, carve_one, &carving, &memory, &bytes), 0);
	assert_int_equal(carving.n_runs, 2);
	assert_ptr_equal(carving.at, memory);
	assert_int_equal(bytes, 300);
	device->ops->mem_free(device, memory);
	device->ops->free(device);
}

static void test_arena_that_overflows_takes_nothing_of_the_device(void **state)
{
	struct carving carving = {.n = SIZE_MAX / 2};
	struct device *device;
	void *memory = block;
	size_t bytes = 7;

	assert_int_equal(cpu_device_new(NULL, &device), 0);
	assert_int_equal(arena_alloc(device, carve_one, &carving, &memory, &bytes), -EOVERFLOW);
	assert_int_equal(carving.n_runs, 1);
	assert_ptr_equal(memory, block);
	assert_int_equal(bytes, 7);
	device->ops->free(device);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arena_counting_gives_no_memory),
		cmocka_unit_test(test_arena_block_of_the_counted_size_is_exactly_enough),
		cmocka_unit_test(test_arena_one_byte_less_fails_and_stays_failed),
		cmocka_unit_test(test_arena_product_overflow_fails_when_counting),
		cmocka_unit_test(test_arena_sum_overflow_fails_when_counting),
		cmocka_unit_test(test_arena_rounding_overflow_fails),
		cmocka_unit_test(test_arena_of_a_device_is_placed_as_it_was_counted),
		cmocka_unit_test(test_arena_that_overflows_takes_nothing_of_the_device),
	};

	return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
