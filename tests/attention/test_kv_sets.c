/* SPDX-License-Identifier: MIT */
/* Pages of sets of layers, and which of them leave a window. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "attention/kv_cache.h"
#include "tests/device_memory.h"

#define PAGE 4u
#define WINDOW 8u
#define N_PAGES 400u
#define CAPACITY 64u
#define SALT 5u
#define N_IDS (CAPACITY * PAGE)

/* One set without a window and two with it, whose next 12 tokens have pages. */
static const struct kv_config config = {
	.n_layers = 2, .n_kv_heads = 1, .head_dim = 8, .page_tokens = PAGE, .n_sets = 3, .n_full_sets = 1,
	.window = WINDOW, .near_tokens = 12, .max_pages = N_PAGES + 1, .dtype = DTYPE_F32, .prefix_cache = true,
};

static struct device *device;
static struct kv_cache *cache;
static struct kv_table one, two;
static int32_t ids[N_IDS];

static void make_cache(const struct kv_config *of)
{
	assert_int_equal(kv_cache_new(device, of, N_PAGES, &cache), 0);
	assert_int_equal(kv_table_init(&one, CAPACITY), 0);
	assert_int_equal(kv_table_init(&two, CAPACITY), 0);
	for (uint32_t i = 0; i < N_IDS; i++)
		ids[i] = 100 + (int32_t)i;
}

static int make_tables(void **state)
{
	make_cache(&config);
	return 0;
}

/* One set, whose layers all have a window. */
static int make_windows_alone(void **state)
{
	struct kv_config windows = config;

	windows.n_sets = 1;
	windows.n_full_sets = 0;
	make_cache(&windows);
	return 0;
}

static int free_tables(void **state)
{
	kv_clear(cache, &one);
	kv_clear(cache, &two);
	assert_int_equal(kv_pages_free(cache), N_PAGES);
	kv_check(cache);
	kv_table_deinit(&two);
	kv_table_deinit(&one);
	kv_cache_free(cache);
	return 0;
}

static uint32_t extend(struct kv_table *table, uint32_t n_tokens, uint32_t n_new)
{
	uint32_t copies[N_PAGES][2], n_copies = 99;

	assert_int_equal(kv_extend(cache, table, n_tokens, n_new, copies, &n_copies), 0);
	return n_copies;
}

/* Compute n tokens from an empty table on, step by step, as the engine does. */
static void compute(struct kv_table *table, uint32_t n)
{
	extend(table, 0, n);
	for (uint32_t at = 0; at < n; at += 12) {
		const uint32_t step = n - at < 12 ? n - at : 12;

		extend(table, at, step);
		kv_prefix_add(cache, table, SALT, ids, at + step);
		kv_leave_window(cache, table, at + step);
	}
}

static void assert_ranges(const struct kv_table *table, uint32_t n_pages, uint32_t first, uint32_t end)
{
	const struct kv_range full = kv_table_range(cache, table, 0), near = kv_table_range(cache, table, 2);

	assert_int_equal(full.first, 0);
	assert_int_equal(full.end, n_pages);
	assert_int_equal(near.first, first);
	assert_int_equal(near.end, end);
	assert_int_equal(kv_table_held(cache, table), n_pages + 2 * (end - first));
}

/* ---- division ---- */

struct division {
	const char *windows; /* a character a layer: 'f' none, 'w' 100, 'l' 100000 */
	uint32_t n, n_full, n_layers;
};

static const struct division divisions[] = {
	{"ffff", 1, 1, 4},
	{"llll", 1, 1, 4}, /* longer than any sequence */
	{"wwww", 1, 0, 4},
	{"wfwf", 2, 1, 2},
	{"wwwwwf", 6, 1, 1},
	{"wwwwwfwwwwwf", 6, 1, 2},
	{"fffffw", 6, 5, 1},
	{"wwwwwfwwww", 6, 1, 2}, /* one layer a page would take 10 sets */
	{"wffff", 5, 4, 1},
};

static void test_layers_are_divided_into_few_sets_of_one_size(void **state)
{
	for (size_t d = 0; d < sizeof(divisions) / sizeof(divisions[0]); d++) {
		const char *kinds = divisions[d].windows;
		const uint32_t n_layers = (uint32_t)strlen(kinds);
		uint32_t windows[16], used[KV_SETS_MAX][16] = {{0}};
		struct kv_sets sets;

		for (uint32_t i = 0; i < n_layers; i++)
			windows[i] = kinds[i] == 'f' ? 0 : kinds[i] == 'w' ? 100 : 100000;
		kv_sets_divide(windows, n_layers, 1000, 16, &sets);
		assert_int_equal(sets.n, divisions[d].n);
		assert_int_equal(sets.n_full, divisions[d].n_full);
		assert_int_equal(sets.n_layers, divisions[d].n_layers);
		assert_int_equal(sets.window, strchr(kinds, 'w') ? 100 : 0);
		for (uint32_t i = 0; i < n_layers; i++) {
			assert_in_range(sets.place[i], 0, sets.n_layers - 1);
			assert_int_equal(used[sets.set[i]][sets.place[i]]++, 0);
			assert_int_equal(sets.set[i] >= sets.n_full, kinds[i] == 'w');
		}
	}
}

/* ---- taking and giving back ---- */

static void test_sets_with_a_window_get_pages_of_the_next_tokens_alone(void **state)
{
	assert_int_equal(kv_pages_needed(cache, &one, 0, 40), 10 + 2 * 3);
	extend(&one, 0, 40);
	assert_ranges(&one, 10, 0, 3);
	assert_int_equal(kv_pages_needed(cache, &one, 12, 28), 2 * 3);
	extend(&one, 12, 12);
	assert_ranges(&one, 10, 0, 6);
}

static void test_pages_are_given_back_when_no_token_sees_them(void **state)
{
	/* token 84 sees 77 ... 84; with the slack from 13 on, which is in page 3 */
	compute(&one, 84);
	assert_ranges(&one, 21, 3, 21);
	assert_int_equal(kv_leave_window(cache, &one, 86), 0);
	assert_int_equal(kv_leave_window(cache, &one, 87), 2);
	assert_ranges(&one, 21, 4, 21);
	assert_true(kv_table_serves(cache, &one, 84));
	assert_true(kv_table_serves(cache, &one, 84 - KV_WINDOW_SLACK + 3));
	assert_false(kv_table_serves(cache, &one, 22));
}

static void test_table_that_keeps_its_pages_gets_all_and_gives_none_back(void **state)
{
	one.keeps = true;
	assert_int_equal(kv_pages_needed(cache, &one, 0, 100), 3 * 25);
	extend(&one, 0, 100);
	assert_int_equal(kv_leave_window(cache, &one, 100), 0);
	assert_ranges(&one, 25, 0, 25);
	one.keeps = false;
}

static void test_fork_shares_what_the_parent_has(void **state)
{
	compute(&one, 90);
	assert_int_equal(kv_fork(cache, &one, 90, &two), 0);
	assert_ranges(&two, 23, 4, 23);
	/* one shared page of each set is written */
	assert_int_equal(extend(&two, 90, 1), 3);
	for (uint32_t set = 0; set < 3; set++) {
		assert_int_equal(kv_table_pages(&one, set)[21], kv_table_pages(&two, set)[21]);
		assert_int_not_equal(kv_table_pages(&one, set)[22], kv_table_pages(&two, set)[22]);
		/* the copies' sources */
		kv_release(cache, &kv_table_pages(&one, set)[22], 1);
	}
	kv_clear(cache, &two);
	assert_int_equal(kv_fork(cache, &one, 20, &two), -EINVAL);
}

static void test_truncation_drops_pages_of_all_sets(void **state)
{
	uint32_t dropped[3 * CAPACITY], n;

	compute(&one, 90);
	n = kv_truncate(cache, &one, 81, dropped);
	assert_int_equal(n, 3 * 2);
	kv_release(cache, dropped, n);
	assert_ranges(&one, 21, 4, 21);
	n = kv_truncate(cache, &one, 8, dropped);
	assert_int_equal(n, 19 + 2 * 17);
	kv_release(cache, dropped, n);
	assert_ranges(&one, 2, 2, 2);
}

/* ---- the prefix cache ---- */

static void test_prefix_has_the_pages_of_its_window_alone(void **state)
{
	compute(&one, 120);
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, 110), 27);
	/* token 108 sees 101 ... 108 */
	assert_ranges(&two, 27, 25, 27);
	for (uint32_t set = 0; set < 3; set++)
		assert_int_equal(kv_table_pages(&two, set)[26], kv_table_pages(&one, set)[26]);
}

static void test_prefix_whose_window_was_evicted_is_shorter(void **state)
{
	struct kv_table other;

	assert_int_equal(kv_table_init(&other, CAPACITY), 0);
	compute(&one, 120);
	/* pages that have left the window are unused, the earliest for longest: 40 of them go */
	while (kv_prefix_pages_unused(cache) > 14)
		kv_prefix_drop(cache, 1);
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, 120), 30);
	assert_int_equal(kv_prefix_take(cache, &other, SALT, ids, 12), 0);
	kv_table_deinit(&other);
}

/* The chain of windows alone begins with the first page, too. */
static void test_prefix_of_windows_alone_has_the_pages_of_its_window_alone(void **state)
{
	compute(&one, 120);
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, 110), 27);
	/* token 108 sees 101 ... 108 */
	assert_int_equal(two.first, 25);
	assert_int_equal(kv_table_held(cache, &two), 2);
	assert_int_equal(kv_table_pages(&two, 0)[26], kv_table_pages(&one, 0)[26]);
}

static void test_prefix_of_windows_alone_ends_at_the_first_page_that_was_evicted(void **state)
{
	compute(&one, 120);
	kv_prefix_drop(cache, 1); /* page 2: it was given back first, together with those before it */
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, 120), 2);
}

static void test_window_pages_of_other_tokens_are_not_found(void **state)
{
	compute(&one, 40);
	ids[5]++;
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, 40), 1);
	ids[5]--;
}

/* ---- sizes ---- */

static void test_most_pages_of_a_sequence_do_not_grow_behind_its_window(void **state)
{
	const uint32_t seen = (WINDOW + KV_WINDOW_SLACK + 3 * 12) / PAGE + 2;
	struct kv_config at_once = config;

	at_once.near_tokens = 0;
	assert_int_equal(kv_pages_in_all(&config, 40, false), 3 * 10);
	assert_int_equal(kv_pages_in_all(&config, 4000, false), 1000 + 2 * seen);
	assert_int_equal(kv_pages_in_all(&config, 4000, true), 3000);
	assert_int_equal(kv_pages_in_all(&at_once, 4000, false), 3000);
	assert_int_equal(kv_tokens_within(&config, 1000 + 2 * seen, 100000), 4000);
	assert_int_equal(kv_tokens_within(&config, 30, 100000), 40);
	assert_int_equal(kv_tokens_within(&config, 30, 17), 17);
}

#define TABLES(test) cmocka_unit_test_setup_teardown(test, make_tables, free_tables)
#define WINDOWS(test) cmocka_unit_test_setup_teardown(test, make_windows_alone, free_tables)

static int group_setup(void **state)
{
	struct device_options options = {.spin_us = 0};

	return device_open("cpu", &options, &device);
}

static int group_teardown(void **state)
{
	device->ops->free(device);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layers_are_divided_into_few_sets_of_one_size),
		TABLES(test_sets_with_a_window_get_pages_of_the_next_tokens_alone),
		TABLES(test_pages_are_given_back_when_no_token_sees_them),
		TABLES(test_table_that_keeps_its_pages_gets_all_and_gives_none_back),
		TABLES(test_fork_shares_what_the_parent_has),
		TABLES(test_truncation_drops_pages_of_all_sets),
		TABLES(test_prefix_has_the_pages_of_its_window_alone),
		TABLES(test_prefix_whose_window_was_evicted_is_shorter),
		WINDOWS(test_prefix_of_windows_alone_has_the_pages_of_its_window_alone),
		WINDOWS(test_prefix_of_windows_alone_ends_at_the_first_page_that_was_evicted),
		TABLES(test_window_pages_of_other_tokens_are_not_found),
		cmocka_unit_test(test_most_pages_of_a_sequence_do_not_grow_behind_its_window),
	};

	return cmocka_run_group_tests_name("kv sets", tests, group_setup, group_teardown);
}
