/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_KV_CACHE_H
#define MIMEO_ATTENTION_KV_CACHE_H

/*
 * The paged KV cache: host accounting of pages that exist on the device.
 *
 * A page holds page_tokens tokens of K and V (or of K alone) of all layers, or of one set of them (kv_sets.h): then a
 * sequence has pages of each set, and those of sets with a window that have left it are given back. Page 0 is the null
 * page: it is never given out, and padding points to it. Pages have reference counts; a fork shares
 * its parent's pages, and the first sequence that writes into a shared page gets a copy of its own
 * (copy-on-write).
 *
 * Device memory: one reserved range a layer, [max_pages, 2, page_tokens, n_kv_heads, head_dim]
 * (without the 2 if there are no values), so that no stride depends on the number of pages; pages
 * are mapped from the front.
 *
 * Prefix cache (prefix_cache.h; optional): a page whose tokens are all computed may be registered by
 * the tokens from the sequence's first one to its last. Another sequence that begins with them
 * takes the page and computes nothing. A registered page without users is unused: it counts as
 * free, and keeps its contents until no other page is free and no other was unused for longer. A
 * registered page is never written: its only user takes it out of the index first, one of several
 * users gets a copy. The pages of a set have keys of their own, whose parents are the first set's pages: a prefix is
 * found if its pages are registered from its first token on in sets without a window, and those of the window before
 * its end in the others; where all layers have a window, all its pages.
 *
 * Threads: the engine's alone. Nothing here waits for the device: callers release a page only when
 * every launched step that names it has completed.
 *
 * Invariants: a page without references is either on the free list, once and not registered, or
 * registered and on the list of unused pages, once; any other page has as many references as users,
 * and is on neither. Free, unused and used pages are all pages but the null page. The first
 * n_chained pages of a table hold what registered pages held when their serials were noted.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/kv_sets.h"
#include "attention/prefix_cache.h"
#include "kernels/device.h"

struct kv_config {
	uint32_t n_layers, n_kv_heads, head_dim, page_tokens; /* layers of a page */
	uint32_t max_pages; /* of the reservation, the null page counted in */
	enum dtype dtype;
	bool keys_only; /* rows of one kind: [max_pages, page_tokens, n_kv_heads, head_dim] */
	bool prefix_cache;
	prefix_hash *prefix_hash; /* NULL: a good one */
	/* kv_sets.h; n_sets 0: one. near_tokens: in sets with a window kv_extend takes pages for the next near_tokens
	 * tokens alone, however many are asked for; 0: for all. */
	uint32_t n_sets, n_full_sets, window, near_tokens;
};

/* Divide the layers of a cache for n_layers. */
static inline void kv_config_divide(struct kv_config *config, const struct kv_sets *sets)
{
	config->n_layers = sets->n_layers;
	config->n_sets = sets->n;
	config->n_full_sets = sets->n_full;
	config->window = sets->window;
}

struct kv_cache;

/* Bytes of one page, all layers; and of one layer's part. */
uint64_t kv_page_bytes(const struct kv_config *config);
uint64_t kv_layer_page_bytes(const struct kv_config *config);

/* Reserve the ranges and map the first pages (null page, zeroed, and n_first more). */
int kv_cache_new(struct device *device, const struct kv_config *config, uint32_t n_first,
	struct kv_cache **ret);
void kv_cache_free(struct kv_cache *cache);
/* Map until n_pages pages exist, the null page counted in; no effect if as many exist already.
 * Allowed after lock. -EINVAL above max_pages; nothing changes when mapping fails. */
int kv_cache_map(struct kv_cache *cache, uint32_t n_pages);
/* Base address of a layer's range. */
void *kv_layer(const struct kv_cache *cache, uint32_t layer);
const struct kv_config *kv_cache_config(const struct kv_cache *cache);

uint32_t kv_pages_total(const struct kv_cache *cache); /* without the null page */
/* The total number of pages, without the null page, after mapping `bytes` more of the device: whole
 * granules, the same in each layer. */
uint32_t kv_pages_within(const struct kv_cache *cache, uint64_t bytes);
uint32_t kv_pages_free(const struct kv_cache *cache); /* unused ones counted in */

/* A sequence's pages in logical order. */
struct kv_table {
	uint32_t *pages; /* [n_sets, capacity] owned; capacity of max_seq_pages given at init */
	uint32_t n_pages;
	uint32_t capacity;
	uint32_t first, end; /* the pages that sets with a window have; without such sets 0 */
	bool keeps; /* they give none back, and get all at once: its keys cannot be computed again */
	uint32_t n_chained; /* leading pages that are registered, or equal to registered ones */
	uint64_t *serials;  /* owned, [capacity]: theirs. NULL if the table never has such pages */
};
int kv_table_init(struct kv_table *table, uint32_t capacity);
static inline uint32_t *kv_table_pages(const struct kv_table *table, uint32_t set)
{
	return table->pages + (size_t)set * table->capacity;
}
/* Which of its pages a set has. */
struct kv_range {
	uint32_t first, end;
};
struct kv_range kv_table_range(const struct kv_cache *cache, const struct kv_table *table, uint32_t set);
/* How many pages of all sets it names. */
uint32_t kv_table_held(const struct kv_cache *cache, const struct kv_table *table);
/* Does it have all that a token at n_tokens sees? */
bool kv_table_serves(const struct kv_cache *cache, const struct kv_table *table, uint32_t n_tokens);
/* Releases no pages: call kv_release first. */
void kv_table_deinit(struct kv_table *table);
/* Release all pages; the table is empty then. */
void kv_clear(struct kv_cache *cache, struct kv_table *table);

/* Pages that writing tokens [n_tokens, n_tokens + n_new) takes: new ones, and copies of shared ones
 * among those to be written. */
uint32_t kv_pages_needed(const struct kv_cache *cache, const struct kv_table *table,
	uint32_t n_tokens, uint32_t n_new);
/* The most pages that a sequence of n_tokens has at a time, of all sets. */
uint32_t kv_pages_in_all(const struct kv_config *config, uint64_t n_tokens, bool keeps);
/* The longest sequence, of at most `most` tokens, that n_pages suffice for. */
uint32_t kv_tokens_within(const struct kv_config *config, uint32_t n_pages, uint32_t most);
/* Take them. Writes (src, dst) pairs to copies[]: the device must copy these pages before it writes
 * to them. One for each shared page among those to be written: at most one a set where a sequence grows
 * at its end, more where it rewrites its tokens; kv_pages_needed pairs always suffice. A
 * source keeps its reference until the caller calls kv_release on it, after the copying step has
 * completed. A registered page that is to be written and has no other user leaves the index.
 * -ENOSPC (pages, or the table's capacity) or -EINVAL (the table does not hold n_tokens) change
 * nothing. No allocation. */
int kv_extend(struct kv_cache *cache, struct kv_table *table, uint32_t n_tokens, uint32_t n_new,
	uint32_t (*copies)[2], uint32_t *ret_n_copies);
/* Give back pages of sets with a window that no token from n_tokens - KV_WINDOW_SLACK on sees; no launched step may
 * have rows of earlier ones. Returns how many. */
uint32_t kv_leave_window(struct kv_cache *cache, struct kv_table *table, uint32_t n_tokens);
/* The child shares all pages that hold the first n_tokens, and the chain of the whole ones. -ENOSPC if its capacity is
 * too small; -EINVAL if the child is not empty, or the parent lacks pages of the first n_tokens or of what the next
 * token sees. On an error nothing changes. */
int kv_fork(struct kv_cache *cache, const struct kv_table *parent, uint32_t n_tokens,
	struct kv_table *child);
/* Cut a table to the pages that n_tokens need; the dropped pages go to dropped[] (capacity n_pages, of each set)
 * and keep their reference until kv_release. */
uint32_t kv_truncate(struct kv_cache *cache, struct kv_table *table, uint32_t n_tokens,
	uint32_t *dropped);
/* Drop one reference each, from the last page to the first; a page without references is free
 * again, or unused. So the pages at the end of a chain are evicted before those they follow. */
void kv_release(struct kv_cache *cache, const uint32_t *pages, uint32_t n_pages);
/* References of a page, for tests. */
uint32_t kv_references(const struct kv_cache *cache, uint32_t page);
/* Assert the invariants of the lists, in time of all pages; for tests. */
void kv_check(const struct kv_cache *cache);

/*
 * The prefix cache. Without one, kv_prefix_take and kv_prefix_add do nothing. ids[] are a sequence's
 * tokens from its first one on. The salt separates sequences that may not share, or whose keys
 * differ for equal ids, and is below 2^56; a table has one, as long as it is not empty. Nothing allocates.
 */

/* Take the longest chain of registered pages for whole pages of ids[0, n_ids) into an empty table,
 * at most its capacity. Returns how many pages these are. */
uint32_t kv_prefix_take(struct kv_cache *cache, struct kv_table *table, uint64_t salt,
	const int32_t *ids, uint32_t n_ids);
/* Register the table's whole pages among the first n_tokens, whose keys and values have been
 * launched, from n_chained on. If an equal page is registered already, the table's own page is
 * not, but the chain goes on with the registered one's serial. A page that is registered already,
 * because another table shares it, keeps its key. */
void kv_prefix_add(struct kv_cache *cache, struct kv_table *table, uint64_t salt,
	const int32_t *ids, uint32_t n_tokens);
/* So many unused pages leave the index, or all; pages in use stay registered. Returns how many left. */
uint32_t kv_prefix_drop(struct kv_cache *cache, uint32_t most);
uint32_t kv_prefix_pages_registered(const struct kv_cache *cache);
uint32_t kv_prefix_pages_unused(const struct kv_cache *cache);
struct prefix_counts kv_prefix_counts(const struct kv_cache *cache);

#endif
