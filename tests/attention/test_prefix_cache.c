/* SPDX-License-Identifier: MIT */
/* Pages that are found again by the tokens they hold. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/allocations.h"
#include "tests/attention/kv_users.h"
#include "tests/device_memory.h"

#define PAGE_TOKENS 4u
#define N_PAGES 12u /* without the null page */
#define N_IDS (3 * PAGE_TOKENS)
#define SALT 5u

static const struct kv_config config = {
	.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_tokens = PAGE_TOKENS,
	.max_pages = 100, .dtype = DTYPE_F32, .prefix_cache = true,
};

static struct device *device;
static struct kv_cache *cache;
static struct kv_table one, two, three;
static int32_t ids[N_IDS]; /* 100, 101, ... */

static int make_tables(void **state)
{
	assert_int_equal(kv_cache_new(device, &config, N_PAGES, &cache), 0);
	assert_int_equal(kv_table_init(&one, N_PAGES), 0);
	assert_int_equal(kv_table_init(&two, N_PAGES), 0);
	assert_int_equal(kv_table_init(&three, N_PAGES), 0);
	for (uint32_t i = 0; i < N_IDS; i++)
		ids[i] = 100 + (int32_t)i;
	return 0;
}

static int free_tables(void **state)
{
	kv_check(cache);
	kv_table_deinit(&three);
	kv_table_deinit(&two);
	kv_table_deinit(&one);
	kv_cache_free(cache);
	return 0;
}

/* Extend where nothing is shared. */
static void extend(struct kv_table *table, uint32_t n_tokens, uint32_t n_new)
{
	uint32_t copies[N_PAGES][2], n_copies = 99;

	assert_int_equal(kv_extend(cache, table, n_tokens, n_new, copies, &n_copies), 0);
	assert_int_equal(n_copies, 0);
}

/* Write n tokens into an empty table that takes nothing, and register them. */
static void compute(struct kv_table *table, uint64_t salt, const int32_t *tokens, uint32_t n)
{
	extend(table, 0, n);
	kv_prefix_add(cache, table, salt, tokens, n);
}

/* A chain that is registered and unused. */
static void leave(uint64_t salt, const int32_t *tokens, uint32_t n)
{
	struct kv_table table;

	assert_int_equal(kv_table_init(&table, N_PAGES), 0);
	compute(&table, salt, tokens, n);
	kv_clear(cache, &table);
	kv_table_deinit(&table);
}

/* How many pages would be taken. Their place among the unused ones changes. */
static uint32_t hits(uint64_t salt, const int32_t *tokens, uint32_t n)
{
	struct kv_table table;
	uint32_t taken;

	assert_int_equal(kv_table_init(&table, N_PAGES), 0);
	taken = kv_prefix_take(cache, &table, salt, tokens, n);
	assert_int_equal(table.n_pages, taken);
	assert_int_equal(table.n_chained, taken);
	kv_clear(cache, &table);
	kv_table_deinit(&table);
	return taken;
}

/* Take this many pages from the free and unused ones. */
static void occupy(struct kv_table *table, uint32_t n_pages)
{
	extend(table, table->n_pages * PAGE_TOKENS, n_pages * PAGE_TOKENS);
}

/* ---- hits ---- */

static void test_pages_are_hit_after_their_release(void **state)
{
	uint32_t pages[3];

	compute(&one, SALT, ids, N_IDS);
	memcpy(pages, one.pages, sizeof(pages));
	kv_clear(cache, &one);
	assert_int_equal(kv_prefix_pages_unused(cache), 3);
	assert_int_equal(kv_pages_free(cache), N_PAGES);
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, N_IDS), 3);
	assert_memory_equal(two.pages, pages, sizeof(pages));
	assert_int_equal(kv_prefix_pages_unused(cache), 0);
	assert_int_equal(kv_pages_free(cache), N_PAGES - 3);
}

static void test_pages_in_use_are_hit_and_shared(void **state)
{
	compute(&one, SALT, ids, N_IDS);
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, N_IDS), 3);
	assert_memory_equal(two.pages, one.pages, 3 * sizeof(*one.pages));
	assert_int_equal(kv_references(cache, one.pages[0]), 2);
	assert_int_equal(kv_pages_free(cache), N_PAGES - 3);
}

static void test_no_page_is_hit_across_salts(void **state)
{
	leave(SALT, ids, N_IDS);
	assert_int_equal(hits(SALT + 1, ids, N_IDS), 0);
	assert_int_equal(hits(SALT, ids, N_IDS), 3);
}

static void test_no_page_is_hit_from_the_first_different_id_on(void **state)
{
	leave(SALT, ids, N_IDS);
	for (uint32_t i = 0; i < N_IDS; i++) {
		ids[i]++;
		assert_int_equal(hits(SALT, ids, N_IDS), i / PAGE_TOKENS);
		ids[i]--;
	}
}

static void test_equal_ids_at_another_place_are_not_hit(void **state)
{
	leave(SALT, ids, N_IDS);
	assert_int_equal(hits(SALT, ids + PAGE_TOKENS, PAGE_TOKENS), 0);
}

static void test_only_whole_pages_are_registered_and_hit(void **state)
{
	leave(SALT, ids, 2 * PAGE_TOKENS - 1);
	assert_int_equal(kv_prefix_pages_unused(cache), 1);
	assert_int_equal(hits(SALT, ids, N_IDS), 1);
	leave(SALT + 1, ids, N_IDS);
	assert_int_equal(hits(SALT + 1, ids, 2 * PAGE_TOKENS - 1), 1);
	assert_int_equal(hits(SALT + 1, ids, PAGE_TOKENS - 1), 0);
}

static void test_no_more_pages_are_hit_than_a_table_holds(void **state)
{
	leave(SALT, ids, N_IDS);
	two.capacity = 2;
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, N_IDS), 2);
}

static void test_a_chain_grows_where_it_was_taken(void **state)
{
	leave(SALT, ids, PAGE_TOKENS);
	assert_int_equal(kv_prefix_take(cache, &one, SALT, ids, N_IDS), 1);
	extend(&one, PAGE_TOKENS, N_IDS - PAGE_TOKENS);
	kv_prefix_add(cache, &one, SALT, ids, 2 * PAGE_TOKENS);
	assert_int_equal(one.n_chained, 2);
	kv_prefix_add(cache, &one, SALT, ids, N_IDS);
	assert_int_equal(one.n_chained, 3);
	assert_int_equal(hits(SALT, ids, N_IDS), 3);
}

/* ---- eviction ---- */

static void test_free_pages_are_given_before_unused_ones(void **state)
{
	leave(SALT, ids, N_IDS);
	occupy(&one, N_PAGES - 3);
	assert_int_equal(kv_prefix_pages_unused(cache), 3);
	occupy(&one, 1);
	assert_int_equal(kv_prefix_pages_unused(cache), 2);
}

static void test_a_chain_is_evicted_from_its_end(void **state)
{
	leave(SALT, ids, N_IDS);
	occupy(&one, N_PAGES - 3);
	for (uint32_t left = 3; left-- > 0;) {
		occupy(&one, 1);
		assert_int_equal(kv_prefix_pages_unused(cache), left);
		assert_int_equal(hits(SALT, ids, N_IDS), left);
	}
}

static void test_truncated_pages_are_evicted_from_their_end(void **state)
{
	uint32_t dropped[N_PAGES], n;

	compute(&one, SALT, ids, N_IDS);
	n = kv_truncate(cache, &one, PAGE_TOKENS, dropped);
	assert_int_equal(n, 2);
	kv_release(cache, dropped, n);
	occupy(&two, N_PAGES - 2);
	assert_int_equal(hits(SALT, ids, N_IDS), 2);
}

static void test_the_page_unused_for_longest_is_evicted(void **state)
{
	for (uint32_t i = 0; i < 3; i++)
		leave(SALT, ids + i * PAGE_TOKENS, PAGE_TOKENS);
	/* used again: the order is 1, 2, 0 */
	assert_int_equal(hits(SALT, ids, PAGE_TOKENS), 1);
	occupy(&one, N_PAGES - 3 + 1);
	assert_int_equal(hits(SALT, ids + PAGE_TOKENS, PAGE_TOKENS), 0);
	occupy(&one, 1);
	assert_int_equal(hits(SALT, ids + 2 * PAGE_TOKENS, PAGE_TOKENS), 0);
	assert_int_equal(hits(SALT, ids, PAGE_TOKENS), 1);
}

static void test_pages_in_use_are_never_evicted(void **state)
{
	uint32_t copies[N_PAGES][2], n_copies;

	leave(SALT, ids, N_IDS);
	assert_int_equal(kv_prefix_take(cache, &one, SALT, ids, N_IDS), 3);
	occupy(&two, N_PAGES - 3);
	assert_int_equal(kv_extend(cache, &three, 0, 1, copies, &n_copies), -ENOSPC);
	assert_int_equal(hits(SALT, ids, N_IDS), 3);
}

static void test_nothing_is_evicted_for_what_does_not_fit(void **state)
{
	uint32_t copies[N_PAGES][2], n_copies;

	leave(SALT, ids, N_IDS);
	occupy(&one, N_PAGES - 4);
	assert_int_equal(kv_extend(cache, &two, 0, 5 * PAGE_TOKENS, copies, &n_copies), -ENOSPC);
	assert_int_equal(kv_prefix_pages_unused(cache), 3);
	assert_int_equal(hits(SALT, ids, N_IDS), 3);
}

static void test_dropped_pages_are_free_and_those_in_use_stay(void **state)
{
	leave(SALT, ids, N_IDS);
	assert_int_equal(kv_prefix_take(cache, &one, SALT, ids, PAGE_TOKENS), 1);
	kv_prefix_drop(cache, UINT32_MAX);
	assert_int_equal(kv_prefix_pages_unused(cache), 0);
	assert_int_equal(kv_pages_free(cache), N_PAGES - 1);
	assert_int_equal(hits(SALT, ids, N_IDS), 1);
}

/* ---- writing ---- */

static void test_a_page_that_its_only_user_writes_leaves_the_index(void **state)
{
	compute(&one, SALT, ids, N_IDS);
	extend(&one, N_IDS - 1, 1);
	assert_int_equal(one.n_chained, 2);
	assert_int_equal(hits(SALT, ids, N_IDS), 2);
	kv_clear(cache, &one);
	assert_int_equal(kv_prefix_pages_unused(cache), 2);
}

static void test_a_registered_page_of_several_users_is_copied_before_it_is_written(void **state)
{
	uint32_t copies[N_PAGES][2], n_copies = 0;

	compute(&one, SALT, ids, N_IDS);
	assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, N_IDS), 3);
	assert_int_equal(kv_pages_needed(cache, &two, N_IDS - 1, 2), 2);
	assert_int_equal(kv_extend(cache, &two, N_IDS - 1, 2, copies, &n_copies), 0);
	assert_int_equal(n_copies, 1);
	assert_int_equal(copies[0][0], one.pages[2]);
	assert_int_equal(copies[0][1], two.pages[2]);
	assert_int_equal(two.n_chained, 2);
	assert_int_equal(one.n_chained, 3);
	assert_int_equal(kv_prefix_take(cache, &three, SALT, ids, N_IDS), 3);
	assert_int_equal(three.pages[2], one.pages[2]);
}

static void test_rewriting_truncated_tokens_keeps_the_cached_chain_right(void **state)
{
	int32_t other[N_IDS];
	uint32_t dropped[N_PAGES], n;

	leave(SALT, ids, N_IDS);
	memcpy(other, ids, sizeof(ids));
	other[PAGE_TOKENS + 1] = 7;
	assert_int_equal(kv_prefix_take(cache, &one, SALT, ids, N_IDS), 3);
	n = kv_truncate(cache, &one, PAGE_TOKENS + 1, dropped);
	assert_int_equal(one.n_chained, 1);
	kv_release(cache, dropped, n);
	/* what is left of the page is still right */
	assert_int_equal(hits(SALT, ids, N_IDS), 3);
	extend(&one, PAGE_TOKENS + 1, N_IDS - PAGE_TOKENS - 1);
	assert_int_equal(hits(SALT, ids, N_IDS), 1);
	kv_prefix_add(cache, &one, SALT, other, N_IDS);
	assert_int_equal(hits(SALT, ids, N_IDS), 1);
	assert_int_equal(hits(SALT, other, N_IDS), 3);
}

static void test_pages_after_one_that_left_the_index_are_not_hit(void **state)
{
	compute(&one, SALT, ids, N_IDS);
	extend(&one, 0, PAGE_TOKENS);
	assert_int_equal(hits(SALT, ids, N_IDS), 0);
	kv_prefix_add(cache, &one, SALT, ids, PAGE_TOKENS);
	assert_int_equal(hits(SALT, ids, N_IDS), 1);
}

static void test_refused_writing_leaves_pages_registered(void **state)
{
	uint32_t copies[N_PAGES][2], n_copies;

	compute(&one, SALT, ids, N_IDS);
	assert_int_equal(
		kv_extend(cache, &one, 0, (N_PAGES + 1) * PAGE_TOKENS, copies, &n_copies), -ENOSPC);
	assert_int_equal(one.n_chained, 3);
	assert_int_equal(hits(SALT, ids, N_IDS), 3);
}

/* ---- several tables ---- */

static void test_duplicates_computed_at_once_continue_one_chain(void **state)
{
	extend(&one, 0, N_IDS);
	extend(&two, 0, N_IDS);
	kv_prefix_add(cache, &one, SALT, ids, 2 * PAGE_TOKENS);
	kv_prefix_add(cache, &two, SALT, ids, N_IDS);
	assert_int_equal(two.n_chained, 3);
	assert_int_equal(kv_prefix_take(cache, &three, SALT, ids, N_IDS), 3);
	assert_int_equal(three.pages[0], one.pages[0]);
	assert_int_equal(three.pages[1], one.pages[1]);
	assert_int_equal(three.pages[2], two.pages[2]);
	kv_clear(cache, &three);
	kv_clear(cache, &two);
	/* the third; the two that it had twice are free */
	assert_int_equal(kv_prefix_pages_unused(cache), 1);
	assert_int_equal(kv_pages_free(cache), N_PAGES - 3);
}

static void test_a_fork_has_the_chain_of_its_whole_pages(void **state)
{
	compute(&one, SALT, ids, N_IDS);
	assert_int_equal(kv_fork(cache, &one, 2 * PAGE_TOKENS + 1, &two), 0);
	assert_int_equal(two.n_pages, 3);
	assert_int_equal(two.n_chained, 2);
	assert_memory_equal(two.serials, one.serials, 2 * sizeof(*one.serials));
	assert_int_equal(kv_fork(cache, &one, N_IDS, &three), 0);
	assert_int_equal(three.n_chained, 3);
}

static void test_a_shared_page_is_registered_once(void **state)
{
	extend(&one, 0, N_IDS);
	assert_int_equal(kv_fork(cache, &one, N_IDS, &two), 0);
	kv_prefix_add(cache, &one, SALT, ids, N_IDS);
	kv_prefix_add(cache, &two, SALT, ids, N_IDS);
	assert_int_equal(two.n_chained, 3);
	assert_memory_equal(two.serials, one.serials, 3 * sizeof(*one.serials));
	assert_int_equal(kv_prefix_counts(cache).registered, 3);
}

/* ---- the rest ---- */

static void test_counts_say_what_happened(void **state)
{
	struct prefix_counts counts;

	leave(SALT, ids, N_IDS);
	hits(SALT, ids, 2 * PAGE_TOKENS);
	occupy(&one, N_PAGES - 2);
	kv_prefix_drop(cache, UINT32_MAX);
	counts = kv_prefix_counts(cache);
	assert_int_equal(counts.registered, 3);
	assert_int_equal(counts.hits, 2);
	assert_int_equal(counts.evicted, 1);
}

static void test_pages_mapped_later_can_be_registered(void **state)
{
	occupy(&one, N_PAGES);
	assert_int_equal(kv_cache_map(cache, config.max_pages), 0);
	leave(SALT, ids, N_IDS);
	assert_int_equal(hits(SALT, ids, N_IDS), 3);
}

static void test_nothing_is_registered_without_a_prefix_cache(void **state)
{
	struct kv_config plain = config;
	struct kv_cache *with = cache;

	plain.prefix_cache = false;
	assert_int_equal(kv_cache_new(device, &plain, N_PAGES, &cache), 0);
	leave(SALT, ids, N_IDS);
	assert_int_equal(hits(SALT, ids, N_IDS), 0);
	kv_prefix_drop(cache, UINT32_MAX);
	assert_int_equal(kv_prefix_pages_unused(cache), 0);
	assert_int_equal(kv_prefix_counts(cache).registered, 0);
	kv_check(cache);
	kv_cache_free(cache);
	cache = with;
}

static void test_nothing_allocates_after_the_cache_is_made(void **state)
{
	unsigned long before = n_allocations;

	for (uint32_t i = 0; i < 50; i++) {
		ids[0] = (int32_t)i;
		compute(&one, SALT, ids, N_IDS);
		assert_int_equal(kv_prefix_take(cache, &two, SALT, ids, N_IDS), 3);
		kv_clear(cache, &one);
		extend(&two, 1, 1);
		kv_clear(cache, &two);
	}
	kv_prefix_drop(cache, UINT32_MAX);
	assert_true(kv_prefix_counts(cache).evicted > 0);
	assert_int_equal(n_allocations, before);
	kv_table_deinit(&one); /* allocations are counted */
	assert_int_equal(kv_table_init(&one, N_PAGES), 0);
	assert_true(n_allocations > before);
}

/* ---- */

static int open_device(void **state)
{
	allocations_watch();
	device = test_device_open(0);
	return 0;
}

static int close_device(void **state)
{
	device->ops->free(device);
	return 0;
}

#define WITH_TABLES(test) cmocka_unit_test_setup_teardown(test, make_tables, free_tables)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_TABLES(test_pages_are_hit_after_their_release),
		WITH_TABLES(test_pages_in_use_are_hit_and_shared),
		WITH_TABLES(test_no_page_is_hit_across_salts),
		WITH_TABLES(test_no_page_is_hit_from_the_first_different_id_on),
		WITH_TABLES(test_equal_ids_at_another_place_are_not_hit),
		WITH_TABLES(test_only_whole_pages_are_registered_and_hit),
		WITH_TABLES(test_no_more_pages_are_hit_than_a_table_holds),
		WITH_TABLES(test_a_chain_grows_where_it_was_taken),
		WITH_TABLES(test_free_pages_are_given_before_unused_ones),
		WITH_TABLES(test_a_chain_is_evicted_from_its_end),
		WITH_TABLES(test_truncated_pages_are_evicted_from_their_end),
		WITH_TABLES(test_the_page_unused_for_longest_is_evicted),
		WITH_TABLES(test_pages_in_use_are_never_evicted),
		WITH_TABLES(test_nothing_is_evicted_for_what_does_not_fit),
		WITH_TABLES(test_dropped_pages_are_free_and_those_in_use_stay),
		WITH_TABLES(test_a_page_that_its_only_user_writes_leaves_the_index),
		WITH_TABLES(test_a_registered_page_of_several_users_is_copied_before_it_is_written),
		WITH_TABLES(test_rewriting_truncated_tokens_keeps_the_cached_chain_right),
		WITH_TABLES(test_pages_after_one_that_left_the_index_are_not_hit),
		WITH_TABLES(test_refused_writing_leaves_pages_registered),
		WITH_TABLES(test_duplicates_computed_at_once_continue_one_chain),
		WITH_TABLES(test_a_fork_has_the_chain_of_its_whole_pages),
		WITH_TABLES(test_a_shared_page_is_registered_once),
		WITH_TABLES(test_counts_say_what_happened),
		WITH_TABLES(test_pages_mapped_later_can_be_registered),
		WITH_TABLES(test_nothing_is_registered_without_a_prefix_cache),
		WITH_TABLES(test_nothing_allocates_after_the_cache_is_made),
	};

	return cmocka_run_group_tests_name("prefix cache", tests, open_device, close_device);
}
