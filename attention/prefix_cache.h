/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PREFIX_CACHE_H
#define MIMEO_ATTENTION_PREFIX_CACHE_H

/*
 * The index of KV pages by the tokens they hold, with which a sequence takes the pages that another
 * sequence has computed for the same first tokens.
 *
 * After vLLM's automatic prefix caching (design document "Automatic Prefix Caching": block pool,
 * hash chain, free queue in LRU order); pages are those of PagedAttention (Kwon et al. 2023,
 * arXiv:2309.06180).
 *
 * The key of a page is (serial of the page before it, salt, its page_tokens ids); a first page has
 * the parent 0. Each registered page has a serial that no page had before or gets later. By
 * induction a serial stands for all tokens from the first one on, so equal keys are equal
 * sequences. All of a key is compared, so keys with equal hashes are distinguished.
 *
 * Memory is allocated in prefix_cache_new alone: a node and the ids for each page, and buckets.
 * An operation hashes and compares the ids of one page; only prefix_cache_check takes longer.
 *
 * Threads: one at a time; kv_cache's is the engine's.
 *
 * Invariants: a registered page has a serial above 0, and is in the bucket of its hash once; an
 * unused page is registered, and is on the list of unused pages once, the one that was used last
 * at its end; no two registered pages have equal keys; page 0 is never registered.
 */

#include <stdbool.h>
#include <stdint.h>

struct prefix_cache;

/* The hash of a key; equal for equal keys. */
typedef uint64_t prefix_hash(
	uint64_t parent, uint64_t salt, const int32_t *ids, uint32_t page_tokens);

struct prefix_key {
	uint64_t parent, salt;
	const int32_t *ids; /* [page_tokens] the caller's */
	uint64_t hash;
};

/* Counters of what happened to pages. */
struct prefix_counts {
	uint64_t registered;
	uint64_t hits;    /* pages taken from the index */
	uint64_t evicted; /* unused pages that left the index because another use took them */
};

/* For pages below max_pages. hash NULL: XXH3 of xxhash. */
int prefix_cache_new(uint32_t max_pages, uint32_t page_tokens, prefix_hash *hash,
	struct prefix_cache **ret);
void prefix_cache_free(struct prefix_cache *prefix);

struct prefix_key prefix_cache_key(
	const struct prefix_cache *prefix, uint64_t parent, uint64_t salt, const int32_t *ids);

/* The page of this key, or 0. */
uint32_t prefix_cache_find(const struct prefix_cache *prefix, const struct prefix_key *key);
/* A page's serial, or 0 if it is not registered. */
uint64_t prefix_cache_serial(const struct prefix_cache *prefix, uint32_t page);
/* Does a registered page hold these ids? */
bool prefix_cache_holds(const struct prefix_cache *prefix, uint32_t page, const int32_t *ids);

/* Register a page, which is in use. Neither it nor the key is registered. Returns its serial. */
uint64_t prefix_cache_add(
	struct prefix_cache *prefix, uint32_t page, const struct prefix_key *key);
/* A registered page that is in use leaves the index. */
void prefix_cache_remove(struct prefix_cache *prefix, uint32_t page);

/* A registered page lost its last user. */
void prefix_cache_rest(struct prefix_cache *prefix, uint32_t page);
/* A page that was found has one user more; it may be unused before. */
void prefix_cache_hit(struct prefix_cache *prefix, uint32_t page);
/* The unused page that was used least recently leaves the index, because its memory gets another
 * use (counted as evicted), or because the index is emptied. There is one. */
uint32_t prefix_cache_evict(struct prefix_cache *prefix);
uint32_t prefix_cache_drop(struct prefix_cache *prefix);

uint32_t prefix_cache_n_registered(const struct prefix_cache *prefix);
uint32_t prefix_cache_n_unused(const struct prefix_cache *prefix);
struct prefix_counts prefix_cache_counts(const struct prefix_cache *prefix);

/* Assert the invariants, but for equal keys; is the page unused? Time: the pages below n_pages. */
void prefix_cache_check(const struct prefix_cache *prefix, uint32_t n_pages);
bool prefix_cache_unused(const struct prefix_cache *prefix, uint32_t page);

#endif
