/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_KV_USERS_H
#define MIMEO_TESTS_ATTENTION_KV_USERS_H

#include <assert.h>

#include "attention/kv_cache.h"

#define KV_USERS_PAGES 8192u

/* Count the uses of pages[]; false at a page that is not given out. */
static inline bool kv_users_count(
	uint32_t *uses, uint32_t n_total, const uint32_t *pages, uint32_t n_pages)
{
	for (uint32_t i = 0; i < n_pages; i++) {
		if (!pages[i] || pages[i] > n_total)
			return false;
		uses[pages[i]]++;
	}
	return true;
}

/* tables[] and the pages in held[] (dropped or copied from, not released yet) are all users there
 * are: has each page as many references as users, and is each page without users free? */
static inline bool kv_users_match(const struct kv_cache *cache, const struct kv_table *const *tables,
	uint32_t n_tables, const uint32_t *held, uint32_t n_held)
{
	uint32_t uses[KV_USERS_PAGES] = {0}, n_total = kv_pages_total(cache), n_free = 0;

	assert(n_total < KV_USERS_PAGES);
	if (!kv_users_count(uses, n_total, held, n_held))
		return false;
	for (uint32_t i = 0; i < n_tables; i++) {
		if (!kv_users_count(uses, n_total, tables[i]->pages, tables[i]->n_pages))
			return false;
	}
	for (uint32_t page = 1; page <= n_total; page++) {
		if (kv_references(cache, page) != uses[page])
			return false;
		n_free += !uses[page];
	}
	return n_free == kv_pages_free(cache);
}

#endif
