/* SPDX-License-Identifier: MIT */
/* The index by itself, with a hash that is the same for all keys. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "attention/prefix_cache.h"

#define PAGE_TOKENS 4u
#define N_PAGES 9u /* the null page counted in */

static struct prefix_cache *prefix;

static uint64_t same_hash(uint64_t parent, uint64_t salt, const int32_t *ids, uint32_t n)
{
	return 7;
}

static int make_index(void **state)
{
	return prefix_cache_new(N_PAGES, PAGE_TOKENS, same_hash, &prefix);
}

static int free_index(void **state)
{
	prefix_cache_free(prefix);
	return 0;
}

static uint64_t add(uint32_t page, uint64_t parent, uint64_t salt, const int32_t *ids)
{
	struct prefix_key key = prefix_cache_key(prefix, parent, salt, ids);

	return prefix_cache_add(prefix, page, &key);
}

static uint32_t find(uint64_t parent, uint64_t salt, const int32_t *ids)
{
	struct prefix_key key = prefix_cache_key(prefix, parent, salt, ids);

	return prefix_cache_find(prefix, &key);
}

static void test_ids_of_one_hash_are_told_apart(void **state)
{
	const int32_t ids[3][PAGE_TOKENS] = {{1, 2, 3, 4}, {1, 2, 3, 5}, {0, 2, 3, 4}};

	add(1, 0, 0, ids[0]);
	assert_int_equal(find(0, 0, ids[1]), 0);
	add(2, 0, 0, ids[1]);
	assert_int_equal(find(0, 0, ids[0]), 1);
	assert_int_equal(find(0, 0, ids[1]), 2);
	assert_int_equal(find(0, 0, ids[2]), 0);
}

static void test_parents_and_salts_of_one_hash_are_told_apart(void **state)
{
	const int32_t ids[PAGE_TOKENS] = {1, 2, 3, 4};
	uint64_t first = add(1, 0, 0, ids), second = add(2, first, 0, ids);

	add(3, 0, 9, ids);
	assert_int_equal(find(0, 0, ids), 1);
	assert_int_equal(find(first, 0, ids), 2);
	assert_int_equal(find(second, 0, ids), 0);
	assert_int_equal(find(0, 9, ids), 3);
	assert_int_equal(find(first, 9, ids), 0);
}

static void test_pages_leave_any_place_of_a_bucket(void **state)
{
	for (uint32_t gone = 1; gone < 5; gone++) {
		int32_t ids[PAGE_TOKENS] = {0};

		for (uint32_t page = 1; page < 5; page++) {
			ids[0] = (int32_t)page;
			add(page, 0, 0, ids);
		}
		prefix_cache_remove(prefix, gone);
		prefix_cache_check(prefix, N_PAGES);
		for (uint32_t page = 1; page < 5; page++) {
			ids[0] = (int32_t)page;
			assert_int_equal(find(0, 0, ids), page == gone ? 0 : page);
			if (page != gone)
				prefix_cache_remove(prefix, page);
		}
		prefix_cache_check(prefix, N_PAGES);
	}
}

static void test_page_registered_again_has_another_serial(void **state)
{
	const int32_t ids[PAGE_TOKENS] = {1, 2, 3, 4};
	uint64_t before = add(1, 0, 0, ids);

	prefix_cache_remove(prefix, 1);
	assert_int_equal(prefix_cache_serial(prefix, 1), 0);
	assert_true(add(1, 0, 0, ids) > before);
}

static void test_first_and_last_page_can_be_registered(void **state)
{
	const int32_t ids[2][PAGE_TOKENS] = {{1, 2, 3, 4}, {5, 6, 7, 8}};

	add(1, 0, 0, ids[0]);
	add(N_PAGES - 1, 0, 0, ids[1]);
	assert_true(prefix_cache_holds(prefix, 1, ids[0]));
	assert_true(prefix_cache_holds(prefix, N_PAGES - 1, ids[1]));
	assert_false(prefix_cache_holds(prefix, N_PAGES - 1, ids[0]));
}

#define WITH_INDEX(test) cmocka_unit_test_setup_teardown(test, make_index, free_index)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_INDEX(test_ids_of_one_hash_are_told_apart),
		WITH_INDEX(test_parents_and_salts_of_one_hash_are_told_apart),
		WITH_INDEX(test_pages_leave_any_place_of_a_bucket),
		WITH_INDEX(test_page_registered_again_has_another_serial),
		WITH_INDEX(test_first_and_last_page_can_be_registered),
	};

	return cmocka_run_group_tests_name("prefix index", tests, NULL, NULL);
}
