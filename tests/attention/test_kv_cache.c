/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/kv_users.h"
#include "tests/device_memory.h"

#define PAGE_TOKENS 4u
#define N_PAGES 40u /* without the null page */

static struct device *device;

static const struct kv_config config = {
	.n_layers = 3, .n_kv_heads = 2, .head_dim = 8, .page_tokens = PAGE_TOKENS,
	.max_pages = 100000, .dtype = DTYPE_F32,
};

static struct kv_cache *cache_of(uint32_t n_pages)
{
	struct kv_cache *cache = NULL;

	assert_int_equal(kv_cache_new(device, &config, n_pages, &cache), 0);
	return cache;
}

static struct kv_table table_of(uint32_t capacity)
{
	struct kv_table table;

	assert_int_equal(kv_table_init(&table, capacity), 0);
	return table;
}

/* Extend where nothing is shared. */
static void extend(
	struct kv_cache *cache, struct kv_table *table, uint32_t n_tokens, uint32_t n_new)
{
	uint32_t copies[N_PAGES][2], n_copies = 99;

	assert_int_equal(kv_extend(cache, table, n_tokens, n_new, copies, &n_copies), 0);
	assert_int_equal(n_copies, 0);
}

/* ---- memory ---- */

static void test_page_bytes_are_k_and_v_of_all_layers(void **state)
{
	assert_int_equal(kv_layer_page_bytes(&config), 2 * 4 * 2 * 8 * 4);
	assert_int_equal(kv_page_bytes(&config), 3 * 2 * 4 * 2 * 8 * 4);
}

/* What a page is copied and counted by is half as large; everything else does not look inside. */
static void test_page_bytes_without_values_are_those_of_keys(void **state)
{
	struct kv_config keys = config;
	struct kv_cache *cache = NULL;

	keys.keys_only = true;
	assert_int_equal(kv_layer_page_bytes(&keys), 4 * 2 * 8 * 4);
	assert_int_equal(kv_page_bytes(&keys), 3 * 4 * 2 * 8 * 4);
	assert_int_equal(kv_cache_new(device, &keys, 8, &cache), 0);
	for (uint32_t layer = 0; layer < keys.n_layers; layer++)
		test_fill(device,
			(uint8_t *)kv_layer(cache, layer) + 8 * kv_layer_page_bytes(&keys), 1,
			kv_layer_page_bytes(&keys));
	kv_cache_free(cache);
}

static void test_map_adds_pages_where_they_are_expected(void **state)
{
	struct kv_cache *cache = cache_of(1);
	uint64_t bytes = kv_layer_page_bytes(&config);
	uint8_t *base = kv_layer(cache, 2);

	assert_int_equal(kv_cache_map(cache, 5000), 0);
	assert_int_equal(kv_pages_total(cache), 4999);
	assert_int_equal(kv_pages_free(cache), 4999);
	assert_ptr_equal(kv_layer(cache, 2), base);
	for (uint32_t layer = 0; layer < config.n_layers; layer++)
		test_fill(device, (uint8_t *)kv_layer(cache, layer) + 4999 * bytes, 1, bytes);
	assert_true(kv_users_match(cache, NULL, 0, NULL, 0));
	kv_cache_free(cache);
}

static void test_map_of_fewer_pages_changes_nothing(void **state)
{
	struct kv_cache *cache = cache_of(9);

	assert_int_equal(kv_cache_map(cache, 3), 0);
	assert_int_equal(kv_pages_total(cache), 9);
	assert_int_equal(kv_cache_map(cache, config.max_pages + 1), -EINVAL);
	assert_int_equal(kv_pages_total(cache), 9);
	kv_cache_free(cache);
}

static void test_map_works_after_lock(void **state)
{
	struct device *own = test_device_open(0);
	struct kv_cache *cache = NULL;

	assert_int_equal(kv_cache_new(own, &config, 1, &cache), 0);
	assert_int_equal(own->ops->lock(own), 0);
	assert_int_equal(kv_cache_map(cache, 1000), 0);
	assert_int_equal(kv_pages_free(cache), 999);
	kv_cache_free(cache);
	own->ops->free(own);
}

/* The device's own map, rationed, and filling what it mapped with NaNs. */
static const struct device_ops *real_ops;
static struct device_ops rationed_ops;
static int maps_left, n_unmaps;

static int rationed_map(struct device *d, void *range, size_t offset, size_t bytes)
{
	int rc;

	if (maps_left-- <= 0)
		return DEVICE_E_MEMORY;
	rc = real_ops->map(d, range, offset, bytes);
	if (rc == 0)
		test_fill(d, (uint8_t *)range + offset, 0xff, bytes);
	return rc;
}

static int counted_unmap(struct device *d, void *range, size_t offset, size_t bytes)
{
	n_unmaps++;
	return real_ops->unmap(d, range, offset, bytes);
}

static int ration_maps(void **state)
{
	real_ops = device->ops;
	rationed_ops = *real_ops;
	rationed_ops.map = rationed_map;
	rationed_ops.unmap = counted_unmap;
	device->ops = &rationed_ops;
	maps_left = n_unmaps = 0;
	return 0;
}

static int end_ration(void **state)
{
	device->ops = real_ops;
	return 0;
}

static void test_null_page_is_zero_in_every_layer(void **state)
{
	struct kv_cache *cache;

	maps_left = 1000;
	cache = cache_of(2);
	for (uint32_t layer = 0; layer < config.n_layers; layer++) {
		const size_t n = kv_layer_page_bytes(&config) / sizeof(float);
		float *page = test_fetch(device, kv_layer(cache, layer), (n + 1) * sizeof(float));

		for (size_t i = 0; i < n; i++)
			assert_true(page[i] == 0.0f);
		assert_true(isnan(page[n]));
		free(page);
	}
	kv_cache_free(cache);
}

static void test_map_that_fails_in_a_later_layer_changes_nothing(void **state)
{
	struct kv_cache *cache;

	maps_left = (int)config.n_layers;
	cache = cache_of(1);
	maps_left = 2;
	n_unmaps = 0;
	assert_int_equal(kv_cache_map(cache, 20000), DEVICE_E_MEMORY);
	assert_int_equal(n_unmaps, 2);
	assert_int_equal(kv_pages_total(cache), 1);
	assert_int_equal(kv_pages_free(cache), 1);
	maps_left = 3;
	assert_int_equal(kv_cache_map(cache, 20000), 0);
	assert_int_equal(kv_pages_free(cache), 19999);
	kv_cache_free(cache);
}

static void test_cache_that_cannot_map_is_not_made(void **state)
{
	struct kv_cache *cache = NULL;

	maps_left = 1;
	assert_int_equal(kv_cache_new(device, &config, 1, &cache), DEVICE_E_MEMORY);
	assert_null(cache);
}

static void test_impossible_configurations_are_refused(void **state)
{
	struct kv_cache *cache = NULL;
	struct kv_config bad = config;

	assert_int_equal(kv_cache_new(device, &bad, bad.max_pages, &cache), -EINVAL);
	bad.page_tokens = 0;
	assert_int_equal(kv_cache_new(device, &bad, 1, &cache), -EINVAL);
	bad = config;
	bad.head_dim = bad.n_kv_heads = bad.page_tokens = UINT32_MAX;
	assert_int_equal(kv_cache_new(device, &bad, 1, &cache), -EINVAL);
	assert_null(cache);
}

/* ---- a cache of N_PAGES, and empty tables ---- */

static struct kv_cache *cache;
static struct kv_table parent, child, other;

static int make_tables(void **state)
{
	cache = cache_of(N_PAGES);
	parent = table_of(N_PAGES);
	child = table_of(N_PAGES);
	other = table_of(N_PAGES);
	return 0;
}

static int free_tables(void **state)
{
	kv_table_deinit(&other);
	kv_table_deinit(&child);
	kv_table_deinit(&parent);
	kv_cache_free(cache);
	return 0;
}

/* ---- pages ---- */

static void test_null_page_is_never_given_out(void **state)
{
	extend(cache, &parent, 0, N_PAGES * PAGE_TOKENS);
	assert_int_equal(kv_pages_free(cache), 0);
	for (uint32_t i = 0; i < parent.n_pages; i++)
		assert_int_not_equal(parent.pages[i], 0);
	kv_release(cache, parent.pages, parent.n_pages);
}

static void test_pages_are_given_in_order_and_last_freed_first(void **state)
{
	extend(cache, &parent, 0, 3 * PAGE_TOKENS);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(parent.pages[i], i + 1);
	for (uint32_t i = 0; i < 3; i++)
		kv_release(cache, &parent.pages[i], 1);
	extend(cache, &child, 0, 4 * PAGE_TOKENS);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(child.pages[i], 3 - i);
	assert_int_equal(child.pages[3], 4);
}

static void test_extend_takes_pages_only_at_their_edges(void **state)
{
	assert_int_equal(kv_pages_needed(cache, &parent, 0, 0), 0);
	assert_int_equal(kv_pages_needed(cache, &parent, 0, 1), 1);
	assert_int_equal(kv_pages_needed(cache, &parent, 0, PAGE_TOKENS + 1), 2);
	extend(cache, &parent, 0, 1);
	for (uint32_t n = 1; n < PAGE_TOKENS; n++) {
		assert_int_equal(kv_pages_needed(cache, &parent, n, 1), 0);
		extend(cache, &parent, n, 1);
	}
	assert_int_equal(parent.n_pages, 1);
	extend(cache, &parent, PAGE_TOKENS, 1);
	assert_int_equal(parent.n_pages, 2);
}

static void test_extend_without_room_changes_nothing(void **state)
{
	uint32_t copies[8][2], n_copies = 77;

	extend(cache, &other, 0, (N_PAGES - 3) * PAGE_TOKENS);
	extend(cache, &parent, 0, 2 * PAGE_TOKENS - 1);
	assert_int_equal(kv_fork(cache, &parent, 2 * PAGE_TOKENS - 1, &child), 0);
	/* one copy and one new page; there is one page */
	assert_int_equal(kv_pages_needed(cache, &child, 2 * PAGE_TOKENS - 1, 2), 2);
	assert_int_equal(
		kv_extend(cache, &child, 2 * PAGE_TOKENS - 1, 2, copies, &n_copies), -ENOSPC);
	assert_int_equal(n_copies, 77);
	assert_int_equal(child.n_pages, 2);
	assert_memory_equal(child.pages, parent.pages, 2 * sizeof(*child.pages));
	assert_int_equal(kv_pages_free(cache), 1);
	assert_true(kv_users_match(
		cache, (const struct kv_table *const[]){&parent, &child, &other}, 3, NULL, 0));
}

static void test_extend_past_capacity_is_refused(void **state)
{
	parent.capacity = 2;
	uint32_t copies[8][2], n_copies;

	assert_int_equal(
		kv_extend(cache, &parent, 0, 2 * PAGE_TOKENS + 1, copies, &n_copies), -ENOSPC);
	assert_int_equal(
		kv_extend(cache, &parent, 0, UINT32_MAX, copies, &n_copies), -ENOSPC);
	assert_int_equal(parent.n_pages, 0);
	assert_int_equal(kv_pages_free(cache), N_PAGES);
}

static void test_extend_of_history_that_is_not_there_is_refused(void **state)
{
	uint32_t copies[8][2], n_copies;

	assert_int_equal(kv_extend(cache, &parent, 1, 1, copies, &n_copies), -EINVAL);
	assert_int_equal(kv_pages_free(cache), N_PAGES);
}

/* ---- sharing ---- */

static void test_fork_shares_pages_of_its_tokens_only(void **state)
{
	extend(cache, &parent, 0, 3 * PAGE_TOKENS);
	assert_int_equal(kv_fork(cache, &parent, PAGE_TOKENS + 1, &child), 0);
	assert_int_equal(child.n_pages, 2);
	assert_int_equal(kv_references(cache, parent.pages[0]), 2);
	assert_int_equal(kv_references(cache, parent.pages[1]), 2);
	assert_int_equal(kv_references(cache, parent.pages[2]), 1);
	assert_int_equal(kv_pages_free(cache), N_PAGES - 3);
}

static void test_fork_that_cannot_be_changes_nothing(void **state)
{
	struct kv_table small = {.pages = child.pages, .capacity = 1};

	extend(cache, &parent, 0, 2 * PAGE_TOKENS);
	extend(cache, &other, 0, 1);
	assert_int_equal(kv_fork(cache, &parent, PAGE_TOKENS + 1, &small), -ENOSPC);
	assert_int_equal(kv_fork(cache, &parent, 2 * PAGE_TOKENS + 1, &small), -EINVAL);
	assert_int_equal(kv_fork(cache, &parent, 1, &other), -EINVAL);
	assert_int_equal(small.n_pages, 0);
	assert_true(kv_users_match(
		cache, (const struct kv_table *const[]){ &parent, &other }, 2, NULL, 0));
}

static void test_first_writer_into_a_shared_page_gets_a_copy(void **state)
{
	uint32_t copies[8][2], n_copies = 0, shared;

	extend(cache, &parent, 0, PAGE_TOKENS + 2);
	assert_int_equal(kv_fork(cache, &parent, PAGE_TOKENS + 2, &child), 0);
	shared = parent.pages[1];
	assert_int_equal(kv_pages_needed(cache, &child, PAGE_TOKENS + 2, 1), 1);
	assert_int_equal(kv_extend(cache, &child, PAGE_TOKENS + 2, 1, copies, &n_copies), 0);
	assert_int_equal(n_copies, 1);
	assert_int_equal(copies[0][0], shared);
	assert_int_equal(copies[0][1], child.pages[1]);
	assert_int_not_equal(child.pages[1], shared);
	assert_int_equal(parent.pages[1], shared);
	assert_int_equal(child.pages[0], parent.pages[0]);
	/* the source stays until the copying step has completed */
	assert_int_equal(kv_references(cache, shared), 2);
	kv_release(cache, &copies[0][0], 1);
	assert_int_equal(kv_references(cache, shared), 1);
	extend(cache, &parent, PAGE_TOKENS + 2, 1);
}

static void test_rewriting_after_truncation_copies_every_shared_page(void **state)
{
	uint32_t copies[8][2], n_copies = 0;

	extend(cache, &parent, 0, 4 * PAGE_TOKENS);
	assert_int_equal(kv_fork(cache, &parent, 4 * PAGE_TOKENS, &child), 0);
	assert_int_equal(kv_pages_needed(cache, &child, 1, 3 * PAGE_TOKENS), 4);
	assert_int_equal(kv_extend(cache, &child, 1, 3 * PAGE_TOKENS, copies, &n_copies), 0);
	assert_int_equal(n_copies, 4);
	for (uint32_t i = 0; i < n_copies; i++) {
		assert_int_equal(copies[i][0], parent.pages[i]);
		assert_int_equal(copies[i][1], child.pages[i]);
	}
}

static void test_pages_copied_before_are_not_copied_again(void **state)
{
	uint32_t copies[8][2], n_copies = 0, own;

	extend(cache, &parent, 0, 3 * PAGE_TOKENS);
	assert_int_equal(kv_fork(cache, &parent, 3 * PAGE_TOKENS, &child), 0);
	assert_int_equal(kv_extend(cache, &child, 0, 1, copies, &n_copies), 0);
	assert_int_equal(n_copies, 1);
	own = child.pages[0];
	assert_int_equal(kv_extend(cache, &child, 0, 3 * PAGE_TOKENS, copies, &n_copies), 0);
	assert_int_equal(n_copies, 2);
	assert_int_equal(copies[0][0], parent.pages[1]);
	assert_int_equal(copies[1][0], parent.pages[2]);
	assert_int_equal(child.pages[0], own);
}

static void test_truncated_pages_stay_until_released(void **state)
{
	uint32_t dropped[8];

	extend(cache, &parent, 0, 4 * PAGE_TOKENS);
	assert_int_equal(kv_truncate(cache, &parent, PAGE_TOKENS + 1, dropped), 2);
	assert_int_equal(parent.n_pages, 2);
	assert_int_equal(kv_pages_free(cache), N_PAGES - 4);
	kv_release(cache, dropped, 2);
	assert_int_equal(kv_pages_free(cache), N_PAGES - 2);
	assert_int_equal(kv_truncate(cache, &parent, 2 * PAGE_TOKENS, dropped), 0);
	assert_int_equal(kv_truncate(cache, &parent, 0, dropped), 2);
}

/* ---- */

static int open_device(void **state)
{
	device = test_device_open(0);
	return 0;
}

static int close_device(void **state)
{
	device->ops->free(device);
	return 0;
}

#define WITH_TABLES(test) cmocka_unit_test_setup_teardown(test, make_tables, free_tables)
#define RATIONED(test) cmocka_unit_test_setup_teardown(test, ration_maps, end_ration)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_page_bytes_are_k_and_v_of_all_layers),
		cmocka_unit_test(test_page_bytes_without_values_are_those_of_keys),
		cmocka_unit_test(test_map_adds_pages_where_they_are_expected),
		cmocka_unit_test(test_map_of_fewer_pages_changes_nothing),
		cmocka_unit_test(test_map_works_after_lock),
		RATIONED(test_null_page_is_zero_in_every_layer),
		RATIONED(test_map_that_fails_in_a_later_layer_changes_nothing),
		RATIONED(test_cache_that_cannot_map_is_not_made),
		cmocka_unit_test(test_impossible_configurations_are_refused),
		WITH_TABLES(test_null_page_is_never_given_out),
		WITH_TABLES(test_pages_are_given_in_order_and_last_freed_first),
		WITH_TABLES(test_extend_takes_pages_only_at_their_edges),
		WITH_TABLES(test_extend_without_room_changes_nothing),
		WITH_TABLES(test_extend_past_capacity_is_refused),
		WITH_TABLES(test_extend_of_history_that_is_not_there_is_refused),
		WITH_TABLES(test_fork_shares_pages_of_its_tokens_only),
		WITH_TABLES(test_fork_that_cannot_be_changes_nothing),
		WITH_TABLES(test_first_writer_into_a_shared_page_gets_a_copy),
		WITH_TABLES(test_rewriting_after_truncation_copies_every_shared_page),
		WITH_TABLES(test_pages_copied_before_are_not_copied_again),
		WITH_TABLES(test_truncated_pages_stay_until_released),
	};

	return cmocka_run_group_tests_name("kv cache", tests, open_device, close_device);
}
