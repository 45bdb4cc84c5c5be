/* SPDX-License-Identifier: MIT */
/* Sequences' tables of pages, and what they share through the prefix cache. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/kv_pages.h"

#define SET_SALT_SHIFT 56 /* keys of sets differ in bits of the salt that callers do not use */

int kv_table_init(struct kv_table *table, uint32_t capacity)
{
	uint32_t *pages = calloc((size_t)(capacity ? capacity : 1) * KV_SETS_MAX, sizeof(*pages));
	uint64_t *serials = calloc(capacity ? capacity : 1, sizeof(*serials));

	if (!pages || !serials) {
		free(serials);
		free(pages);
		return -ENOMEM;
	}
	*table = (struct kv_table){ .pages = pages, .serials = serials, .capacity = capacity };
	return 0;
}

void kv_table_deinit(struct kv_table *table)
{
	if (!table)
		return;
	free(table->serials);
	free(table->pages);
	*table = (struct kv_table){ 0 };
}

static bool kv_table_is_full_set(const struct kv_cache *cache, uint32_t set)
{
	return set < cache->config.n_full_sets;
}

struct kv_range kv_table_range(const struct kv_cache *cache, const struct kv_table *table, uint32_t set)
{
	assert(set < cache->config.n_sets);
	if (kv_table_is_full_set(cache, set))
		return (struct kv_range){0, table->n_pages};
	return (struct kv_range){table->first, table->end};
}

uint32_t kv_table_held(const struct kv_cache *cache, const struct kv_table *table)
{
	const struct kv_config *c = &cache->config;

	return c->n_full_sets * table->n_pages + (c->n_sets - c->n_full_sets) * (table->end - table->first);
}

static void kv_table_assert(const struct kv_cache *cache, const struct kv_table *table)
{
	assert(table->n_pages <= table->capacity && table->n_chained <= table->n_pages);
	assert(table->serials || !table->n_chained);
	assert(table->first <= table->end && table->end <= table->n_pages);
	assert(cache->config.n_full_sets < cache->config.n_sets || !table->end);
}

/* The chain ends before page n: the whole pages before a token, or before what is written. */
static void kv_table_cut_chain(struct kv_table *table, uint64_t n)
{
	if (table->n_chained > n)
		table->n_chained = (uint32_t)n;
}

/* Logical pages that hold n tokens. */
static uint64_t kv_table_pages_for(const struct kv_config *config, uint64_t n)
{
	return (n + config->page_tokens - 1) / config->page_tokens;
}

/* Logical pages that hold the first n_tokens. */
static uint64_t kv_table_pages_of(const struct kv_cache *cache, uint64_t n_tokens)
{
	return kv_table_pages_for(&cache->config, n_tokens);
}

/* The first logical page that the token at the position sees through the window, or one `slack` tokens before. */
static uint32_t kv_table_first_seen(const struct kv_cache *cache, uint32_t position, uint32_t slack)
{
	const uint64_t before = (uint64_t)cache->config.window + slack - 1;

	if (!cache->config.window || position <= before)
		return 0;
	return (uint32_t)((position - before) / cache->config.page_tokens);
}

void kv_clear(struct kv_cache *cache, struct kv_table *table)
{
	for (uint32_t set = cache->config.n_sets; set-- > 0;) {
		const struct kv_range range = kv_table_range(cache, table, set);

		kv_release(cache, kv_table_pages(table, set) + range.first, range.end - range.first);
	}
	table->n_pages = table->n_chained = table->first = table->end = 0;
}

/* ---- taking pages ---- */

/* The logical pages that writing tokens [n_tokens, n_tokens + n_new) needs. */
struct kv_demand {
	uint64_t first, end;  /* pages that will be written */
	uint64_t end_near;    /* likewise, of sets with a window */
	uint32_t n_copies;    /* of them: in the table and shared */
	uint64_t n_pages;     /* copies and new ones */
};

static uint64_t kv_table_end_of(const struct kv_cache *cache, const struct kv_demand *d, uint32_t set)
{
	return kv_table_is_full_set(cache, set) ? d->end : d->end_near;
}

static struct kv_demand kv_table_demand(const struct kv_cache *cache, const struct kv_table *table,
	uint32_t n_tokens, uint32_t n_new)
{
	const uint32_t near = cache->config.near_tokens;
	const uint32_t n_near = !table->keeps && near && near < n_new ? near : n_new;
	struct kv_demand d = { .first = n_tokens / cache->config.page_tokens };

	d.end = n_new ? kv_table_pages_of(cache, (uint64_t)n_tokens + n_new) : d.first;
	d.end_near = n_new ? kv_table_pages_of(cache, (uint64_t)n_tokens + n_near) : d.first;
	kv_table_assert(cache, table);
	for (uint32_t set = 0; set < cache->config.n_sets; set++) {
		const struct kv_range range = kv_table_range(cache, table, set);
		const uint64_t end = kv_table_end_of(cache, &d, set);
		const uint32_t *pages = kv_table_pages(table, set);

		for (uint64_t i = d.first > range.first ? d.first : range.first; i < end && i < range.end; i++) {
			kv_pages_assert_used(cache, pages[i]);
			d.n_copies += cache->references[pages[i]] > 1;
		}
		d.n_pages += end > range.end ? end - range.end : 0;
	}
	d.n_pages += d.n_copies;
	return d;
}

uint32_t kv_pages_needed(const struct kv_cache *cache, const struct kv_table *table,
	uint32_t n_tokens, uint32_t n_new)
{
	uint64_t n = kv_table_demand(cache, table, n_tokens, n_new).n_pages;

	return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

uint32_t kv_pages_in_all(const struct kv_config *c, uint64_t n_tokens, bool keeps)
{
	const uint32_t n_sets = c->n_sets ? c->n_sets : 1, n_full = c->n_sets ? c->n_full_sets : 1;
	const uint64_t n = kv_table_pages_for(c, n_tokens);
	/* Two launched steps, and the one that is scheduled; a window may begin and end within a page. */
	const uint64_t seen =
		kv_table_pages_for(c, (uint64_t)c->window + KV_WINDOW_SLACK + 3 * (uint64_t)c->near_tokens) + 2;
	const uint64_t all = n_full * n + (n_sets - n_full) * (keeps || !c->near_tokens || n < seen ? n : seen);

	return all < UINT32_MAX ? (uint32_t)all : UINT32_MAX;
}

uint32_t kv_tokens_within(const struct kv_config *config, uint32_t n_pages, uint32_t most)
{
	uint32_t low = 0, high = most;

	while (low < high) {
		const uint32_t middle = high - (high - low) / 2;

		if (kv_pages_in_all(config, middle, false) <= n_pages)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/* Copy or take the pages of one set that will be written; returns how many pairs copies[] has then. */
static uint32_t kv_table_extend_set(struct kv_cache *cache, struct kv_table *table, uint32_t set,
	const struct kv_demand *d, uint32_t (*copies)[2], uint32_t n_copies)
{
	const struct kv_range range = kv_table_range(cache, table, set);
	const uint64_t end = kv_table_end_of(cache, d, set);
	uint32_t *pages = kv_table_pages(table, set);

	for (uint64_t i = d->first > range.first ? d->first : range.first; i < end && i < range.end; i++) {
		uint32_t page = pages[i];

		if (cache->references[page] > 1) {
			copies[n_copies][0] = page;
			copies[n_copies][1] = pages[i] = kv_pages_take(cache);
			n_copies++;
		} else if (kv_pages_registered(cache, page)) {
			prefix_cache_remove(cache->prefix, page);
		}
	}
	for (uint64_t i = range.end; i < end; i++)
		pages[i] = kv_pages_take(cache);
	return n_copies;
}

int kv_extend(struct kv_cache *cache, struct kv_table *table, uint32_t n_tokens, uint32_t n_new,
	uint32_t (*copies)[2], uint32_t *ret_n_copies)
{
	struct kv_demand d = kv_table_demand(cache, table, n_tokens, n_new);
	uint32_t n_copies = 0, n_free = kv_pages_free(cache);
	const bool has_windows = cache->config.n_full_sets < cache->config.n_sets;

	if (n_tokens > (uint64_t)table->n_pages * cache->config.page_tokens)
		return -EINVAL;
	if (has_windows && n_tokens > (uint64_t)table->end * cache->config.page_tokens)
		return -EINVAL;
	if (d.n_pages > n_free || d.end > table->capacity)
		return -ENOSPC;
	for (uint32_t set = 0; set < cache->config.n_sets; set++)
		n_copies = kv_table_extend_set(cache, table, set, &d, copies, n_copies);
	if (table->n_pages < d.end)
		table->n_pages = (uint32_t)d.end;
	if (has_windows && table->end < d.end_near)
		table->end = (uint32_t)d.end_near;
	if (n_new)
		kv_table_cut_chain(table, d.first);
	assert(n_copies == d.n_copies && n_free - kv_pages_free(cache) == d.n_pages);
	kv_table_assert(cache, table);
	*ret_n_copies = n_copies;
	return 0;
}

/* ---- giving back ---- */

uint32_t kv_leave_window(struct kv_cache *cache, struct kv_table *table, uint32_t n_tokens)
{
	uint32_t first = kv_table_first_seen(cache, n_tokens, KV_WINDOW_SLACK), n;

	kv_table_assert(cache, table);
	if (table->keeps)
		return 0;
	if (first > table->end)
		first = table->end;
	if (first <= table->first)
		return 0;
	n = first - table->first;
	for (uint32_t set = cache->config.n_full_sets; set < cache->config.n_sets; set++)
		kv_release(cache, kv_table_pages(table, set) + table->first, n);
	table->first = first;
	return n * (cache->config.n_sets - cache->config.n_full_sets);
}

bool kv_table_serves(const struct kv_cache *cache, const struct kv_table *table, uint32_t n_tokens)
{
	return table->first <= kv_table_first_seen(cache, n_tokens, 0);
}

int kv_fork(struct kv_cache *cache, const struct kv_table *parent, uint32_t n_tokens,
	struct kv_table *child)
{
	uint64_t n_pages = kv_table_pages_of(cache, n_tokens);

	kv_table_assert(cache, parent);
	kv_table_assert(cache, child);
	if (n_pages > parent->n_pages || child->n_pages != 0 || !kv_table_serves(cache, parent, n_tokens))
		return -EINVAL;
	if (n_pages > child->capacity)
		return -ENOSPC;
	child->n_pages = (uint32_t)n_pages;
	child->end = parent->end < n_pages ? parent->end : (uint32_t)n_pages;
	child->first = parent->first < child->end ? parent->first : child->end;
	for (uint32_t set = 0; set < cache->config.n_sets; set++) {
		const struct kv_range range = kv_table_range(cache, child, set);
		const uint32_t *from = kv_table_pages(parent, set);
		uint32_t *to = kv_table_pages(child, set);

		for (uint32_t i = range.first; i < range.end; i++) {
			kv_pages_assert_used(cache, from[i]);
			assert(cache->references[from[i]] < UINT32_MAX);
			to[i] = from[i];
			cache->references[from[i]]++;
		}
	}
	if (child->serials && parent->n_chained) {
		child->n_chained = parent->n_chained;
		kv_table_cut_chain(child, n_tokens / cache->config.page_tokens);
		memcpy(child->serials, parent->serials, child->n_chained * sizeof(*child->serials));
	}
	return 0;
}

uint32_t kv_truncate(
	struct kv_cache *cache, struct kv_table *table, uint32_t n_tokens, uint32_t *dropped)
{
	uint64_t keep = kv_table_pages_of(cache, n_tokens);
	uint32_t n_dropped = 0;

	for (uint32_t set = 0; set < cache->config.n_sets; set++) {
		const struct kv_range range = kv_table_range(cache, table, set);
		const uint32_t *pages = kv_table_pages(table, set);

		for (uint64_t i = keep > range.first ? keep : range.first; i < range.end; i++)
			dropped[n_dropped++] = pages[i];
	}
	if (table->n_pages > keep)
		table->n_pages = (uint32_t)keep;
	if (table->end > keep)
		table->end = (uint32_t)keep;
	if (table->first > table->end)
		table->first = table->end;
	kv_table_cut_chain(table, n_tokens / cache->config.page_tokens);
	kv_table_assert(cache, table);
	return n_dropped;
}

/* ---- the prefix cache ---- */

/* The key of a set's page n of a chain, whose serials before n are in the table. */
static struct prefix_key kv_table_key(const struct kv_cache *cache, const struct kv_table *table, uint32_t set,
	uint64_t salt, const int32_t *ids, uint32_t n)
{
	return prefix_cache_key(cache->prefix, n ? table->serials[n - 1] : 0,
		salt ^ (uint64_t)set << SET_SALT_SHIFT, ids + (size_t)n * cache->config.page_tokens);
}

/* Look up the registered page n of each set, and write it to entry n of the set's table. False: the first set, or a set
 * whose pages are all kept, has none: the prefix ends before page n. *ret_near: every set has one. */
static bool kv_table_find(const struct kv_cache *cache, struct kv_table *table, uint64_t salt, const int32_t *ids,
	uint32_t n, bool *ret_near)
{
	*ret_near = true;
	for (uint32_t set = 0; set < cache->config.n_sets; set++) {
		struct prefix_key key = kv_table_key(cache, table, set, salt, ids, n);
		const uint32_t page = prefix_cache_find(cache->prefix, &key);

		kv_table_pages(table, set)[n] = page;
		if (set == 0 && page)
			table->serials[n] = prefix_cache_serial(cache->prefix, page);
		if (!page && (set == 0 || kv_table_is_full_set(cache, set)))
			return false;
		*ret_near &= page != 0;
	}
	return true;
}

/* The longest prefix whose pages are all there: of sets with a window those that the next token sees. */
static uint32_t kv_table_match(const struct kv_cache *cache, struct kv_table *table, uint64_t salt,
	const int32_t *ids, uint32_t n_whole)
{
	uint32_t longest = 0, n_near = 0;
	bool near;

	for (uint32_t n = 0; n < n_whole && n < table->capacity && kv_table_find(cache, table, salt, ids, n, &near);
		n++) {
		const uint32_t first = kv_table_first_seen(cache, (n + 1) * cache->config.page_tokens, 0);

		n_near = near ? n_near + 1 : 0;
		if (cache->config.n_full_sets == cache->config.n_sets || first + n_near > n)
			longest = n + 1;
	}
	return longest;
}

uint32_t kv_prefix_take(struct kv_cache *cache, struct kv_table *table, uint64_t salt,
	const int32_t *ids, uint32_t n_ids)
{
	uint32_t n;

	kv_table_assert(cache, table);
	assert(!table->n_pages);
	if (!cache->prefix)
		return 0;
	assert(table->serials && !(salt >> SET_SALT_SHIFT));
	n = kv_table_match(cache, table, salt, ids, n_ids / cache->config.page_tokens);
	table->n_pages = table->n_chained = n;
	if (cache->config.n_full_sets < cache->config.n_sets) {
		table->end = n;
		table->first = kv_table_first_seen(cache, n * cache->config.page_tokens, 0);
	}
	for (uint32_t set = 0; set < cache->config.n_sets; set++) {
		const struct kv_range range = kv_table_range(cache, table, set);
		const uint32_t *pages = kv_table_pages(table, set);

		for (uint32_t i = range.first; i < range.end; i++) {
			assert(pages[i] && pages[i] < cache->n_pages && cache->references[pages[i]] < UINT32_MAX);
			prefix_cache_hit(cache->prefix, pages[i]);
			cache->references[pages[i]]++;
		}
	}
	return n;
}

/* The serial of a page that is registered, or equal to a registered one, from now on. */
static uint64_t kv_table_register(
	struct kv_cache *cache, uint32_t page, const struct prefix_key *key)
{
	uint32_t equal;

	kv_pages_assert_used(cache, page);
	if (kv_pages_registered(cache, page)) {
		assert(prefix_cache_holds(cache->prefix, page, key->ids));
		return prefix_cache_serial(cache->prefix, page);
	}
	equal = prefix_cache_find(cache->prefix, key);
	return equal ? prefix_cache_serial(cache->prefix, equal)
		     : prefix_cache_add(cache->prefix, page, key);
}

void kv_prefix_add(struct kv_cache *cache, struct kv_table *table, uint64_t salt,
	const int32_t *ids, uint32_t n_tokens)
{
	uint32_t n_whole = n_tokens / cache->config.page_tokens;

	kv_table_assert(cache, table);
	assert(n_whole <= table->n_pages);
	if (!cache->prefix)
		return;
	assert(table->serials && !(salt >> SET_SALT_SHIFT));
	for (uint32_t n = table->n_chained; n < n_whole; n++) {
		for (uint32_t set = 0; set < cache->config.n_sets; set++) {
			struct prefix_key key = kv_table_key(cache, table, set, salt, ids, n);
			const struct kv_range range = kv_table_range(cache, table, set);
			uint64_t serial;

			if (n < range.first || n >= range.end) {
				if (set == 0) /* the chain's own page is gone: it ends */
					return;
				continue;
			}
			serial = kv_table_register(cache, kv_table_pages(table, set)[n], &key);
			if (set == 0)
				table->serials[n] = serial;
		}
		table->n_chained = n + 1;
	}
}
